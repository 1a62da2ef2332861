"""The capacities that `shrink` and `try_bound` try, with a searcher that knows the least height."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.problem import BufferId
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.packing.pieces import BestPlacement, Piece, Placement
from memplan_cli.packing.search.exact import Answer, Searcher, shrink, try_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

WORK = 1_000_000


@dataclass
class CapacityOracle:
    """A searcher that answers YES from the least height on, and records the capacities tried.

    Attributes:
        least: The least height.
        answer_below: The answer for smaller capacities.
        work: Units of work charged for each answer.
        tried: The capacities tried.
    """

    least: int
    answer_below: Answer = Answer.NO
    work: int = 1
    piece: Piece = field(
        default_factory=lambda: Piece((BufferId("a"),), (0,), (1,), (1,), (1,))
    )
    tried: list[int] = field(default_factory=list)

    def fit(self, capacity: int, budget: WorkBudget) -> tuple[Answer, Placement]:
        self.tried.append(capacity)
        budget.spend(min(self.work, budget.remaining))
        if capacity >= self.least:
            return Answer.YES, (capacity - 1,)
        return self.answer_below, ()


def start(height: int, bound: int) -> BestPlacement:
    return BestPlacement((height - 1,), height, bound)


def shrunk(
    oracle: CapacityOracle, best: BestPlacement, *, enough: int = 0, work: int = WORK
) -> BestPlacement:
    best = replace(best, target_height=enough)
    return shrink(cast("Searcher", oracle), best, WorkBudget(work))


def are_sensible(tried: Sequence[int], best: BestPlacement, oracle: CapacityOracle) -> bool:
    """Return whether each capacity tried is below the height found so far and not below the bound."""
    height, bound = best.height, best.bound
    for capacity in tried:
        if not bound <= capacity < height:
            return False
        if capacity >= oracle.least:
            height = capacity
        elif oracle.answer_below is Answer.NO:
            bound = capacity + 1
    return True


@given(bound=st.integers(1, 5000), gap=st.integers(0, 5000), data=st.data())
@pytest.mark.parametrize("below", [Answer.NO, Answer.UNKNOWN])
def test_the_least_height_is_found_by_halving(
    below: Answer, bound: int, gap: int, data: st.DataObject
) -> None:
    oracle = CapacityOracle(data.draw(st.integers(bound, bound + gap)), below)
    best = start(bound + gap, bound)
    found = shrunk(oracle, best)
    assert found.height == oracle.least
    assert are_sensible(oracle.tried, best, oracle)
    assert len(oracle.tried) <= 16
    if below is Answer.NO and gap:
        assert found.bound <= oracle.least


def test_a_refuted_capacity_raises_the_bound_by_one_unit() -> None:
    assert (
        try_bound(cast("Searcher", CapacityOracle(60)), start(100, 40), WorkBudget(WORK)).bound
        == 41
    )


def test_the_target_height_is_tried_first_and_alone_if_it_is_reached() -> None:
    oracle = CapacityOracle(30)
    assert shrunk(oracle, start(100, 10), enough=50).height == 50
    assert oracle.tried == [50]


def test_the_bound_is_tried_before_capacities_between_it_and_the_height() -> None:
    oracle = CapacityOracle(10)
    assert shrunk(oracle, start(100, 10)).height == 10
    assert oracle.tried == [10]


@pytest.mark.parametrize(("height", "enough", "work"), [(10, 0, 9), (50, 50, 9), (50, 0, 0)])
def test_nothing_is_tried_at_the_bound_or_the_target_or_without_work(
    height: int, enough: int, work: int
) -> None:
    oracle, best = CapacityOracle(10), start(height, 10)
    found = shrunk(oracle, best, enough=enough, work=work)
    assert found == replace(best, target_height=enough)
    assert oracle.tried == []


def test_tries_without_an_answer_share_the_budget() -> None:
    oracle = CapacityOracle(10_000, Answer.UNKNOWN, work=WORK)
    budget = WorkBudget(WORK)
    found = shrink(cast("Searcher", oracle), start(10_000, 9), budget)
    assert found == start(10_000, 9)
    assert 0 <= budget.remaining < WORK / 50
    assert oracle.tried == sorted(oracle.tried)
    assert oracle.tried[-1] == 9_999
