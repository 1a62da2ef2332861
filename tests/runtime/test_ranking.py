"""Files that compete are ranked by what their processes are foreseen to take."""

from __future__ import annotations

from memplan_cli.runtime.settings_search.written_model import PredictedCost, ranked_by_cost

MB = 1 << 20


def cost(process: int, arena: int) -> PredictedCost:
    return PredictedCost(unknown=False, process=process * MB, arena=arena * MB)


def unforeseen(process: int, arena: int) -> PredictedCost:
    return PredictedCost(unknown=True, process=process * MB, arena=arena * MB)


def test_the_smaller_process_is_better() -> None:
    assert ranked_by_cost([cost(500, 1), cost(400, 90), cost(450, 1)]) == [1, 2, 0]


def test_of_processes_that_nobody_can_tell_apart_the_lower_arena_is_better() -> None:
    assert ranked_by_cost([cost(400, 90), cost(407, 10)]) == [1, 0], "two in a hundred"
    assert ranked_by_cost([cost(400, 90), cost(409, 10)]) == [0, 1]
    assert ranked_by_cost([cost(10, 9), cost(12, 1)]) == [1, 0], "two megabytes"
    assert ranked_by_cost([cost(10, 9), cost(13, 1)]) == [0, 1]


def test_equal_costs_keep_their_order() -> None:
    assert ranked_by_cost([cost(10, 9), cost(10, 9), cost(10, 9)]) == [0, 1, 2]


def test_what_cannot_be_foreseen_comes_last_and_is_ranked_by_itself() -> None:
    assert ranked_by_cost([unforeseen(1, 1), cost(500, 90)]) == [1, 0]
    assert ranked_by_cost([unforeseen(500, 90), unforeseen(400, 95)]) == [1, 0]


def test_nothing_is_ranked_as_nothing() -> None:
    assert ranked_by_cost([]) == []
