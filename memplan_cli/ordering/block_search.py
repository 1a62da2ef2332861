"""All methods on one block, the cheap ones first, until one meets the bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.core.progress import Detail
from memplan_cli.ordering.contraction import ContractedGraph, contract
from memplan_cli.ordering.cut_bounds import BoundSearch, local_bounds
from memplan_cli.ordering.demand_orders import (
    NO_LIMIT,
    Direction,
    Sweep,
    longest_path,
    sweep,
)
from memplan_cli.ordering.division import divide
from memplan_cli.ordering.exact_search import best_first
from memplan_cli.ordering.list_orders import SCHEDULERS
from memplan_cli.ordering.source_order import restore_source_order
from memplan_cli.ordering.task_graph import displacement, peak, trace
from memplan_cli.ordering.work_budget import WorkBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.ordering.task_graph import Order, TaskGraph

SEARCHED = 4000
"""Graphs with more clusters than this are searched in windows, not as a whole."""

_SWEEP_COST = 6
"""Work, in steps looked at, of one op in a demand-driven order."""

_SLACK = 13
"""Demand-driven orders may give away one part in two to the power of so many at an op."""

_STEP = 6
"""They are scheduled again under a limit lower by one part in two to the power of so many."""

_NEAR = 5
"""Orders count as equally good if they are within one part in two to the power of so many."""

_DIVIDED = 4
"""How many orders are divided."""

_LEAST_SHARE = 15
"""Percent of the budget that is spent on dividing even where the last gap is tiny."""

_IDLE = 2
"""After so many tries that have not helped, the best order is left as it is."""

RESTORE_WORK = 300_000
"""Work for restoring the source order."""


@dataclass(slots=True)
class Solution:
    """The orders found so far, and what is known of all others."""

    graph: TaskGraph
    bound: int
    peaks: dict[str, int] = field(default_factory=dict)
    order: Order = field(default_factory=list)
    chosen: str = ""
    starts: list[tuple[int, Order]] = field(default_factory=list)
    """Peaks and orders of the clusters, worth improving."""
    looked_at: Order = field(default_factory=list)
    """The order whose heavy ops were looked at last, for a bound."""
    unrestored: Order = field(default_factory=list)
    """The best order before the source order was restored; empty where that is the file's."""

    _certificate: BoundSearch | None = None

    def certificate(self, graph: TaskGraph) -> BoundSearch:
        """Return what is known of the bound, in clusters."""
        if self._certificate is None:
            self._certificate = BoundSearch(graph, self.bound)
        self._certificate.bound = max(self._certificate.bound, self.bound)
        return self._certificate

    def offer(self, name: str, order: Order | None) -> None:
        """Take an order into account; of equals the nearest to the file's is kept."""
        if order is not None:
            self._take(name, order, peak(self.graph, order))

    def offer_clusters(
        self,
        name: str,
        small: ContractedGraph,
        order: Order | None,
        reached: int | None = None,
    ) -> int:
        """Take an order of the clusters into account, and return its peak.

        ``reached`` is that peak, if the caller has it.
        """
        if order is None:
            return self.peak
        reached = peak(small.graph, order) if reached is None else reached
        self.starts.append((reached, order))
        if reached <= self.peak:
            self._take(name, small.expand(order), reached)
        self.peaks[name] = min(reached, self.peaks.get(name, reached))
        return reached

    def _take(self, name: str, order: Order, found: int) -> None:
        if not self.chosen or found < self.peak or self._is_nearer(order, found):
            self.order, self.chosen = order, name
        self.peaks[name] = min(found, self.peaks.get(name, found))

    def _is_nearer(self, order: Order, found: int) -> bool:
        return found == self.peak and displacement(order) < displacement(self.order)

    @property
    def peak(self) -> int:
        """The least peak found."""
        return self.peaks[self.chosen]

    @property
    def proved(self) -> bool:
        """Whether no order can be better."""
        return self.peak <= self.bound


def solve(graph: TaskGraph, budget: WorkBudget, tell: Callable[[str], None]) -> Solution:
    """Find an order of a block with a small peak, and a bound on the peak of any order."""
    found = Solution(graph, max(local_bounds(graph), default=graph.initial_bytes))
    for name in ("file", "runtime_default"):
        found.offer(name, SCHEDULERS[name](graph))
    if found.proved and found.chosen == "file":
        return found
    small = contract(graph)
    found.bound = max(found.bound, *local_bounds(small.graph))
    for name in SCHEDULERS:
        if found.proved and name != "file":
            break
        shown = "tightened" if name == "file" else name
        found.offer_clusters(shown, small, SCHEDULERS[name](small.graph))
    for method in (_sweep, _prove, _glance, _divide, _prove_again, _search):
        if found.proved or not budget.in_time:
            break
        method(found, small, budget)
        tell(Detail(f"order: {found.peak} bytes by {found.chosen}, none below {found.bound}"))
    if found.chosen != "file":
        found.unrestored = found.order
        found.order = restore_source_order(
            graph, found.order, found.peak, WorkBudget(RESTORE_WORK)
        )
        found.peaks[found.chosen] = peak(graph, found.order)
    return found


def _prove(found: Solution, small: ContractedGraph, budget: WorkBudget) -> None:
    """Raise the bound: along a path, by pairs, and where the best order is heavy."""
    certificate = found.certificate(small.graph)
    found.looked_at = order = min(found.starts)[1]
    path = longest_path(small.graph)
    certificate.try_path(path, found.peak, budget.part(budget.remaining // 8))
    certificate.try_heavy_ops(order, found.peak, budget.part(budget.remaining // 24))
    if small.graph.size <= SEARCHED:
        certificate.try_pairs(order, found.peak, budget.part(budget.remaining // 8))
    found.bound = certificate.bound


def _prove_again(found: Solution, small: ContractedGraph, budget: WorkBudget) -> None:
    """Look where the order that has been found since is heavy."""
    if small.graph.size <= SEARCHED:
        _prove(found, small, budget)
    elif min(found.starts)[1] != found.looked_at:
        certificate = found.certificate(small.graph)
        certificate.try_heavy_ops(
            min(found.starts)[1], found.peak, budget.part(budget.remaining // 2)
        )
        found.bound = certificate.bound


def _sweep(found: Solution, small: ContractedGraph, budget: WorkBudget) -> None:
    """Schedule driven by demand, from both ends; then again, under what has been reached."""
    graph = small.graph
    allowed = budget.part(budget.remaining // 3)
    path = longest_path(graph)
    hows = [
        Sweep(way, chain, slack)
        for slack in (found.peak >> _SLACK, 0)
        for chain in (path, ())
        for way in (Direction.BACKWARD, Direction.FORWARD)
    ]
    while hows and not found.proved and budget.in_time:
        how = hows.pop(0)
        allowed.spend(_SWEEP_COST * graph.size)
        before = found.peak
        reached = found.offer_clusters("demand", small, sweep(graph, how))
        if allowed.remaining <= 0:
            return
        if how.limit == NO_LIMIT or reached < before:
            under = min(found.peak, reached) - (min(found.peak, reached) >> _STEP)
            hows.append(replace(how, limit=under))


def _divide(found: Solution, small: ContractedGraph, budget: WorkBudget) -> None:
    """Lower the worst steps of the best orders that one pass finds.

    All have a short try; what comes out best goes on, widely and narrowly in turn, for as
    long as that helps.
    """
    size = small.graph.size
    most = budget.remaining // 2 if size <= SEARCHED else budget.remaining
    allowed = budget.part(most * max(_effort_share(found), _LEAST_SHARE) // 100)
    promising = _promising(found, small.graph)
    share = allowed.remaining // (2 * len(promising))
    for order in promising:
        _lowered(found, small, order, allowed.part(share), 0)
    best = min(found.starts)[1]
    idle, least = 0, size
    while idle < _IDLE and not found.proved and allowed.remaining > 0 and allowed.in_time:
        before = found.peak
        best = _lowered(found, small, best, allowed.part(allowed.remaining // 2), least)
        idle = 0 if found.peak < before else idle + 1
        least = 0 if least else size


def _lowered(
    found: Solution, small: ContractedGraph, order: Order, budget: WorkBudget, least: int
) -> Order:
    """Divide an order, and take what comes out into account."""
    if found.proved or budget.remaining <= 0:
        return order
    divided = divide(small.graph, order, found.bound, budget, least)
    found.bound = max(found.bound, divided.bound)
    found.offer_clusters("divide", small, divided.order, divided.peak)
    return divided.order


def _promising(found: Solution, graph: TaskGraph) -> list[Order]:
    """Return the orders to improve: near the best, those with few heavy steps first."""
    near, heavy = found.peak >> _NEAR, found.peak - (found.peak >> _NEAR)
    ranked: list[tuple[int, int, Order]] = []
    for at, (reached, order) in enumerate(sorted(found.starts, key=itemgetter(0))):
        if reached <= found.peak + near or not ranked:
            steps = trace(graph, order)[0]
            ranked.append((sum([step > heavy for step in steps]), at, order))
    return [order for *_, order in sorted(ranked)[:_DIVIDED]]


def _glance(found: Solution, small: ContractedGraph, budget: WorkBudget) -> None:
    """Search exactly, but not long: graphs that are easy are done with."""
    if small.graph.size <= SEARCHED:
        _exact(found, small, budget, budget.remaining // 10)


def _search(found: Solution, small: ContractedGraph, budget: WorkBudget) -> None:
    """Search exactly for as long as there is budget."""
    if small.graph.size <= SEARCHED:
        budget = budget.part(budget.remaining * _effort_share(found) // 100)
        _exact(found, small, budget, budget.remaining)


def _effort_share(found: Solution) -> int:
    """Return how many percent of the budget the last gap is worth: all from 1 % on."""
    return min(100, max(4, 10_000 * (found.peak - found.bound) // max(found.bound, 1)))


def _exact(found: Solution, small: ContractedGraph, budget: WorkBudget, work: int) -> None:
    outcome = best_first(small.graph, found.bound, found.peak, budget.allow(work))
    found.bound = max(found.bound, outcome.bound)
    found.offer_clusters("exact", small, outcome.order)
