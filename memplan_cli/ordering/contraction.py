"""Contraction of a task graph that keeps an optimum: ops that can go together do.

Two rules, each with its exchange argument. They hold in every state of every order, so
that an order of the clusters with the least peak is one of the ops with the least peak.

*Late*: an op that frees nothing (a chain that depends on weights only, a constant fill)
and has one successor runs just before it. Moved there from any earlier place, it makes
every step between them smaller, and its own step fits where its successor's does.

*Early*: an op whose only predecessor is ``first`` and which then always frees at least
what it takes, on no more than the step of ``first`` takes, runs just after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.core.results.certificate import Fusion
from memplan_cli.ordering.task_graph import TaskGraph

if TYPE_CHECKING:
    from collections.abc import Collection

    from memplan_cli.ordering.task_graph import Order


@dataclass(frozen=True, slots=True)
class Contracted:
    """A graph of clusters, and the ops of each in the order in which they run."""

    graph: TaskGraph
    members: tuple[tuple[int, ...], ...]
    fusions: tuple[Fusion, ...] = ()
    """What was fused, one after the other, each cluster by the id of one of its ops."""
    ids: tuple[int, ...] = ()
    """That id of each cluster."""

    def expand(self, order: Order) -> Order:
        """Turn an order of clusters into one of ops."""
        return [op for cluster in order for op in self.members[cluster]]

    def clusters(self) -> dict[int, int]:
        """Return the cluster of each op."""
        return {op: at for at, members in enumerate(self.members) for op in members}


def contract(graph: TaskGraph) -> Contracted:
    """Apply both rules until neither fits any more, in a few linear passes."""
    clusters = _Clusters(graph)
    while clusters.fuse_late() + clusters.fuse_early():
        pass
    return clusters.frozen()


class _Clusters:
    """The tables of a `TaskGraph` while they change.

    A cluster goes by the id of one of its ops. Tensors that only one cluster touches are
    in no table any more: what they take is in ``need``.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.preds = [set(before) for before in graph.preds]
        self.succs = [set(after) for after in graph.succs]
        self.users: list[set[int]] = [set() for _ in graph.weight]
        for op, touched in enumerate(graph.touches):
            for tensor in touched:
                self.users[tensor].add(op)
        self.touches = [set(touched) for touched in graph.touches]
        self.opens = [set(opened) for opened in graph.opens]
        for op, opened in enumerate(graph.opens):
            for tensor in opened:
                if self._only(tensor, op):
                    self.touches[op].discard(tensor)
                    self.opens[op].discard(tensor)
        weight = graph.weight
        self.taken = [sum([weight[t] for t in row]) if row else 0 for row in self.opens]
        self.replaces = [set(sources) for sources in graph.replaces]
        self.need = list(graph.need)
        self.members = [[op] for op in range(graph.size)]
        self.fusions: list[Fusion] = []

    def _only(self, tensor: int, *users: int) -> bool:
        """Whether only these will ever touch a tensor."""
        if self.graph.outlives[tensor] or len(self.users[tensor]) > len(users):
            return False
        return self.users[tensor] <= {*users}

    def fuse_late(self) -> int:
        """Apply the first rule from the front to the back; return how often it fitted."""
        fused = 0
        for op, members in enumerate(self.members):
            if not members or len(self.succs[op]) != 1 or not self._is_late(op):
                continue
            (succ,) = self.succs[op]
            inner = self._between(op, succ)
            saved = self.graph.saved[succ] if self.replaces[succ] else 0
            taken = self.taken[op]
            if self.need[op] > taken + self.need[succ] - saved:
                continue
            if self.replaces[succ] & inner:
                self.need[succ] -= saved
                self.replaces[succ] = set()
            self.need[succ] += taken
            self.members[succ] = members + self.members[succ]
            self._absorb(op, succ, inner)
            self.fusions.append(Fusion(op, succ, "late"))
            fused += 1
        return fused

    def _is_late(self, op: int) -> bool:
        outlives, opened = self.graph.outlives, self.opens[op]
        return not self.replaces[op] and all(
            tensor in opened or outlives[tensor] for tensor in self.touches[op]
        )

    def fuse_early(self) -> int:
        """Apply the second rule from the front to the back."""
        fused = 0
        for op, members in enumerate(self.members):
            if len(self.preds[op]) != 1:
                continue
            (first,) = self.preds[op]
            room = self.need[first] - self.taken[first] - self.need[op]
            saved = self.graph.saved[op] if self.replaces[op] else 0
            if room + saved < 0:
                continue
            inner = self._between(op, first)
            fits = room >= 0 or not inner.isdisjoint(self.replaces[op])
            if not fits or self.taken[op] > sum([self.graph.weight[t] for t in inner]):
                continue
            # What the second op reads too is not replaced by the first.
            self.replaces[first] -= self.touches[op]
            self.members[first] += members
            self._absorb(op, first, inner)
            self.fusions.append(Fusion(op, first, "early"))
            fused += 1
        return fused

    def _between(self, op: int, other: int) -> set[int]:
        """Return what ``op`` touches, either opens, and no other op will ever touch."""
        return {
            tensor
            for tensor in self.touches[op]
            if (tensor in self.opens[op] or tensor in self.opens[other])
            and self._only(tensor, op, other)
        }

    def _absorb(self, op: int, into: int, inner: set[int]) -> None:
        """Merge the tables of two neighbours, those of the first into the second's."""
        for tensor in self.touches[op]:
            self.users[tensor].discard(op)
            self.users[tensor].add(into)
        for table in (self.touches, self.opens):
            table[into] |= table[op]
            table[into] -= inner
        gone = sum([self.graph.weight[tensor] for tensor in inner])
        self.taken[into] += self.taken[op] - gone
        self._rewire(op, into, self.preds, self.succs)
        self._rewire(op, into, self.succs, self.preds)
        self.members[op] = []

    @staticmethod
    def _rewire(op: int, into: int, ahead: list[set[int]], back: list[set[int]]) -> None:
        for other in ahead[op]:
            back[other].discard(op)
            if other != into:
                back[other].add(into)
                ahead[into].add(other)
        ahead[op] = set()

    def frozen(self) -> Contracted:
        """Number the clusters so that they are topologically sorted, else as in the file."""
        ids = self._sorted_ids()
        number = {op: index for index, op in enumerate(ids)}
        graph = self.graph

        def row(sets: list[set[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple([_sorted(sets[op]) if sets[op] else () for op in ids])

        def edges(sets: list[set[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple([_sorted([number[other] for other in sets[op]]) for op in ids])

        contracted = TaskGraph(
            preds=edges(self.preds),
            succs=edges(self.succs),
            opens=row(self.opens),
            touches=row(self.touches),
            replaces=row(self.replaces),
            saved=tuple(graph.saved[op] for op in ids),
            need=tuple(self.need[op] for op in ids),
            weight=graph.weight,
            uses=tuple(map(int.__add__, map(len, self.users), map(int, graph.outlives))),
            outlives=graph.outlives,
            start=graph.start,
        )
        members = tuple(tuple(self.members[op]) for op in ids)
        return Contracted(contracted, members, tuple(self.fusions), tuple(ids))

    def _sorted_ids(self) -> list[int]:
        waiting = [len(before) for before in self.preds]
        ready = [
            (members[0], op)
            for op, members in enumerate(self.members)
            if members and not waiting[op]
        ]
        heapify(ready)
        ids = []
        while ready:
            _, op = heappop(ready)
            ids.append(op)
            for succ in self.succs[op]:
                waiting[succ] -= 1
                if not waiting[succ]:
                    heappush(ready, (self.members[succ][0], succ))
        return ids


def _sorted(numbers: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers)) if len(numbers) > 1 else tuple(numbers)
