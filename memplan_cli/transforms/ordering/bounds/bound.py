"""Lower bounds at single ops: the least that is live while an op runs, in any order.

Whatever the order, the ops before a given one form a set with its ancestors, not its
descendants, and with each op that op's ancestors. The bytes live at the op's step are a
function of that set alone, and its least value over all such sets is a minimum cut: of a
network with an edge of each tensor's weight that is cut where the set begins the tensor
and does not end it. The flow found so far is a bound at any time, so work can be limited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.flow import INFINITE, SINK, SOURCE, Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.transforms.ordering.graph import TaskGraph

_NONE = -1
"""Stands for no op."""


def local_bounds(graph: TaskGraph) -> list[int]:
    """Return for each op what it reads and makes itself: a bound on any order's peak."""
    weight, resident, taken = graph.weight, graph.resident(), graph.taken
    result = []
    for op, touched in enumerate(graph.touches):
        read = sum([weight[tensor] for tensor in touched]) - taken[op]
        result.append(resident + read + least_need(graph, op))
    return result


def least_need(graph: TaskGraph, op: int) -> int:
    """Return what an op's step takes if one of its inputs can be replaced."""
    return graph.need[op] - (graph.saved[op] if graph.replaces[op] else 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """A division of the ops at one of them, with the least live at its step.

    If the work allowed was enough, ``bound`` is reached by both divisions that are given;
    else it is only a bound.
    """

    bound: int
    work: int
    _split: _Split

    def earliest(self) -> set[int]:
        """Return the smallest set of ops that can have run before the op, at the cut."""
        return self._split.source_side()

    def latest(self) -> set[int]:
        """Return the largest."""
        return self._split.not_sink_side()


class CutBounds:
    """Bounds on the peak of any order of a graph, one op at a time."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._resident = graph.resident()
        self._readers: list[list[int]] = [[] for _ in graph.weight]
        openers = [_NONE] * len(graph.weight)
        for op, touched in enumerate(graph.touches):
            opened = graph.opens[op]
            for tensor in touched:
                if tensor in opened:
                    openers[tensor] = op
                else:
                    self._readers[tensor].append(op)
        facts = zip(openers, self._readers, graph.weight, graph.outlives, strict=True)
        self._tensors = [
            (opener, readers, weight, outlives)
            for opener, readers, weight, outlives in facts
            # What no op makes or reads is resident.
            if weight and (readers or opener != _NONE)
        ]

    def at(
        self, op: int, work: int, before: Sequence[int] = (), after: Sequence[int] = ()
    ) -> Cut:
        """Return the least that can be live at an op's step, looking at ``work`` edges.

        Args:
            op: The op, one that ``before`` does not need and that does not need ``after``.
            work: A limit to the effort.
            before: Ops taken to run before this one.
            after: Ops taken to run after it.
        """
        side = sides(self._graph, op, before, after)
        tensors = self._graph.replaces[op] or (-1,)
        cuts = [self._cut(op, side, tensor, work) for tensor in tensors]
        best = min(cuts, key=lambda cut: cut.bound)
        return replace(best, work=sum(cut.work for cut in cuts))

    def _cut(self, op: int, side: list[bool | None], replaced: int, work: int) -> Cut:
        """Return the cut if the op replaces the given tensor, where that can die."""
        graph = self._graph
        split = _Split(graph, side)
        least = self._resident + graph.need[op]
        for opener, readers, weight, outlives in self._tensors:
            if opener == _NONE or side[opener] is not False:
                least += split.tensor(opener, readers, weight, outlives)
        if replaced >= 0:
            saved = graph.saved[op]
            others = [reader for reader in self._readers[replaced] if reader != op]
            least += split.unless_before(others, saved) - saved
        value, done = split.network.flow(work)
        return Cut(least + value, done + graph.size + len(split.network.heads), split)


class _Split:
    """The ops divided in those before a given op, on the source's side, and the others."""

    def __init__(self, graph: TaskGraph, side: list[bool | None]) -> None:
        self.network = Network()
        self._side = side
        undecided = [op for op, fixed in enumerate(side) if fixed is None]
        self._node = dict(zip(undecided, self.network.nodes(len(undecided)), strict=True))
        node, edge = self._node, self.network.edge
        for op, number in node.items():
            for pred in graph.preds[op]:
                if pred in node:
                    edge(number, node[pred], INFINITE)

    def tensor(self, opener: int, readers: list[int], weight: int, outlives: bool) -> int:  # noqa: FBT001 - a fact of the tensor, not a way to behave
        """Charge a tensor where its opener is before the op and some reader is not.

        The opener is not one that is surely behind the op: its tensor is not live there.
        What is sure is returned, the rest goes into the network.
        """
        if opener == _NONE or self._side[opener]:
            return weight if outlives else self.unless_before(readers, weight)
        if outlives or any(self._side[reader] is False for reader in readers):
            self.network.edge(self._node[opener], SINK, weight)
        else:
            self._charge(self._node[opener], readers, weight)
        return 0

    def unless_before(self, users: list[int], weight: int) -> int:
        """Charge ``weight`` unless all the users are before the op."""
        side = self._side
        undecided = []
        for user in users:
            if not side[user]:
                if side[user] is False:
                    return weight
                undecided.append(user)
        self._charge(SOURCE, undecided, weight)
        return 0

    def source_side(self) -> set[int]:
        """Return the ops that must be before the op: what the residual source reaches."""
        level, _ = self.network.levels()
        return self._before({at for at, steps in enumerate(level) if steps >= 0})

    def not_sink_side(self) -> set[int]:
        """Return the ops that need not be after the op: what cannot reach the sink."""
        ahead = self.network.reaching_sink()
        return self._before({at for at, reaches in enumerate(ahead) if not reaches})

    def _before(self, chosen: set[int]) -> set[int]:
        sure = {op for op, side in enumerate(self._side) if side}
        return sure | {op for op, node in self._node.items() if node in chosen}

    def _charge(self, tail: int, users: list[int], weight: int) -> None:
        """Cut an edge of ``weight`` if ``tail`` is before the op and some user is not."""
        if len(users) == 1:
            self.network.edge(tail, self._node[users[0]], weight)
        elif users:
            gate = self.network.node()
            self.network.edge(tail, gate, weight)
            for user in users:
                self.network.edge(gate, self._node[user], INFINITE)


def sides(
    graph: TaskGraph, op: int, before: Sequence[int], after: Sequence[int]
) -> list[bool | None]:
    """Return for each op whether it is surely before (True), or not (False), the given."""
    side: list[bool | None] = [None] * graph.size
    for neighbours, others, value in (
        (graph.preds, before, True),
        (graph.succs, after, False),
    ):
        stack = [*neighbours[op], *others]
        while stack:
            other = stack.pop()
            if side[other] is None:
                side[other] = value
                stack.extend(neighbours[other])
    side[op] = False
    return side
