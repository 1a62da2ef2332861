"""Witnesses of cuts: a maximum flow written down as weights that anybody can add up.

A tensor is live at an op's step if its opener ran before and some reader did not. So its
bytes, charged to its readers in any shares, are at least the sum of the shares whose reader
did not run, less those whose opener did not. An op that needs another one did not run unless
that did, and to count that, too, lowers no sum. A maximum flow gives the shares and counts of
which the sum is the minimum cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.analysis.flow import INFINITE, SINK, SOURCE, Network
from memplan_cli.core.results.certificate import Cut, Dual, Hold, Share
from memplan_cli.transforms.ordering.bounds.bound import sides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.transforms.ordering.graph import TaskGraph

_NONE = -1
"""Stands for no op, and for no tensor."""


@dataclass(frozen=True, slots=True)
class Question:
    """An op's step: what is live there at least, if another op is before or after it."""

    op: int
    before: int | None = None
    after: int | None = None


@dataclass(slots=True)
class _Charged:
    """A network whose edges know what they stand for."""

    network: Network = field(default_factory=Network)
    shares: list[tuple[int, int, int]] = field(default_factory=list)
    """Edge, tensor, reader."""
    holds: list[tuple[int, int, int]] = field(default_factory=list)
    """Edge, the op that is needed, the one that needs it."""

    def charge(
        self, tensor: tuple[int, int, int], node: Mapping[int, int], readers: Sequence[int]
    ) -> None:
        """Charge a tensor, given by its tail, number and bytes, to readers in any shares."""
        tail, number, weight = tensor
        gate = self.network.node()
        self.network.edge(tail, gate, weight)
        for reader in readers:
            if reader in node:
                self.shares.append((len(self.network.heads), number, reader))
                self.network.edge(gate, node[reader], INFINITE)

    def dual(self, replaced: int) -> Dual:
        """Return what flows now."""
        room = self.network.room
        # An edge backwards has room for what flows forwards.
        shares = [Share(t, r, room[e ^ 1]) for e, t, r in self.shares if room[e ^ 1]]
        holds = [Hold(p, q, room[e ^ 1]) for e, p, q in self.holds if room[e ^ 1]]
        return Dual(tuple(shares), tuple(holds), None if replaced == _NONE else replaced)


class Duals:
    """The witnesses of cuts in one graph."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._readers: list[list[int]] = [[] for _ in graph.weight]
        self._opener = [_NONE] * len(graph.weight)
        for op, touched in enumerate(graph.touches):
            for tensor in touched:
                if tensor in graph.opens[op]:
                    self._opener[tensor] = op
                else:
                    self._readers[tensor].append(op)

    def cut(self, question: Question, work: int) -> Cut:
        """Return the witness of a minimum cut, as good as the work allows."""
        graph, op = self._graph, question.op
        before = () if question.before is None else (question.before,)
        after = () if question.after is None else (question.after,)
        side = sides(graph, op, before, after)
        duals = [
            self._dual(op, side, tensor, work) for tensor in graph.replaces[op] or (_NONE,)
        ]
        return Cut(op, tuple(duals), question.before, question.after)

    def _dual(self, op: int, side: Sequence[bool | None], replaced: int, work: int) -> Dual:
        graph, charged = self._graph, _Charged()
        network = charged.network
        node = {at: network.node() for at, fixed in enumerate(side) if fixed is None}
        for at, number in node.items():
            for pred in graph.preds[at]:
                if pred in node:
                    charged.holds.append((len(network.heads), pred, at))
                    network.edge(number, node[pred], INFINITE)
        for tensor, weight in enumerate(graph.weight):
            opener, readers = self._opener[tensor], self._readers[tensor]
            if not weight or (opener != _NONE and side[opener] is False):
                continue
            stays = graph.outlives[tensor] or any(side[r] is False for r in readers)
            begins = opener == _NONE or side[opener] is True
            if stays and begins:
                continue
            tail = SOURCE if begins else node[opener]
            if stays:
                charged.shares.append((len(network.heads), tensor, op))
                network.edge(tail, SINK, weight)
            else:
                charged.charge((tail, tensor, weight), node, readers)
        if replaced != _NONE:
            others = [reader for reader in self._readers[replaced] if reader != op]
            if not any(side[reader] is False for reader in others):
                charged.charge((SOURCE, replaced, graph.saved[op]), node, others)
        network.flow(work)
        return charged.dual(replaced)
