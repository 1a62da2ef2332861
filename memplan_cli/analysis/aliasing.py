"""Storage sharing: views of other vars, in-place results, and results of exclusive branches.

What an If gives is the result of the branch that ran: the branches' own results share the
bytes of its output. Which operators share is in the registry of operators. A wrong trait there
corrupts data in silence, and the replay runs each such operator on top of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.branches import find_places
from memplan_cli.analysis.liveness import live_ranges, steps, timed
from memplan_cli.core.operators import OPERATORS, STANDARD_DOMAINS, names_of, qualified_name
from memplan_cli.core.problem import BufferId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.analysis.branches import Choice, Places
    from memplan_cli.analysis.liveness import Step
    from memplan_cli.core.problem import LiveRange
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


@dataclass(frozen=True, slots=True)
class Aliasing:
    """Which operators share bytes, so that a caller may plan with another set of operators.

    Attributes:
        views: operators of the standard domain whose first result is their first input's bytes.
        in_place: positions of the inputs that an operator's first result may replace.
            Operators of other domains than ONNX's are ``domain.Operator``, and never views.
        branches: operators that run one of their subgraphs, once, and give its results.
    """

    views: Collection[str]
    in_place: Mapping[str, tuple[int, ...]]
    branches: Collection[str] = frozenset()

    def is_view(self, op: Op) -> bool:
        """Whether an op's first result is a view of its first input."""
        return op.type in self.views and op.domain in STANDARD_DOMAINS

    def replaced_by(self, op: Op) -> tuple[int, ...]:
        """Return the positions of the inputs that an op's first output may replace."""
        return self.in_place.get(qualified_name(op), ())

    def runs_one(self, op: Op) -> bool:
        """Whether an op runs one of its subgraphs, and gives what that gives."""
        return op.type in self.branches and op.domain in STANDARD_DOMAINS


_VIEWS = frozenset(names_of(lambda each: each.is_view))
_BRANCHES = frozenset(names_of(lambda each: each.runs_one_body))

SHARE_NOTHING = Aliasing(frozenset(), {})
"""Levels 0 and 1: every var has storage of its own."""

SHARE_SAFELY = Aliasing(
    _VIEWS, {each.name: each.in_place for each in OPERATORS if each.in_place}, _BRANCHES
)
"""Level 2."""

SHARE_VIEWS = Aliasing(_VIEWS, {}, _BRANCHES)
"""What a runtime shares that frees each tensor after its last consumer: nothing is written in
place. ONNX Runtime under `enable_mem_reuse` off, on every shared model, to 0.01 %."""


def share_storage(
    program: Program,
    sizes: Mapping[VarId, Size],
    aliasing: Aliasing = SHARE_SAFELY,
    live: Mapping[VarId, LiveRange] | None = None,
    clock: Sequence[Step] | None = None,
) -> dict[VarId, BufferId]:
    """Return the buffer of each var in ``sizes``: the id of the first var that uses it.

    Args:
        program: The ops in the order in which they will run.
        sizes: The vars that may share: planned ones, their sizes known. What must keep
            memory of its own (inputs, results, excluded vars) is not in it.
        aliasing: The operators that share.
        live: The program's live ranges, if the caller has them.
        clock: The program's steps, if the caller has them.
    """
    if not aliasing.views and not aliasing.in_place and not aliasing.branches:
        return dict(zip(sizes, map(BufferId, sizes), strict=True))
    clock = steps(program) if clock is None else clock
    groups = _Groups(live_ranges(program, clock) if live is None else live, sizes)
    ops = [op for _, _, op in timed(clock)]
    _unite_views(aliasing, ops, groups)
    if any(op.bodies and aliasing.runs_one(op) for op in ops):
        places = find_places(program, aliasing.runs_one)
        for choice in places.choices:
            _unite_branches(choice, places, groups)
        groups.remember(places)
    for tick, _, op in timed(clock):
        positions = aliasing.replaced_by(op)
        if positions and (source := _replaced(op, tick, positions, groups)) is not None:
            groups.unite(source, groups.number[op.outputs[0]])
    return groups.buffers()


def _unite_views(aliasing: Aliasing, ops: Sequence[Op], groups: _Groups) -> None:
    views = [op for op in ops if aliasing.is_view(op)]
    control_flow = [op for op in ops if op.bodies]
    carried = {
        v for op in control_flow if op.repeats for body in op.bodies for v in body.outputs
    }
    received = {v for op in control_flow for body in op.bodies for v in body.inputs}
    for op in views:
        base_and_result = _view(op, groups)
        if base_and_result is None:
            continue
        base, result = base_and_result
        # A subgraph's result is copied into the subgraph's input for the next turn. Two
        # carried values that change places would overwrite each other if they were views.
        if op.outputs[0] in carried and groups.vars[groups.root(base)] in received:
            continue
        groups.unite(base, result)


def _unite_branches(choice: Choice, places: Places, groups: _Groups) -> None:
    """Let the results that branches have made themselves share the bytes of the op's own.

    What a branch only passes through (a capture, a constant, or a view of one) is copied:
    others may read it, and it may be there when the other branch makes its result.
    """
    op, number = choice.op, groups.number
    roots = [
        [groups.root(number[var]) if var in number else None for var in body.outputs]
        for body in op.bodies
    ]
    for position, var in enumerate(op.outputs):
        given = number.get(var)
        if given is None:
            continue
        sharing = []
        for results, place in zip(roots, choice.bodies, strict=True):
            root = results[position] if position < len(results) else None
            if root is None or groups.sizes[root] != groups.sizes[given]:
                continue
            # Bytes that are two of the results would have to be those of two outputs.
            if results.count(root) == 1 and places.is_inside(groups.vars[root], place):
                sharing.append(root)
        for root in sharing[1:]:
            groups.unite(sharing[0], root)
        if sharing:
            groups.unite(sharing[0], given)


class _Groups:
    """Union-find over vars, each by its number; a group's root is its oldest var."""

    def __init__(self, live: Mapping[VarId, LiveRange], sizes: Mapping[VarId, Size]) -> None:
        self.vars = tuple(sizes)
        self.number = {var: at for at, var in enumerate(sizes)}
        self.sizes = tuple(sizes.values())
        self.end = [live[var][1] for var in sizes]
        """When a group dies, by its root."""
        self._live = live
        self._places: Places | None = None
        self._members: dict[int, list[int]] = {}
        self._parent = list(range(len(sizes)))

    def root(self, at: int) -> int:
        parent = self._parent
        above = parent[at]
        while above != at:
            parent[at] = at = parent[above]
            above = parent[at]
        return at

    def unite(self, older: int, younger: int) -> None:
        old, young = self.root(older), self.root(younger)
        if old == young:
            return
        if self._places is not None:
            # What replaces an input may share the bytes of another branch's older result.
            if self._start(young) < self._start(old):
                old, young = young, old
            self._members[old] += self._members.pop(young)
        self._parent[young] = old
        self.end[old] = max(self.end[old], self.end[young])

    def remember(self, places: Places) -> None:
        """Keep the members of each group from now on: some have branches' results in them."""
        self._places = places
        for at in range(len(self.vars)):
            self._members.setdefault(self.root(at), []).append(at)

    def may_follow(self, older: int, younger: int, start: int) -> bool:
        """Whether a group that dies at a tick may give its bytes to one with a result there.

        A result of a branch has in its group what other branches made before: that must be
        dead whenever the older group is in use, or never be made in the same run.
        """
        places = self._places
        if places is None:
            return True
        others = self._members[self.root(younger)]
        before = [other for other in others if self._start(other) < start]
        return all(
            self._start(one) >= self._end(other)
            or self._start(other) >= self._end(one)
            or places.are_exclusive(self.vars[one], self.vars[other])
            for other in before
            for one in self._members[self.root(older)]
        )

    def _start(self, at: int) -> int:
        return self._live[self.vars[at]].start

    def _end(self, at: int) -> int:
        return self._live[self.vars[at]].end

    def buffers(self) -> dict[VarId, BufferId]:
        ids = [BufferId(var) for var in self.vars]
        return {var: ids[self.root(at)] for at, var in enumerate(self.vars)}


def _view(op: Op, groups: _Groups) -> tuple[int, int] | None:
    if not op.inputs or not op.outputs:
        return None
    number, sizes = groups.number, groups.sizes
    base, result = number.get(op.inputs[0]), number.get(op.outputs[0])
    if base is not None and result is not None and sizes[base] == sizes[result]:
        return base, result
    return None


def _replaced(op: Op, start: int, positions: Sequence[int], groups: _Groups) -> int | None:
    """Return the first input that dies at an op's tick and whose memory its result may take."""
    number, inputs = groups.number, op.inputs
    result = number.get(op.outputs[0]) if op.outputs else None
    if result is None:
        return None
    size = groups.sizes[result]
    for position in positions:
        if position >= len(inputs):
            return None
        source = number.get(inputs[position])
        if source is None:
            continue
        root = groups.root(source)
        if groups.end[root] != start + 1:
            continue
        if groups.sizes[source] is not size and groups.sizes[source] != size:
            continue
        if len(inputs) > 1 and _is_read_elsewhere(op, position, positions, root, groups):
            continue
        if groups.may_follow(root, result, start):
            return source
    return None


def _is_read_elsewhere(
    op: Op, position: int, positions: Sequence[int], root: int, groups: _Groups
) -> bool:
    """Whether an op reads the bytes of an input, a group, in another pattern too."""
    source = op.inputs[position]
    for at, other in enumerate(op.inputs):
        if other == source:
            # Read again elsewhere (a scatter's updates, a sum's third term), it would be
            # read after the first write.
            if at not in positions:
                return True
        # Another input on the same bytes is read in another pattern, or not at all.
        elif other in groups.number and groups.root(groups.number[other]) == root:
            return True
    return False
