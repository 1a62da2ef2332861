"""An anytime search: a first plan early, and better ones until nothing is gained or a limit is reached.

The goal is a budget, or without one the least memory in a run that is not too slow. Whatever
ends the search, its result is the best plan found until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import total_cost
from memplan_cli.core.results.observations import SLOWEST
from memplan_cli.features.chunking.bound import Need, lower_bound
from memplan_cli.features.chunking.columns import stage_with_copies
from memplan_cli.features.chunking.nested import stages_of_fewer_chunks
from memplan_cli.features.chunking.search import Limit
from memplan_cli.features.chunking.stage import ChunkPlan, Stage, descend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.ordering.records import PlannedVars

_OPS_PER_OP, _MIN_OPS = 400, 300_000
"""Ops that a search without a time limit may write for each op of a program, and at least.

A processor writes and measures about 28,000 ops per second: 14 s for a program of 1,000 ops."""

_BYTES_PER_OP = 5_000
"""Private bytes that a session of ONNX Runtime holds for each op, whether it runs or not.

Measured with the files of `--target cpu --chunk auto`: 5,822 for each op that chunks add to a ResNet-50,
5,055 to a Swin-T (ONNX Runtime 1.31.1)."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The plans that a search found.

    Attributes:
        best: the plan that comes nearest to the goal.
        curve: the plans of which no other has less memory in the same time, the fastest first.
        before: the live peak without chunks.
        budget: the largest live peak that was asked for; None: as little as possible in a run that is
            predicted to take at most `SLOWEST` times as long.
        bound: a lower bound of the live peak for all choices of regions, with copies if they were tried.
        ended_early: whether a limit ended a part of the search.
    """

    best: ChunkPlan
    curve: tuple[ChunkPlan, ...]
    before: int
    budget: int | None
    bound: Need
    ended_early: bool


def search(
    graph: Graph,
    planned_vars: PlannedVars,
    budget: float | None = None,
    seconds: float | None = None,
) -> SearchResult:
    """Search regions to compute in chunks; return the plans found, and the one that suits the budget best.

    Up to three kinds of programs are searched, without a budget all of them:

    1. the given program;
    2. the program with copies of ops for matrix products, unless a plan is within the budget already;
    3. programs in which the regions of the plan with the least memory have fewer chunks, which can be cut again
       along another axis, unless a plan within the budget is fast (takes at most `SLOWEST` times as long).

    Args:
        graph: the program without chunks.
        planned_vars: its planned vars.
        budget: the largest live peak, an int in bytes or a float as a share of the peak without chunks;
            None: as little as possible in a run that is predicted to take at most `SLOWEST` times as long.
        seconds: the time after which the search ends; None: it ends after an amount of work.
    """
    before = planned_vars.live_peak(graph.program)
    max_bytes = int(budget * before) if isinstance(budget, float) else budget
    finder = _Finder(max_bytes, Limit(max(_OPS_PER_OP * len(graph.ops), _MIN_OPS), seconds))
    original = Stage(graph, planned_vars, original_work=total_cost(graph.program).work)
    programs_without_chunks = [original]
    finder.search(original)
    if not finder.has_plan_within_budget:
        bytes_to_reach = finder.lowest_plan.peak if max_bytes is None else max_bytes
        with_copies = stage_with_copies(original, bytes_to_reach)
        if with_copies is not None:
            programs_without_chunks.append(with_copies)
            finder.search(with_copies)
    if not finder.has_fast_plan_within_budget:
        # A region in 4 x 2 chunks, say, may need as little memory as one in 8 chunks, and less work. So the search of a
        # program with fewer chunks has first the lowest peak as its target (or a larger budget), then lower ones.
        lowest_plan = finder.lowest_plan
        first_target = max(max_bytes or 0, lowest_plan.peak)
        for with_fewer_chunks in stages_of_fewer_chunks(lowest_plan, finder.limit):
            finder.search(with_fewer_chunks, first_target)
    bounds = (
        lower_bound(stage.graph, stage.planned_vars.sizes, stage.planned_vars.aliasing)
        for stage in programs_without_chunks
    )
    return SearchResult(
        best=finder.best_plan,
        curve=tuple(_front(finder.plans)),
        before=before,
        budget=max_bytes,
        bound=min(bounds, key=lambda need: need.bytes),
        ended_early=finder.ended_early,
    )


class _Finder:
    """Collects the plans of all stages.

    Attributes:
        max_bytes: the budget; None if there is none.
        limit: ends the search of each stage.
        plans: all plans that were found, in this order.
        ended_early: whether the limit ended the search of a stage.
    """

    def __init__(self, max_bytes: int | None, limit: Limit) -> None:
        self.max_bytes, self.limit = max_bytes, limit
        self.plans: list[ChunkPlan] = []
        self.ended_early = False

    @property
    def has_plan_within_budget(self) -> bool:
        """Whether a plan is within the budget; False without a budget, as less memory is always better."""
        budget = self.max_bytes
        return budget is not None and any(plan.peak <= budget for plan in self.plans)

    @property
    def has_fast_plan_within_budget(self) -> bool:
        """Whether a plan is within the budget and takes at most `SLOWEST` times as long."""
        return self.has_plan_within_budget and self.best_plan.time <= SLOWEST

    @property
    def lowest_plan(self) -> ChunkPlan:
        """The plan with the least memory."""
        return min(self.plans, key=lambda plan: (plan.peak, plan.time))

    @property
    def best_plan(self) -> ChunkPlan:
        """The plan that comes nearest to the goal.

        With a budget: the fastest plan within it, or the one with the least memory if none is within it.
        Without: of the plans that take at most `SLOWEST` times as long as the original, the one with the
        fewest bytes, of the live peak and of what a session holds for the ops.
        """
        budget = self.max_bytes
        if budget is None:
            # There is one: the first plan is the original, the program without chunks.
            fast = (plan for plan in self.plans if plan.time <= SLOWEST)
            return min(fast, key=lambda plan: (_bytes_with_ops(plan), plan.time))
        # All plans within the budget have the same first key.
        return min(self.plans, key=lambda plan: (max(plan.peak, budget), plan.time, plan.peak))

    def search(self, stage: Stage, first_target: int | None = None) -> None:
        """Add plans of a stage to ``self.plans``, each with less memory than the one before.

        The search ends at the first plan within the budget ``self.max_bytes``, or without a budget at the first that is
        too slow. If the limit ends the search before, ``self.ended_early`` becomes true. ``first_target``: see `descend`.
        """
        self.limit.begin_part()  # the search of a stage leaves a part of the limit to later stages
        for plan in descend(stage, self.max_bytes or 0, self.limit, first_target):
            self.plans.append(plan)
            if self.max_bytes is None and plan.time > SLOWEST:
                return
        self.ended_early |= self.limit.is_reached


def _bytes_with_ops(plan: ChunkPlan) -> int:
    """Return the live peak of a plan and the bytes that a session holds for its ops."""
    return plan.peak + _BYTES_PER_OP * len(plan.chunked.program.body.ops)


def _front(plans: Iterable[ChunkPlan]) -> Iterator[ChunkPlan]:
    """Yield the plans of which no other has less memory in the same time, the fastest first."""
    least_peak: int | None = None
    for plan in sorted(plans, key=lambda plan: (plan.time, plan.peak)):
        if least_peak is None or plan.peak < least_peak:
            least_peak = plan.peak
            yield plan
