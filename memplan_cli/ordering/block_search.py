"""Search an order of one block: cheap methods first, until an order meets the lower bound.

    schedulers      one pass over the ops each
    sweep           demand-driven orders from both ends
    prove           lower bounds by minimum cuts
    search_briefly  best-first search over sets of executed ops, with a tenth of the work
    divide          division of the fullest steps by minimum cuts
    search_exactly  best-first search with the remaining work

All methods but the first orders work on the contracted graph, whose ops are clusters of ops.
"""

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

_SEARCHED_CLUSTERS = 4000
"""Graphs with more clusters are divided in sections only, not searched by states or pairs."""

_SWEEP_WORK_PER_OP = 6
"""Units of work spent for each op of a demand-driven order."""

_SLACK_SHIFT = 13
"""Groups of a sweep may raise the live bytes by the peak shifted right by so many bits."""

_LIMIT_SHIFT = 6
"""Sweeps are repeated under a limit lower by the peak shifted right by so many bits."""

_NEAR_SHIFT = 5
"""Orders are worth dividing within the best peak shifted right by so many bits."""

_DIVIDED_ORDERS = 4
"""Number of orders that are divided."""

_LEAST_PERCENT = 15
"""Percent of the budget that division gets even if the gap to the bound is tiny."""

_IDLE_ROUNDS = 2
"""Division ends after so many rounds without a lower peak."""

_RESTORE_WORK = 300_000
"""Units of work for moving ops back to their places in the file."""


@dataclass(slots=True)
class BlockOrder:
    """The best order found so far for one block, and a lower bound for all its orders.

    Attributes:
        graph: the ops.
        bound: a lower bound on the peak of all orders.
        peaks: the least peak that each method reached.
        order: the order with the least peak; of equal ones the closest to the file's.
        chosen: the method that found ``order``.
        cluster_orders: (peak, order of clusters) of all orders that may be improved.
    """

    graph: TaskGraph
    bound: int
    peaks: dict[str, int] = field(default_factory=dict)
    order: Order = field(default_factory=list)
    chosen: str = ""
    cluster_orders: list[tuple[int, Order]] = field(default_factory=list)

    def offer(self, method: str, order: Order) -> None:
        """Record an order of ops, and keep it if it is the best."""
        self._keep_if_best(method, order, peak(self.graph, order))

    def offer_clusters(
        self,
        method: str,
        contracted: ContractedGraph,
        order: Order,
        order_peak: int | None = None,
    ) -> int:
        """Record an order of clusters, keep it if it is the best, and return its peak.

        ``order_peak`` is that peak, if the caller knows it.
        """
        order_peak = peak(contracted.graph, order) if order_peak is None else order_peak
        self.cluster_orders.append((order_peak, order))
        if order_peak <= self.peak:
            self._keep_if_best(method, contracted.expand(order), order_peak)
        self.peaks[method] = min(order_peak, self.peaks.get(method, order_peak))
        return order_peak

    def _keep_if_best(self, method: str, order: Order, order_peak: int) -> None:
        """Record the peak of a method, and keep its order if it is better or as good and closer."""
        is_better = not self.chosen or order_peak < self.peak
        if is_better or (
            order_peak == self.peak and displacement(order) < displacement(self.order)
        ):
            self.order, self.chosen = order, method
        self.peaks[method] = min(order_peak, self.peaks.get(method, order_peak))

    @property
    def peak(self) -> int:
        """The least peak found."""
        return self.peaks[self.chosen]

    @property
    def proved(self) -> bool:
        """Whether the best order meets the lower bound."""
        return self.peak <= self.bound


def order_block(
    graph: TaskGraph, budget: WorkBudget, progress: Callable[[str], None]
) -> BlockOrder:
    """Search an order with a low peak, and a lower bound on the peak of all orders.

    Args:
        graph: The ops of the block, in the file's order.
        budget: The work that all methods may spend together.
        progress: Called with the best peak and the bound after each method.
    """
    best = BlockOrder(graph, max(local_bounds(graph), default=graph.initial_bytes))
    for name in ("file", "runtime_default"):
        best.offer(name, SCHEDULERS[name](graph))
    if best.proved and best.chosen == "file":
        return best
    search = _ClusterSearch(best, contract(graph))
    search.run_schedulers()
    for method in (
        search.sweep,
        search.prove,
        search.search_briefly,
        search.divide,
        search.search_exactly,
    ):
        if best.proved or not budget.in_time:
            break
        method(budget)
        progress(Detail(f"order: {best.peak} bytes by {best.chosen}, none below {best.bound}"))
    if best.chosen != "file":
        best.order = restore_source_order(
            graph, best.order, best.peak, WorkBudget(_RESTORE_WORK)
        )
        best.peaks[best.chosen] = peak(graph, best.order)  # may have fallen
    return best


class _ClusterSearch:
    """The methods of `order_block` on the contracted graph.

    Each method spends a part of the budget, and improves the order or the bound of ``best``, the
    result that is built. Creating an instance raises its bound to those of single steps.

    Attributes:
        _best: the result.
        _contracted: the clusters, with the ops of each.
        _graph: the graph of the clusters.
        _is_searched: whether the graph is small enough for searches by states and pairs.
    """

    def __init__(self, best: BlockOrder, contracted: ContractedGraph) -> None:
        self._best = best
        self._contracted = contracted
        self._graph = contracted.graph
        self._is_searched = contracted.graph.size <= _SEARCHED_CLUSTERS
        best.bound = max(best.bound, *local_bounds(contracted.graph))

    def run_schedulers(self) -> None:
        """Offer the order of each scheduler, until one is proved optimal.

        The file's order of the clusters is offered in any case: it is the closest to the file's.
        It is called "tightened", because the ops of each cluster run directly one after the other.
        """
        for name, scheduler in SCHEDULERS.items():
            if self._best.proved and name != "file":
                break
            method = "tightened" if name == "file" else name
            self._best.offer_clusters(method, self._contracted, scheduler(self._graph))

    def sweep(self, budget: WorkBudget) -> None:
        """Offer demand-driven orders from both ends, then again under limits below their peaks.

        A sweep is repeated once, and again as long as it lowers the best peak. Spends at most
        about a third of the budget.
        """
        best, graph = self._best, self._graph
        part = budget.part(budget.remaining // 3)
        path = longest_path(graph)
        sweeps = [
            Sweep(direction, chain, slack)
            for slack in (best.peak >> _SLACK_SHIFT, 0)
            for chain in (path, ())
            for direction in (Direction.BACKWARD, Direction.FORWARD)
        ]
        while sweeps and not best.proved and budget.in_time:
            parameters = sweeps.pop(0)
            part.spend(_SWEEP_WORK_PER_OP * graph.size)
            former_peak = best.peak
            order = sweep(graph, parameters)
            order_peak = best.offer_clusters("demand", self._contracted, order)
            if part.remaining <= 0:
                return
            if parameters.limit == NO_LIMIT or order_peak < former_peak:
                limit = min(best.peak, order_peak)
                sweeps.append(replace(parameters, limit=limit - (limit >> _LIMIT_SHIFT)))

    def prove(self, budget: WorkBudget) -> None:
        """Raise the bound by cuts at the fullest steps and at pairs of ops.

        Pairs are tried only in graphs that are searched by states.
        """
        best, order = self._best, self._best_clusters()
        bounds = BoundSearch(self._graph, best.bound)
        bounds.try_heavy_ops(order, best.peak, budget.part(budget.remaining // 24))
        if self._is_searched:
            bounds.try_pairs(order, best.peak, budget.part(budget.remaining // 8))
        best.bound = bounds.bound

    def _best_clusters(self) -> Order:
        """Return the order of clusters with the least peak."""
        _, order = min(self._best.cluster_orders)
        return order

    def search_briefly(self, budget: WorkBudget) -> None:
        """Search by states with a tenth of the budget, which suffices for easy graphs."""
        if self._is_searched:
            self._best_first(budget, budget.remaining // 10)

    def search_exactly(self, budget: WorkBudget) -> None:
        """Search by states with the rest of the budget, or less if the gap to the bound is small."""
        if self._is_searched:
            budget = budget.part(budget.remaining * self._worthwhile_percent() // 100)
            self._best_first(budget, budget.remaining)

    def _best_first(self, budget: WorkBudget, work: int) -> None:
        """Search by states with at most ``work`` units, and offer the result."""
        best = self._best
        result = best_first(self._graph, best.bound, best.peak, budget.allow(work))
        best.bound = max(best.bound, result.bound)
        if result.order is not None:
            best.offer_clusters("exact", self._contracted, result.order)

    def divide(self, budget: WorkBudget) -> None:
        """Lower the fullest steps of the best orders found so far.

        All promising orders get a short try. The best result is then divided in wide and in
        narrow sections in turn, for as long as that lowers the peak.
        """
        best, size = self._best, self._graph.size
        # The other half is for `search_exactly`.
        work = budget.remaining // 2 if self._is_searched else budget.remaining
        percent = max(self._worthwhile_percent(), _LEAST_PERCENT)
        part = budget.part(work * percent // 100)
        promising = self._promising_orders()
        share = part.remaining // (2 * len(promising))  # half of it for all short tries
        for order in promising:
            self._divided(order, part.part(share), 0)
        order = self._best_clusters()
        idle_rounds, smallest = 0, size  # wide sections first, then narrow ones, in turn
        while (
            idle_rounds < _IDLE_ROUNDS
            and not best.proved
            and part.remaining > 0
            and part.in_time
        ):
            former_peak = best.peak
            order = self._divided(order, part.part(part.remaining // 2), smallest)
            idle_rounds = 0 if best.peak < former_peak else idle_rounds + 1
            smallest = 0 if smallest else size

    def _divided(self, order: Order, budget: WorkBudget, smallest: int) -> Order:
        """Divide an order, offer the result, and return it.

        ``smallest`` is the number of ops in the smallest sections that are tried first.
        """
        best = self._best
        if best.proved or budget.remaining <= 0:
            return order
        divided = divide(self._graph, order, best.bound, budget, smallest)
        best.bound = max(best.bound, divided.bound)
        best.offer_clusters("divide", self._contracted, divided.order, divided.peak)
        return divided.order

    def _promising_orders(self) -> list[Order]:
        """Return orders with nearly the best peak, those with the fewest full steps first."""
        best = self._best
        margin = best.peak >> _NEAR_SHIFT
        ranked: list[tuple[int, int, Order]] = []
        by_peak = sorted(best.cluster_orders, key=itemgetter(0))
        for index, (order_peak, order) in enumerate(by_peak):
            if order_peak <= best.peak + margin or not ranked:
                steps = trace(self._graph, order).steps
                full_steps = sum([step > best.peak - margin for step in steps])
                ranked.append((full_steps, index, order))
        return [order for *_, order in sorted(ranked)[:_DIVIDED_ORDERS]]

    def _worthwhile_percent(self) -> int:
        """Return the percent of the budget to spend on the gap to the bound: all from 1 % on.

        4 percent are spent on the smallest gap.
        """
        best = self._best
        # In hundredths of a percent of the bound, so a gap of 1 % is 100.
        gap = 10_000 * (best.peak - best.bound) // max(best.bound, 1)
        return min(100, max(4, gap))
