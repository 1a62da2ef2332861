"""Search an order of one block: cheap methods first, until an order meets the lower bound.

    schedulers      one pass over the ops each
    sweep           demand-driven orders from both ends
    prove           lower bounds by minimum cuts
    search_states   best-first search over sets of executed ops

All methods but the first orders work on the contracted graph, whose ops are clusters of ops.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
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
from memplan_cli.ordering.exact_search import best_first
from memplan_cli.ordering.list_orders import SCHEDULERS, file_order
from memplan_cli.ordering.task_graph import displacement, peak

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.work_budget import WorkBudget
    from memplan_cli.ordering.task_graph import Order, TaskGraph

_SEARCHED_CLUSTERS = 4000
"""Graphs with more clusters are not searched by states or pairs."""

_SWEEP_WORK_PER_OP = 6
"""Units of work spent for each op of a demand-driven order."""

_SLACK_SHIFT = 13
"""Groups of a sweep may raise the live bytes by the peak shifted right by so many bits."""

_LIMIT_SHIFT = 6
"""Sweeps are repeated under a limit lower by the peak shifted right by so many bits."""

_LEAST_PERCENT = 4
"""Percent of the budget that the search by states gets even if the best peak nearly meets the bound."""

_CUTS_DIVISOR, _PAIRS_DIVISOR = 24, 8
"""Cuts at single ops, and at pairs of ops, get the remaining budget divided by these."""


@dataclass(slots=True)
class BlockOrder:
    """The best order found so far for one block, and a lower bound for all its orders.

    Attributes:
        graph: the ops.
        bound: a lower bound on the peak of all orders.
        peaks: the least peak that each method reached.
        order: the order with the least peak; of equal ones the closest to the file's.
        chosen: the method that found ``order``.
        cluster_order: the order of clusters, groups of ops that run directly one after the other (`contract`),
            with the least peak; of equal ones the first. Lower bounds are proved at its fullest steps.
        cluster_peak: the peak of ``cluster_order``. ``order`` may have a lower one.
    """

    graph: TaskGraph
    bound: int
    peaks: dict[str, int] = field(default_factory=dict)
    order: Order = field(default_factory=list)
    chosen: str = ""
    cluster_peak: int = NO_LIMIT
    cluster_order: Order = field(default_factory=list)

    def offer(self, method: str, order: Order) -> None:
        """Keep an order of ops as ``order`` if it is the best so far; update the peak of the method."""
        order_peak = peak(self.graph, order)
        self._keep_if_best(method, order, order_peak)
        self._update_peak_of(method, order_peak)

    def offer_clusters(self, method: str, contracted: ContractedGraph, order: Order) -> int:
        """Offer an order of clusters, and the order of their ops; return the peak, which is that of both.

        The order of clusters is kept as ``cluster_order`` if its peak is the lowest so far.
        """
        order_peak = peak(contracted.graph, order)
        if order_peak < self.cluster_peak:
            self.cluster_peak, self.cluster_order = order_peak, order
        if order_peak <= self.peak:  # else it cannot be the best, and need not be expanded
            self._keep_if_best(method, contracted.expand(order), order_peak)
        self._update_peak_of(method, order_peak)
        return order_peak

    def _keep_if_best(self, method: str, order: Order, order_peak: int) -> None:
        """Keep an order if its peak is the least, or the same and it is closer to the file's order."""
        is_better = not self.chosen or order_peak < self.peak
        if is_better or (
            order_peak == self.peak and displacement(order) < displacement(self.order)
        ):
            self.order, self.chosen = order, method

    def _update_peak_of(self, method: str, order_peak: int) -> None:
        """Lower the least peak of a method to that of an order that it found."""
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

    The cheap schedulers run first; then sweeps, proofs and the search over states, until the order is proved or
    the budget is used. ``progress`` is called with the best peak and the bound after each of these three.
    """
    best = BlockOrder(graph, max(local_bounds(graph), default=graph.initial_bytes))
    for name, scheduler in SCHEDULERS.items():
        best.offer(name, scheduler(graph))
    if best.proved and best.chosen == "file":
        return best
    # Clusters in the order of the file are tried even if the order is proved: with the same peak, they may be
    # closer to the order of the file, which is preferred.
    contracted = contract(graph)
    best.offer_clusters("tightened", contracted, file_order(contracted.graph))
    search = _ClusterSearch(best, contracted)
    for method in (search.run_sweeps, search.prove, search.search_states):
        if best.proved or budget.is_over():
            break
        method(budget)
        progress(Detail(f"order: {best.peak} bytes by {best.chosen}, none below {best.bound}"))
    return best


class _ClusterSearch:
    """The methods of `order_block` on the contracted graph.

    Each method spends a part of the budget, and improves the order or the bound of ``best``, the
    result that is built. Creating an instance raises the bound of ``best`` to the bounds of single steps.

    Attributes:
        _best: the result.
        _contracted: the clusters, as ops of a graph, and the ops of each.
        _is_small: whether the graph is small enough for searches by states and pairs.
    """

    def __init__(self, best: BlockOrder, contracted: ContractedGraph) -> None:
        self._best = best
        self._contracted = contracted
        self._is_small = contracted.graph.size <= _SEARCHED_CLUSTERS
        best.bound = max(best.bound, *local_bounds(contracted.graph))

    def run_sweeps(self, budget: WorkBudget) -> None:
        """Offer orders of clusters from eight sweeps, then from sweeps under limits below the best peak.

        A sweep (`demand_orders`) runs the clusters of a chain one after the other, each after the clusters that it
        depends on. In between it runs small groups of clusters that raise the live bytes by at most a slack.
        All sweeps spend at most about a third of the budget.
        """
        best, clusters = self._best, self._contracted.graph
        part = budget.part(budget.remaining // 3)  # spends from ``budget`` too
        path = longest_path(clusters)
        waiting = deque(
            Sweep(direction, chain, slack)
            for slack in (best.peak >> _SLACK_SHIFT, 0)  # a little, or none
            for chain in (path, ())  # without a chain, all clusters in the order of the file
            for direction in (Direction.BACKWARD, Direction.FORWARD)
        )
        while waiting and not best.proved and not part.is_over():
            parameters = waiting.popleft()
            part.spend(_SWEEP_WORK_PER_OP * clusters.size)
            former_best_peak = best.peak
            order_of_clusters = sweep(clusters, parameters)
            order_peak = best.offer_clusters("demand", self._contracted, order_of_clusters)
            # Each of the eight is made again with a limit, and with lower limits as long as the best peak falls.
            is_unlimited = parameters.limit == NO_LIMIT
            if is_unlimited or order_peak < former_best_peak:
                limit = best.peak - (best.peak >> _LIMIT_SHIFT)
                waiting.append(replace(parameters, limit=limit))

    def prove(self, budget: WorkBudget) -> None:
        """Raise the lower bound on the peak of all orders by minimum cuts, until it equals the best peak.

        A minimum cut at a cluster (a group of ops that run directly one after the other) is a lower bound on the
        bytes live at the cluster's step, in every order. Cuts are made at the clusters with most live bytes in
        the best order, and in small graphs at pairs of clusters.
        """
        best, order = self._best, self._best.cluster_order
        # Each op of this graph is a cluster.
        bounds = BoundSearch(self._contracted.graph, best.bound)
        bounds.try_promising_ops(
            order, best.peak, budget.part(budget.remaining // _CUTS_DIVISOR)
        )
        if self._is_small:
            bounds.try_pairs(order, best.peak, budget.part(budget.remaining // _PAIRS_DIVISOR))
        best.bound = bounds.bound

    def search_states(self, budget: WorkBudget) -> None:
        """Search small graphs by states, and improve the best order or the bound.

        If the best peak is 1 % or more above the bound, all of the budget may be spent; if it is closer, a
        part of the budget in proportion, but at least `_LEAST_PERCENT`.
        """
        if not self._is_small:
            return
        best = self._best
        one_percent_of_bound = max(best.bound // 100, 1)
        proportional_percent = 100 * (best.peak - best.bound) // one_percent_of_bound
        percent = min(100, max(_LEAST_PERCENT, proportional_percent))
        part = budget.part(budget.remaining * percent // 100)
        result = best_first(self._contracted.graph, best.bound, best.peak, part)
        best.bound = max(best.bound, result.bound)
        if result.order is not None:
            best.offer_clusters("exact", self._contracted, result.order)
