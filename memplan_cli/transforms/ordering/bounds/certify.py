"""Lower bounds on the peak of all orders, by minimum cuts at the ops most likely to need much.

One cut bounds one op's step, whatever else runs when. Two ops of which neither needs the
other run one before the other: in either case both their steps have a bound, and the less
of the two cases bounds all orders. So an update that reads a gradient twice is seen to hold
more than either of its halves does.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.bounds.bound import CutBounds, local_bounds
from memplan_cli.transforms.ordering.graph import trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan_cli.transforms.ordering.effort import Effort
    from memplan_cli.transforms.ordering.graph import TaskGraph

_OPS = 24
"""Ops of each kind (heavy in the order, heavy by themselves) that are tried for a bound."""

_APART = 100
"""Neighbours need much the same: of the steps of an order, at most so many are tried."""

_ALONE_WORK = 500_000
"""Edges that one cut may look at where no effort is given."""

_PAIRED = 12
"""So many of the heaviest ops are tried in pairs."""

_ONE_CUT = 4
"""One cut may take one part in so many of an effort."""


def cut_bound(graph: TaskGraph, order: Sequence[int]) -> int:
    """Return a bound on any order's peak, looked for where this order is heavy."""
    cuts = CutBounds(graph)
    bounds = [cuts.at(op, _ALONE_WORK).bound for op in _worst(graph, order)]
    return max([*bounds, *local_bounds(graph)], default=graph.start)


class Certificate:
    """The best bound known on the peak of any order of one graph.

    Each cut is made once. A cut cut short by the effort is a bound all the same.
    """

    def __init__(self, graph: TaskGraph, bound: int) -> None:
        self._graph = graph
        self._cuts = CutBounds(graph)
        self._local = local_bounds(graph)
        self._least: dict[int, int] = {}
        self.bound = max([bound, *self._local])

    def look(self, order: Sequence[int], reached: int, effort: Effort) -> None:
        """Raise the bound where an order is heavy, and where ops are heavy by themselves."""
        heavy = sorted(range(len(self._local)), key=lambda op: -self._local[op])[:_OPS]
        worst = _worst(self._graph, order)
        turns = zip_longest(worst, heavy)
        self._try([op for turn in turns for op in turn if op is not None], reached, effort)

    def look_along(self, path: Sequence[int], reached: int, effort: Effort) -> None:
        """Raise the bound at ops spread over a path, then around the highest of them.

        Along a path the cuts are nested. Where a graph has one waist, as a training step
        has between forward and backward, they rise up to it and fall behind it.
        """
        apart, best = len(path) // 4, len(path) // 2
        while apart and effort.left > 0 and self.bound < reached:
            places = [at for at in (best, best - apart, best + apart) if 0 <= at < len(path)]
            self._try([path[at] for at in places], reached, effort)
            best = max(places, key=lambda at: self._least.get(path[at], -1))
            apart //= 2

    def _try(self, ops: Iterable[int], reached: int, effort: Effort) -> None:
        for op in ops:
            if self.bound >= reached or effort.left <= 0 or not effort.in_time:
                return
            if op not in self._least:
                self._least[op] = self._at(op, effort)
                self.bound = max(self.bound, self._least[op])

    def _at(
        self, op: int, effort: Effort, before: Sequence[int] = (), after: Sequence[int] = ()
    ) -> int:
        cut = self._cuts.at(op, max(4 * effort.left // _ONE_CUT, 1), before, after)
        effort.spend(cut.work // 4)
        return cut.bound

    def look_at_pairs(self, order: Sequence[int], reached: int, effort: Effort) -> None:
        """Raise the bound by the heaviest ops of an order, two at a time.

        A pair is worth trying only if neither op needs the other.
        """
        steps = trace(self._graph, order)[0]
        places = sorted(range(len(order)), key=lambda at: -steps[at])[:_PAIRED]
        ops = [order[at] for at in places]
        below = {op: self._graph.descendants(op) for op in ops}
        for second, other in enumerate(ops):
            for op in ops[:second]:
                if self.bound >= reached or effort.left <= 0 or not effort.in_time:
                    return
                if op not in below[other] and other not in below[op]:
                    self.bound = max(self.bound, self._pair(op, other, effort))

    def _pair(self, op: int, other: int, effort: Effort) -> int:
        """Return the least that the worse of two steps takes, whichever comes first."""
        cases = []
        for first, second in ((op, other), (other, op)):
            earlier = self._at(first, effort, after=(second,))
            later = self._at(second, effort, before=(first,))
            cases.append(max(earlier, later))
            if cases[-1] <= self.bound:
                break
        return min(cases)


def _worst(graph: TaskGraph, order: Sequence[int]) -> list[int]:
    """Return the ops at whose steps an order needs most, far from one another."""
    steps, _, _ = trace(graph, order)
    apart = len(order) // _APART
    chosen: list[int] = []
    for at in sorted(range(len(steps)), key=lambda at: -steps[at])[: _APART * _OPS]:
        if all(abs(at - other) > apart for other in chosen):
            chosen.append(at)
    return [order[at] for at in chosen[:_OPS]]
