"""All methods on one block, the cheap ones first, until one meets the bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.beam import beam
from memplan_cli.transforms.ordering.bound import CutBounds, local_bounds
from memplan_cli.transforms.ordering.candidates import CANDIDATES
from memplan_cli.transforms.ordering.contract import Contracted, contract
from memplan_cli.transforms.ordering.exact import best_first
from memplan_cli.transforms.ordering.graph import peak, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.transforms.ordering.effort import Effort
    from memplan_cli.transforms.ordering.graph import Order, TaskGraph

WIDTHS = (4, 16, 64)
"""Of the beams, tried in turn."""

SEARCHED = 4000
"""Graphs with more clusters than this are searched in windows, not as a whole."""

_CUTS = 24
"""Ops of each kind (heavy in the order, heavy by themselves) that are tried for a bound."""

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
        """Take an order into account; of equals the first one offered is kept."""
        if order is None:
            return
        found = peak(self.graph, order)
        if not self.chosen or found < self.peak:
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
    if found.proved:
        return found
    small = contract(graph)
    for name in ("reverse_post_order", "greedy"):
        found.offer(name, small.expand(CANDIDATES[name](small.graph)))
    found.bound = max(found.bound, *local_bounds(small.graph))
    for method in (_cut, _search):
        if found.proved or not effort.in_time:
            break
        method(found, small, effort)
        tell(f"order: {found.peak} bytes by {found.chosen}, none below {found.bound}")
    return found


def cut_bound(graph: TaskGraph, order: Order) -> int:
    """Return a bound on any order's peak, looked for where this order is heavy."""
    cuts = CutBounds(graph)
    bounds = [cuts.at(op, _CUT_WORK)[0] for op in _worst_steps(graph, order)]
    return max([*bounds, *local_bounds(graph)], default=graph.start)


def _worst_steps(graph: TaskGraph, order: Order) -> list[int]:
    """Return the ops at whose steps an order needs most."""
    steps, _ = usage(graph, order)
    return [order[at] for at in sorted(range(len(steps)), key=lambda at: -steps[at])[:_CUTS]]


def _cut(found: Solution, small: Contracted, effort: Effort) -> None:
    """Raise the bound at the ops where the best order is heavy, or that are so alone."""
    cuts = CutBounds(small.graph)
    clusters = small.clusters()
    worst = [clusters[op] for op in _worst_steps(found.graph, found.order)]
    local = local_bounds(small.graph)
    heavy = sorted(range(len(local)), key=lambda op: -local[op])[:_CUTS]
    for op in dict.fromkeys(worst + heavy):
        if found.proved or not effort.in_time:
            return
        bound, work = cuts.at(op, _CUT_WORK)
        effort.spend(work // 4)
        found.bound = max(found.bound, bound)


def _search(found: Solution, small: Contracted, effort: Effort) -> None:
    """Search the whole graph: a short exact search, then beams, then a long one."""
    if small.graph.size > SEARCHED:
        return
    _exact(found, small, effort, effort.left // 20)
    for width in WIDTHS:
        if found.proved:
            return
        keep_going = effort.allow(effort.left // 4)
        order = beam(small.graph, found.bound, found.peak, width, keep_going)
        found.offer("beam", None if order is None else small.expand(order))
    if not found.proved:
        _exact(found, small, effort, effort.left)


def _exact(found: Solution, small: Contracted, effort: Effort, work: int) -> None:
    outcome = best_first(small.graph, found.bound, found.peak, effort.allow(work))
    found.bound = max(found.bound, outcome.bound)
    found.offer("exact", None if outcome.order is None else small.expand(outcome.order))
