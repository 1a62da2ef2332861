"""Storage sharing: views, results written in place, and results of exclusive branches.

Which operators share bytes is in the registry of operators. A wrong trait there corrupts data
without an error, so the replay (`runtime.replay`) runs each such operator on top of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from memplan_cli.analysis.defining_blocks import defining_blocks
from memplan_cli.analysis.liveness import live_ranges, steps
from memplan_cli.core.operators import OPERATORS, STANDARD_DOMAINS, names_of, qualified_name
from memplan_cli.core.problem import BufferId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.analysis.defining_blocks import BlockPath, BranchOp, DefiningBlocks
    from memplan_cli.analysis.liveness import Step
    from memplan_cli.core.problem import LiveRange
    from memplan_cli.core.program import Block, Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


@dataclass(frozen=True, slots=True)
class Aliasing:
    """The operators whose inputs and outputs may share bytes.

    Attributes:
        views: standard operators whose first output has the bytes of their first input.
        in_place: per operator, the positions of the inputs that its first output may overwrite.
            Operators of other domains are written ``domain.Operator``.
        branches: standard operators that run exactly one of their subgraphs, once, and return
            its results.
    """

    views: Collection[str]
    in_place: Mapping[str, tuple[int, ...]]
    branches: Collection[str] = frozenset()

    def is_view(self, op: Op) -> bool:
        """Return whether the first output of an op is a view of its first input."""
        return op.type in self.views and op.domain in STANDARD_DOMAINS

    def in_place_inputs(self, op: Op) -> tuple[int, ...]:
        """Return the positions of the inputs that the first output of an op may overwrite."""
        return self.in_place.get(qualified_name(op), ())

    def runs_one_body(self, op: Op) -> bool:
        """Return whether an op, such as If, runs exactly one of its subgraphs and returns its results."""
        return op.type in self.branches and op.domain in STANDARD_DOMAINS


_VIEWS = frozenset(names_of(lambda each: each.is_view))
_BRANCHES = frozenset(names_of(lambda each: each.runs_one_body))

SHARE_NOTHING = Aliasing(frozenset(), {})
"""Levels 0 and 1: every var has storage of its own."""

SHARE_SAFELY = Aliasing(
    _VIEWS, {each.name: each.in_place for each in OPERATORS if each.in_place}, _BRANCHES
)
"""Level 2: views, results in place, branches."""

SHARE_VIEWS = Aliasing(_VIEWS, {}, _BRANCHES)
"""Views and branches without writing in place: ONNX Runtime with `enable_mem_reuse` off.

Measured on all models of the test collection: the peaks agree to 0.01 %."""


def share_storage(
    program: Program,
    sizes: Mapping[VarId, Size],
    aliasing: Aliasing = SHARE_SAFELY,
    live: Mapping[VarId, LiveRange] | None = None,
    clock: Sequence[Step] | None = None,
) -> dict[VarId, BufferId]:
    """Return the buffer id of each var in ``sizes``: the name of the oldest var on its bytes.

    Args:
        program: The ops in the order in which they run.
        sizes: The planned vars that may share bytes. Vars that need storage of their own
            (graph inputs and outputs, excluded vars) are not among them.
        aliasing: The operators whose vars may share bytes.
        live: ``live_ranges(program)``, if the caller has it already.
        clock: ``steps(program)``, if the caller has it already.
    """
    if not aliasing.views and not aliasing.in_place and not aliasing.branches:
        return dict(zip(sizes, map(BufferId, sizes), strict=True))
    clock = tuple(steps(program)) if clock is None else clock
    live = live_ranges(program, clock) if live is None else live
    ops = [step.op for step in clock]
    has_branches = any(map(aliasing.runs_one_body, ops))
    blocks = defining_blocks(program, aliasing.runs_one_body) if has_branches else None
    groups = _Groups(live, sizes, blocks)
    # Views first: both later steps give bytes to a var together with all of its views.
    _unite_views(aliasing, ops, groups)
    # Branch results before results in place, which must not overwrite a result of another branch
    # that has the same bytes (`_Groups.may_overwrite`).
    if blocks is not None:
        for branch_op in blocks.branch_ops:
            _unite_branch_results(branch_op, blocks, groups)
    _unite_results_in_place(aliasing, clock, groups)
    return groups.buffers()


def _unite_views(aliasing: Aliasing, ops: Sequence[Op], groups: _Groups) -> None:
    """Put every view into the group of its base, if both are planned and have the same size."""
    number, sizes = groups.number, groups.sizes
    repeated_bodies = [body for op in ops if op.repeats for body in op.bodies]
    carried_inputs = {var for body in repeated_bodies for var in body.inputs}
    carried_results = {var for body in repeated_bodies for var in body.outputs}
    for op in ops:
        if not (aliasing.is_view(op) and op.inputs and op.outputs):
            continue
        base, view = number.get(op.inputs[0]), number.get(op.outputs[0])
        if base is None or view is None or sizes[base] != sizes[view]:
            continue
        # The root of a group is its oldest var. So a view of a body's input has the input as its root.
        is_view_of_input = groups.vars[groups.root(base)] in carried_inputs
        # A runtime copies the results of a repeated body into its inputs one by one. If the body swaps two inputs,
        # and the results were the inputs' bytes, the first copy would overwrite the source of the second.
        if op.outputs[0] in carried_results and is_view_of_input:
            continue
        groups.unite(base, view)


def _unite_branch_results(
    branch_op: BranchOp, blocks: DefiningBlocks, groups: _Groups
) -> None:
    """Let each output of an If share its bytes with the result at the same position of each branch.

    With the results (a, b) of one branch and (c, d) of the other, the first output shares with a and c. A result
    that must be copied (`_shareable_results`), or has another size than the output, shares nothing.
    """
    op, sizes = branch_op.op, groups.sizes
    outputs = [groups.number.get(name) for name in op.outputs]  # None: not planned
    for body, path in zip(op.bodies, branch_op.body_paths, strict=True):
        results = _shareable_results(body, path, blocks, groups)  # None: not shareable
        # In an invalid model a branch may have too few results: it shares nothing with the last outputs.
        for output, result in zip(outputs, results, strict=False):
            if output is not None and result is not None and sizes[result] == sizes[output]:
                groups.unite(result, output)


def _unite_results_in_place(
    aliasing: Aliasing, clock: Sequence[Step], groups: _Groups
) -> None:
    """Put the first output of each op into the group of the input that it may overwrite, if any."""
    for step in clock:
        positions = aliasing.in_place_inputs(step.op)
        if not positions or not step.op.outputs:
            continue
        result = groups.number.get(step.op.outputs[0])
        if result is None:  # not planned
            continue
        source = _overwritable_input(step, result, positions, groups)
        if source is not None:
            groups.unite(source, result)


def _shareable_results(
    body: Block, path: BlockPath, blocks: DefiningBlocks, groups: _Groups
) -> list[int | None]:
    """Return, per result of a branch, the number of its var; None if it is not planned, or must be copied.

    Two kinds of results are copied into the output of the If:

    - A result that the branch does not compute: a capture, a constant, or a view of one. It has
      other readers and is live in the other branch.
    - A result that the branch returns twice, itself or as a view: two outputs need two buffers.
    """
    results = [groups.number.get(var) for var in body.outputs]
    # The root of a group, its oldest var, tells where the bytes of a result come from.
    roots = [None if result is None else groups.root(result) for result in results]
    return [
        result
        if root is not None
        and roots.count(root) == 1
        and blocks.is_inside(groups.vars[root], path)
        else None
        for result, root in zip(results, roots, strict=True)
    ]


class _Groups:
    """Groups of vars on the same bytes: a union-find forest whose roots are the oldest vars.

    Vars are denoted by their numbers 0, 1, ...

    Attributes:
        vars: the id of each var.
        number: the number of each var, by its id.
        sizes: the size of each var.
        end: for each root, the tick after the last use of its group. Other entries are stale.
        _live: the live range of each var, by its id.
        _parent: for each var, a var of its group that is nearer to the root; for a root itself.
        _blocks: the blocks that define the vars, which tell whether two vars are of exclusive
            branches. None if the program has no branches.
        _members: the vars of each group, by its root. Empty if the program has no branches.
    """

    def __init__(
        self,
        live: Mapping[VarId, LiveRange],
        sizes: Mapping[VarId, Size],
        blocks: DefiningBlocks | None,
    ) -> None:
        """Put each var in ``sizes`` into a group of its own. ``blocks`` is None if there are no branches."""
        self.vars = tuple(sizes)
        self.number = {var: number for number, var in enumerate(sizes)}
        self.sizes = tuple(sizes.values())
        self.end = [live[var].end for var in sizes]
        self._live = live
        self._blocks = blocks
        numbers = range(len(sizes))
        # Members are asked for only to compare their blocks. Without branches they would cost time.
        self._members = {} if blocks is None else {number: [number] for number in numbers}
        self._parent = list(numbers)

    def root(self, var: int) -> int:
        """Return the root of a var's group. Shortens the path to it for later calls."""
        parent = self._parent
        while parent[var] != var:
            parent[var] = parent[parent[var]]  # path halving
            var = parent[var]
        return var

    def unite(self, first: int, second: int) -> None:
        """Merge the groups of two vars. The older of both roots becomes the root of the merged group."""
        first_root, second_root = self.root(first), self.root(second)
        if first_root == second_root:
            return
        # The sort is stable: if both roots are equally old, that of ``first`` counts as the older one.
        older, younger = sorted((first_root, second_root), key=self._start)
        if self._blocks is not None:  # members are stored only to compare their blocks
            self._members[older] += self._members.pop(younger)
        self._parent[younger] = older
        self.end[older] = max(self.end[older], self.end[younger])

    def may_overwrite(self, source: int, result: int, start: int) -> bool:
        """Return whether ``result``, defined at tick ``start``, may get the bytes of ``source``, last used then.

        Other vars may be on the bytes of ``result`` already, and be defined before it in another branch of an If::

            If(c, then: a = Neg(b); u = Abs(s), else: e = Relu(s))    a and e share bytes: the If's output

        ``result`` is ``e`` and ``source`` is ``s``: on the bytes of ``s``, ``a`` would overwrite ``s`` before ``u``
        reads it.
        """
        blocks = self._blocks
        if blocks is None:  # no group holds results of branches
            return True
        source_group = self._members[self.root(source)]
        result_group = self._members[self.root(result)]
        # Members of the result's group that begin at ``start`` or later collide with nothing: after it, the bytes of
        # ``source`` are free.
        early_results = [var for var in result_group if self._start(var) < start]
        if not early_results:  # nearly always
            return True
        for early, other in product(early_results, source_group):
            # Ends are exclusive.
            overlap = self._start(early) < self._end(other) and (
                self._start(other) < self._end(early)
            )
            # Of two exclusive branches only one runs, so that their vars are never live together.
            if overlap and not blocks.are_exclusive(self.vars[early], self.vars[other]):
                return False
        return True

    def buffers(self) -> dict[VarId, BufferId]:
        """Return the buffer id of each var: the name of the root of its group."""
        ids = [BufferId(var) for var in self.vars]
        return {var: ids[self.root(index)] for index, var in enumerate(self.vars)}

    def _start(self, var: int) -> int:
        return self._live[self.vars[var]].start

    def _end(self, var: int) -> int:
        return self._live[self.vars[var]].end


def _overwritable_input(
    step: Step, result: int, overwritable: Sequence[int], groups: _Groups
) -> int | None:
    """Return the first input, as the number of its var, that an op's first output may overwrite; None if none.

    The input is planned and has the size of the output, ``result``, and nothing else needs the bytes of the input:

    - they are not used after the tick at which the op runs,
    - the op does not read them by another input (`_is_read_elsewhere`),
    - they do not collide with results of other branches (`_Groups.may_overwrite`).

    ``overwritable`` has the positions of the inputs that the operator may overwrite, ascending.
    """
    op, inputs = step.op, step.op.inputs
    number, sizes = groups.number, groups.sizes
    size = sizes[result]
    for position in overwritable:
        if position >= len(inputs):
            return None
        source = number.get(inputs[position])
        if source is None:  # not planned
            continue
        root = groups.root(source)
        if groups.end[root] != step.start + 1:  # the op is not the last use
            continue
        # `is not` first: it is faster, and equal sizes are usually one object.
        if sizes[source] is not size and sizes[source] != size:
            continue
        if len(inputs) > 1 and _is_read_elsewhere(op, position, overwritable, root, groups):
            continue
        if groups.may_overwrite(source, result, step.start):
            return source
    return None


def _is_read_elsewhere(
    op: Op, position: int, overwritable: Sequence[int], root: int, groups: _Groups
) -> bool:
    """Return whether an op may still read bytes of an input after the output is written over them.

    The output would overwrite the input at ``position``, a var of the group with this ``root``. Of each
    input at an ``overwritable`` position, the kernel reads an element before it writes the output
    element in that place, so the same var may be at several of them, as in Mul(x, x). Two kinds of
    other inputs are read later:

    - The same var at a position that is not overwritable: the updates of a scatter, or the third term
      of a sum.
    - Another var of the group: its elements may be in another order than those of the output.
    """
    source = op.inputs[position]
    for index, other in enumerate(op.inputs):
        if other == source:
            if index not in overwritable:
                return True
        elif other in groups.number and groups.root(groups.number[other]) == root:
            return True
    return False
