"""From a block of a program to its `TaskGraph`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import Aliasing, share_storage
from memplan_cli.analysis.branches import find_places
from memplan_cli.analysis.precedence import predecessors, successors
from memplan_cli.core.problem import LiveRange
from memplan_cli.core.program import VarId, blocks
from memplan_cli.ordering.task_graph import TaskGraph

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.terms import Terms


_NONE = -1
"""Stands for no tensor."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What is known of the vars before any order is chosen.

    ``roots`` gives the var whose bytes each planned var's view shows (itself, mostly);
    ``given`` are those of them whose bytes a branch's result brought. ``sizes`` decides who
    may share, ``numbers`` what it costs; ``results`` are what the graph gives, in bytes of
    their own.
    """

    roots: Mapping[VarId, VarId]
    sizes: Mapping[VarId, Size]
    numbers: Mapping[VarId, int]
    aliasing: Aliasing
    pinned: int
    given: Collection[VarId] = ()
    results: Collection[VarId] = ()


@dataclass(frozen=True, slots=True)
class Inner:
    """What a subgraph takes, in bytes: its inputs, the most beyond them, and its results.

    ``least`` is a bound on what any order of it takes beyond its inputs.
    """

    inputs: int
    peak: int
    kept: int
    least: int


def storage_facts(program: Program, terms: Terms, numbers: Mapping[VarId, int]) -> Storage:
    """Find the views, which are the same in every order, and the cost of each var."""
    sizes, aliasing, alone = terms.sizes, terms.aliasing, frozenset(terms.pinned)
    results = frozenset(var for var in program.body.outputs if var in sizes) - alone
    apart = alone | results
    sharing = {var: size for var, size in sizes.items() if var not in apart}
    views = Aliasing(aliasing.views, {})
    # No in-place rule looks at the ranges, so any will do.
    always = dict.fromkeys(sharing, LiveRange(0, 1))
    buffers = share_storage(program, sharing, views, always) if views.views else {}
    roots = {var: VarId(buffers.get(var, var)) for var in sizes if var not in alone}
    given: frozenset[VarId] = frozenset()
    if aliasing.branches and any(op.bodies for op in program.body.ops):
        buffers = share_storage(program, sharing, replace(aliasing, in_place={}), always)
        brought = ((var, str(buffer)) for var, buffer in buffers.items())
        given = frozenset(v for v, buffer in brought if roots[v] == v and buffer != v)
        places = find_places(program, aliasing.runs_one)
        # A result placed where another branch made its own takes no more than that.
        free = (var for var in given if places.are_exclusive(var, VarId(buffers[var])))
        numbers = {**numbers, **dict.fromkeys(free, 0)}
    return Storage(
        roots,
        sizes,
        numbers,
        aliasing,
        sum(numbers[var] for var in alone if var in numbers),
        given,
        results,
    )


def task_graph(block: Block, facts: Storage, taken: Mapping[int, int]) -> TaskGraph:
    """Number a block's ops and tensors.

    Args:
        block: Its ops are numbered in the order in which they stand.
        facts: From `storage_facts`.
        taken: What each control-flow op takes, results included.
    """
    builder = _Builder(facts)
    start = 0 if block.path else facts.pinned + builder.given(block.inputs)
    touches = tuple([builder.touch(op) for op in block.ops])
    outliving = builder.outliving(block.outputs)
    weight = builder.weight
    outlives = tuple([tensor in outliving for tensor in range(len(weight))])
    uses = list(map(int, outlives))
    for touched in touches:
        for tensor in touched:
            uses[tensor] += 1
    need = [sum([weight[t] for t in row]) if row else 0 for row in builder.opens]
    for index, total in taken.items():
        need[index] = total
    preds = predecessors(block)
    replaces = tuple([builder.replaceable(op, outliving) for op in block.ops])
    return TaskGraph(
        preds=preds,
        succs=successors(preds),
        opens=tuple(builder.opens),
        touches=touches,
        replaces=replaces,
        saved=tuple(
            facts.numbers[op.outputs[0]] if sources else 0
            for op, sources in zip(block.ops, replaces, strict=True)
        ),
        need=tuple(need),
        weight=tuple(weight),
        uses=tuple(uses),
        outlives=outlives,
        start=start,
    )


def tensor_names(block: Block, facts: Storage) -> tuple[VarId, ...]:
    """Return the tensors of a block's graph by their numbers."""
    given = () if block.path else block.inputs
    begun = (*given, *(var for op in block.ops for var in op.outputs))
    return tuple(var for var in begun if facts.roots.get(var) == var and facts.numbers[var])


def most_taken(op: Op, facts: Storage, bodies: Sequence[Inner]) -> int:
    """Return what a control-flow op takes in the orders chosen for them.

    They run one after the other, and what one gives is live to the end of the op. It is too
    much only where a subgraph that runs at most once is the last to read an outer var.
    """
    results = result_bytes(op, facts)
    inputs = sum(body.inputs for body in bodies)
    kept, most = 0, 0
    for body in bodies:
        most = max(most, kept + body.peak)
        kept += body.kept
    if op.repeats:
        return inputs + max(most, kept) + results
    return inputs + max(most, kept + results)


def least_taken(op: Op, facts: Storage, bodies: Sequence[Inner]) -> int:
    """Return a bound on what a control-flow op takes while all that it reads is live."""
    if not op.repeats:
        return 0
    inputs = sum(body.inputs for body in bodies)
    return inputs + max(body.least for body in bodies) + result_bytes(op, facts)


def result_bytes(op: Op, facts: Storage) -> int:
    """Return the bytes of a control-flow op's results, without those that a branch brings."""
    own = [v for v in op.outputs if facts.roots.get(v) == v and v not in facts.given]
    return sum(facts.numbers[var] for var in own)


class _Builder:
    """Numbers a block's tensors in the order in which they begin."""

    def __init__(self, facts: Storage) -> None:
        self.weight: list[int] = []
        self.opens: list[tuple[int, ...]] = []
        self._facts = facts
        self._tensor: dict[VarId, int] = {}

    def given(self, inputs: Sequence[VarId]) -> int:
        """Number what is live before the first op, and return its bytes."""
        before = [self._open(var) for var in inputs]
        return sum(self.weight[tensor] for tensor in before if tensor is not None)

    def touch(self, op: Op) -> tuple[int, ...]:
        """Number what an op begins, and return all that it touches, subgraphs included."""
        opened = [self._open(var) for var in op.outputs]
        self.opens.append(tuple([tensor for tensor in opened if tensor is not None]))
        roots, tensor = self._facts.roots, self._tensor
        mentioned = _mentioned(op) if op.bodies else op.inputs + op.outputs
        found = {tensor.get(roots.get(var, var), _NONE) for var in mentioned}
        found.discard(_NONE)
        return tuple(sorted(found)) if len(found) > 1 else tuple(found)

    def _open(self, var: VarId) -> int | None:
        if self._facts.roots.get(var) != var or not self._facts.numbers[var]:
            return None
        self._tensor[var] = len(self.weight)
        self.weight.append(self._facts.numbers[var])
        return self._tensor[var]

    def outliving(self, results: Sequence[VarId]) -> set[int]:
        """Return the tensors that the block gives."""
        roots = {self._facts.roots[var] for var in results if var in self._facts.roots}
        return {self._tensor[root] for root in roots if root in self._tensor}

    def replaceable(self, op: Op, outliving: Collection[int]) -> tuple[int, ...]:
        """Return the tensors that the first result may replace, in some order.

        The same rule as in `share_storage`, less the question who dies.
        """
        facts = self._facts
        positions = facts.aliasing.replaced_by(op)
        if not positions or not op.outputs:
            return ()
        if op.outputs[0] not in self._tensor or op.outputs[0] in facts.results:
            return ()
        shown = [facts.roots.get(var) for var in op.inputs]
        found = []
        for position in positions:
            root = shown[position] if position < len(shown) else None
            if root is None or root not in self._tensor:
                continue
            tensor = self._tensor[root]
            if tensor not in outliving and self._may_replace(op, position, positions, shown):
                found.append(tensor)
        return tuple(found)

    def _may_replace(
        self, op: Op, position: int, positions: Sequence[int], shown: Sequence[VarId | None]
    ) -> bool:
        """Whether an input, if it dies there, may give its bytes to the first output.

        ``shown`` are the roots of all inputs. An input that stands at several positions is
        asked about at the first of them.
        """
        sizes, inputs = self._facts.sizes, op.inputs
        var, root = inputs[position], shown[position]
        if sizes[var] != sizes[op.outputs[0]]:
            return False
        if shown.count(root) == 1:
            return True
        # Read again elsewhere, it would be read after the first write.
        same = [at for at, other in enumerate(shown) if other == root]
        if not all(inputs[at] == var and at in positions for at in same):
            return False
        return position == min(same, key=positions.index)


def _mentioned(op: Op) -> Iterable[VarId]:
    """Return what a control-flow op reads and makes, and what is read and made in them."""
    inside = [block for body in op.bodies for block in blocks(body)]
    found = [*op.inputs, *op.outputs, *(var for block in inside for var in block.outputs)]
    found += [var for block in inside for inner in block.ops for var in inner.inputs]
    found += [var for block in inside for inner in block.ops for var in inner.outputs]
    return found
