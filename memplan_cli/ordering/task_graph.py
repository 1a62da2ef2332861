"""One block as integers: which op needs which, and what each step takes and gives back.

An order is a permutation of ``range(graph.size)``, the file's order being the identity.
Vars that are views of one another are one *tensor* here; whether a result may reuse
its input's bytes depends on the order and is decided during the walk, by the same rule as
`analysis.aliasing.share_storage`. The numbers therefore agree with `live_peak` to the
byte, except for subgraphs that run at most once (If): what dies inside of those is counted
to the op's end.

An order with all that is live along it, and parts of it as problems of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Order = list[int]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The ops of one block; all tables but the last three are indexed by op.

    ``need`` is what an op's step takes beyond what was live before: its results, and for
    a control-flow op the most that these take. Sizes are in bytes.
    """

    preds: tuple[tuple[int, ...], ...]
    succs: tuple[tuple[int, ...], ...]
    opens: tuple[tuple[int, ...], ...]
    """The tensors that begin with this op."""
    touches: tuple[tuple[int, ...], ...]
    """The tensors that this op begins or reads."""
    replaces: tuple[tuple[int, ...], ...]
    """The tensors whose bytes the first result reuses, if they die here.

    None of them outlives the block.
    """
    saved: tuple[int, ...]
    """What the step saves if one of ``replaces`` dies."""
    need: tuple[int, ...]
    weight: tuple[int, ...]
    """Bytes of each tensor."""
    uses: tuple[int, ...]
    """How many ops touch each tensor, plus one where it outlives the block."""
    outlives: tuple[bool, ...]
    """Whether the block gives the tensor."""
    start: int
    """Bytes live before the first op."""
    taken: tuple[int, ...] = field(init=False)
    """For each op the bytes of the tensors that it begins."""

    def __post_init__(self) -> None:
        weight = self.weight
        taken = [sum([weight[t] for t in row]) if row else 0 for row in self.opens]
        object.__setattr__(self, "taken", tuple(taken))

    @property
    def size(self) -> int:
        """Number of ops."""
        return len(self.preds)

    def descendants(self, op: int) -> set[int]:
        """Return the ops that need an op, directly or not."""
        found: set[int] = set()
        stack = [op]
        while stack:
            fresh = [succ for succ in self.succs[stack.pop()] if succ not in found]
            found.update(fresh)
            stack += fresh
        return found

    def resident(self) -> int:
        """Return the bytes that are live throughout: no op here opens or touches them."""
        given = set().union(*self.touches).difference(*self.opens)
        return self.start - sum([self.weight[tensor] for tensor in given])

    def kept(self) -> int:
        """Return the bytes that are live after the last op, in whatever order they ran."""
        touched = set().union(*self.touches)
        dead = sum([self.weight[t] for t in touched if not self.outlives[t]])
        return self.start + sum(self.taken) - dead


def trace(graph: TaskGraph, order: Sequence[int]) -> tuple[list[int], list[int], int]:
    """Return the bytes live at each step of an order, before each, and after the last."""
    left = list(graph.uses)
    weight, touches, taken, needs = graph.weight, graph.touches, graph.taken, graph.need
    replaces, saved = graph.replaces, graph.saved
    live = graph.start
    steps, before = [], []
    for op in order:
        need = needs[op]
        for tensor in replaces[op]:
            if left[tensor] == 1:
                need -= saved[op]
                break
        before.append(live)
        steps.append(live + need)
        live += taken[op]
        for tensor in touches[op]:
            left[tensor] -= 1
            if not left[tensor]:
                live -= weight[tensor]
    return steps, before, live


def peak(graph: TaskGraph, order: Sequence[int]) -> int:
    """Return the most bytes live at one step of an order."""
    return max(trace(graph, order)[0], default=graph.start)


def moved(order: Sequence[int]) -> int:
    """Return by how many places an order moves the ops, all in all."""
    return sum(abs(at - op) for at, op in enumerate(order))


class Walk:
    """An order of a graph that is changed part by part.

    ``steps`` and ``before`` are the bytes live at each place of the order, and just
    before it.
    """

    def __init__(self, graph: TaskGraph, order: Sequence[int]) -> None:
        self.graph = graph
        self.order = list(order)
        self.steps, self.before, _ = trace(graph, self.order)
        self._last = [-1] * len(graph.weight)
        for at, op in enumerate(self.order):
            for tensor in graph.touches[op]:
                self._last[tensor] = at

    def section(self, begin: int, end: int) -> TaskGraph:
        """Return the places ``begin <= at < end`` as a graph, numbered from 0.

        What is live before and after them is live at its start and outlives it; a tensor
        whose last reader is among them dies there, whatever else has read it before.
        """
        graph, ops = self.graph, self.order[begin:end]
        number = {op: at for at, op in enumerate(ops)}
        touched = [graph.touches[op] for op in ops]
        tensors = sorted(set().union(*touched))
        known = {tensor: at for at, tensor in enumerate(tensors)}
        touches = tuple([tuple([known[t] for t in row]) for row in touched])
        uses = [0] * len(tensors)
        for row in touches:
            for tensor in row:
                uses[tensor] += 1
        last, outlives = self._last, graph.outlives
        out = tuple([outlives[t] or last[t] >= end for t in tensors])
        return TaskGraph(
            preds=_near(graph.preds, ops, number),
            succs=_near(graph.succs, ops, number),
            opens=tuple([tuple([known[t] for t in graph.opens[op]]) for op in ops]),
            touches=touches,
            replaces=tuple(
                [
                    tuple([known[t] for t in row if not out[known[t]]]) if row else ()
                    for row in [graph.replaces[op] for op in ops]
                ]
            ),
            saved=tuple([graph.saved[op] for op in ops]),
            need=tuple([graph.need[op] for op in ops]),
            weight=tuple([graph.weight[t] for t in tensors]),
            uses=tuple(map(add, uses, out)),
            outlives=out,
            start=self.before[begin],
        )

    def splice(self, begin: int, part: TaskGraph, order: Sequence[int]) -> None:
        """Put a new order of a section in the section's place."""
        end = begin + part.size
        ops = self.order[begin:end]
        self.order[begin:end] = [ops[at] for at in order]
        self.steps[begin:end], self.before[begin:end], _ = trace(part, order)
        last, touches = self._last, self.graph.touches
        beyond = {t for op in ops for t in touches[op] if last[t] >= end}
        for at in range(begin, end):
            for tensor in touches[self.order[at]]:
                if tensor not in beyond:
                    last[tensor] = at

    @property
    def worst(self) -> tuple[int, int]:
        """The most live at one step, and at how many steps that is so: to be lowered."""
        most = max(self.steps, default=self.graph.start)
        return most, self.steps.count(most)


def _near(
    rows: Sequence[Sequence[int]], ops: Sequence[int], number: Mapping[int, int]
) -> tuple[tuple[int, ...], ...]:
    """Return the neighbours of some ops among themselves, by their new numbers."""
    found = [[number[other] for other in rows[op] if other in number] for op in ops]
    return tuple([tuple(sorted(row)) if len(row) > 1 else tuple(row) for row in found])
