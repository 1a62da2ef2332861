"""All methods on one block, the cheap ones first, until one meets the bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.beam import beam
from memplan_cli.transforms.ordering.bound import CutBounds, local_bounds
from memplan_cli.transforms.ordering.candidates import CANDIDATES
from memplan_cli.transforms.ordering.contract import Contracted, contract
from memplan_cli.transforms.ordering.divide import divide
from memplan_cli.transforms.ordering.effort import Effort
from memplan_cli.transforms.ordering.exact import best_first
from memplan_cli.transforms.ordering.graph import moved, peak, trace
from memplan_cli.transforms.ordering.straighten import straighten

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.transforms.ordering.graph import Order, TaskGraph

WIDTHS = (4, 16, 64)
"""Of the beams, tried in turn."""

SEARCHED = 4000
"""Graphs with more clusters than this are searched in windows, not as a whole."""

_CUTS = 24
"""Ops of each kind (heavy in the order, heavy by themselves) that are tried for a bound."""

_APART = 100
"""Neighbours need much the same: of the steps of an order, at most so many are tried."""

_STRAIGHTEN = 300_000
"""Work for putting ops back to their place in the file."""

_CUT_WORK = 500_000
"""Edges that one cut may look at: a cut short of its end is a bound all the same."""


@dataclass(slots=True)
class Solution:
    """The orders found so far, and what is known of all others."""

    graph: TaskGraph
    bound: int
    peaks: dict[str, int] = field(default_factory=dict)
    order: Order = field(default_factory=list)
    chosen: str = ""

    def offer(self, name: str, order: Order | None) -> None:
        """Take an order into account; of equals the nearest to the file's is kept."""
        if order is None:
            return
        found = peak(self.graph, order)
        if not self.chosen or (found, moved(order)) < (self.peak, moved(self.order)):
            self.order, self.chosen = order, name
        self.peaks[name] = min(found, self.peaks.get(name, found))

    @property
    def peak(self) -> int:
        """The least peak found."""
        return self.peaks[self.chosen]

    @property
    def proved(self) -> bool:
        """Whether no order can be better."""
        return self.peak <= self.bound


def solve(graph: TaskGraph, effort: Effort, tell: Callable[[str], None]) -> Solution:
    """Find an order of a block with a small peak, and a bound on the peak of any order."""
    found = Solution(graph, max(local_bounds(graph), default=graph.start))
    for name in ("file", "runtime_default"):
        found.offer(name, CANDIDATES[name](graph))
    if found.proved and found.chosen == "file":
        return found
    small = contract(graph)
    found.bound = max(found.bound, *local_bounds(small.graph))
    for name in CANDIDATES:
        if found.proved and name != "file":
            break
        order = small.expand(CANDIDATES[name](small.graph))
        found.offer("tightened" if name == "file" else name, order)
    for method in (_cut, _glance, _divide, _search):
        if found.proved or not effort.in_time:
            break
        method(found, small, effort)
        tell(f"order: {found.peak} bytes by {found.chosen}, none below {found.bound}")
    if found.chosen != "file":
        found.order = straighten(graph, found.order, Effort(_STRAIGHTEN))
    return found


def cut_bound(graph: TaskGraph, order: Order) -> int:
    """Return a bound on any order's peak, looked for where this order is heavy."""
    cuts = CutBounds(graph)
    bounds = [cuts.at(op, _CUT_WORK).bound for op in _worst_steps(graph, order)]
    return max([*bounds, *local_bounds(graph)], default=graph.start)


def _worst_steps(graph: TaskGraph, order: Order) -> list[int]:
    """Return the ops at whose steps an order needs most, far from one another."""
    steps, _, _ = trace(graph, order)
    apart = len(order) // _APART
    chosen: list[int] = []
    for at in sorted(range(len(steps)), key=lambda at: -steps[at])[: _APART * _CUTS]:
        if all(abs(at - other) > apart for other in chosen):
            chosen.append(at)
    return [order[at] for at in chosen[:_CUTS]]


def _cut(found: Solution, small: Contracted, effort: Effort) -> None:
    """Raise the bound at the ops where the best order is heavy, or that are so alone."""
    effort = effort.part(effort.left // 12)
    cuts = CutBounds(small.graph)
    clusters = small.clusters()
    worst = [clusters[op] for op in _worst_steps(found.graph, found.order)]
    local = local_bounds(small.graph)
    heavy = sorted(range(len(local)), key=lambda op: -local[op])[:_CUTS]
    for op in dict.fromkeys(worst + heavy):
        if found.proved or effort.left <= 0 or not effort.in_time:
            return
        cut = cuts.at(op, 4 * effort.left)
        effort.spend(cut.work // 4)
        found.bound = max(found.bound, cut.bound)


def _divide(found: Solution, small: Contracted, effort: Effort) -> None:
    """Lower the worst steps of each of the orders that one pass finds, best first.

    All are divided narrowly, the best of them widely too.
    """
    graph = small.graph
    share = 8 if graph.size <= SEARCHED else 2
    orders = [candidate(graph) for candidate in CANDIDATES.values()]
    orders.sort(key=lambda order: peak(graph, order))
    tries = [(order, 0) for order in orders]
    tries.insert(1, (orders[0], graph.size))
    for order, least in tries:
        if found.proved or not effort.in_time:
            return
        part = effort.part(effort.left // share)
        divided = divide(graph, order, found.bound, part, least)
        if least and peak(graph, divided.order) < peak(graph, order):
            divided = divide(graph, divided.order, found.bound, part)
        found.bound = max(found.bound, divided.bound)
        found.offer("divide", small.expand(divided.order))


def _glance(found: Solution, small: Contracted, effort: Effort) -> None:
    """Search exactly, but not long: graphs that are easy are done with."""
    if small.graph.size <= SEARCHED:
        _exact(found, small, effort, effort.left // 10)


def _search(found: Solution, small: Contracted, effort: Effort) -> None:
    """Search the whole graph by beams, then exactly for as long as there is effort."""
    if small.graph.size > SEARCHED:
        return
    effort = effort.part(effort.left * _worth(found) // 100)
    for width in WIDTHS:
        if found.proved:
            return
        keep_going = effort.allow(effort.left // 4)
        order = beam(small.graph, found.bound, found.peak, width, keep_going)
        if order is not None:
            divided = divide(small.graph, order, found.bound, effort.part(effort.left // 8))
            found.offer("beam", small.expand(divided.order))
    if not found.proved:
        _exact(found, small, effort, effort.left)


def _worth(found: Solution) -> int:
    """Return how many percent of the effort the last gap is worth: all from 1 % on."""
    return min(100, max(4, 10_000 * (found.peak - found.bound) // max(found.bound, 1)))


def _exact(found: Solution, small: Contracted, effort: Effort, work: int) -> None:
    outcome = best_first(small.graph, found.bound, found.peak, effort.allow(work))
    found.bound = max(found.bound, outcome.bound)
    found.offer("exact", None if outcome.order is None else small.expand(outcome.order))
