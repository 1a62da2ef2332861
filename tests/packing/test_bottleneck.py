from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.packing_instances import square
from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    LiveRange,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.packing import portfolio
from memplan_cli.packing.bottleneck import (
    NOWHERE,
    bottleneck_subsets,
    fill,
    lowered_by_subsets,
)
from memplan_cli.packing.pieces import BestPlacement, reduce_problem
from memplan_cli.packing.search.depth_first import search
from memplan_cli.packing.search.exact import Answer, Searcher
from memplan_cli.packing.search.state import OVERFLOWED, new_state
from memplan_cli.packing.search.state import WORK as WORK_LEFT
from packing_problems import full_problems, heaviest, is_safe, start_of

DATA = Path(__file__).parents[1] / "data"


def read(name: str) -> Problem:
    """Return a problem that a real model gave, its sizes in units of 64 bytes."""
    with gzip.open(DATA / name, "rt", newline="") as file:
        rows = [tuple(map(int, row)) for row in csv.reader(file)]
    return Problem(
        tuple(
            Buffer(BufferId(str(index)), 64 * size, LiveRange(lower, upper))
            for index, (lower, upper, size) in enumerate(rows)
        )
    )


@pytest.mark.slow
def test_a_training_step_of_few_large_and_many_small_buffers_is_nearly_at_its_bound() -> None:
    problem = read("training_convolutions.csv.gz")
    found = portfolio(problem)
    assert violations(problem, found) == ()
    assert found.height <= 1.0001 * lower_bound(problem)


def test_a_training_step_of_thousands_of_similar_buffers_is_within_a_thousandth_of_the_bound() -> (
    None
):
    problem = read("training_recurrent.csv.gz")
    found = portfolio(problem)
    assert violations(problem, found) == ()
    assert found.height <= 1.001 * lower_bound(problem)
    assert found.height < 64 * start_of(heaviest(problem)).height


def test_a_window_with_two_full_sections_is_filled_with_sections_weighed_by_failures() -> None:
    piece = heaviest(read("training_window.csv.gz"))
    answer, placement = Searcher(piece).fit(piece.load, WorkBudget(50_000_000))
    assert answer is Answer.YES
    assert is_safe(piece, BestPlacement(placement, piece.load, piece.load))


def test_one_of_the_subsets_is_the_whole_piece() -> None:
    piece = heaviest(square(60, 1))
    subsets = list(bottleneck_subsets(piece))
    assert tuple(range(len(piece.size))) in subsets
    assert len(set(subsets)) == len(subsets)


@settings(deadline=None, max_examples=24)
@given(problem=full_problems())
def test_lowered_placements_are_safe_and_never_taller(problem: Problem) -> None:
    for piece in reduce_problem(problem).pieces:
        start = start_of(piece)
        found = lowered_by_subsets(piece, start, WorkBudget(2_000_000))
        assert start.bound <= found.height <= start.height
        assert is_safe(piece, found)


def test_filling_keeps_placed_buffers_and_uses_the_lowest_gap() -> None:
    start, end, size = (
        np.array(column) for column in ((0, 0, 1, 1), (2, 1, 2, 2), (2, 1, 1, 3))
    )
    offset = np.array([1, NOWHERE, NOWHERE, NOWHERE])
    height = fill(start, end, size, offset, np.argsort(offset, kind="stable"), np.arange(4))
    assert offset.tolist() == [1, 0, 0, 3]
    assert height == 6


@pytest.mark.parametrize("frames", range(1, 7))
def test_a_search_stops_before_its_stack_overflows(frames: int) -> None:
    """Compiled loops check no index: memory behind the stack of frames must stay unchanged."""
    problem = square(40, seed=3)
    searcher = Searcher(heaviest(problem))
    board, capacity = searcher.arrays, heaviest(problem).load
    initial = new_state(
        board, np.zeros(1 << 19, np.uint64), np.ones(len(board.load), np.int64)
    )
    memory = np.full((frames + 6, initial.frames.shape[1]), -77, np.int64)
    state = initial._replace(frames=memory[:frames])
    state.registers[WORK_LEFT] = 1 << 20
    mode = search(board, state, capacity, np.arange(len(board.size)), 0, 0)
    assert (memory[frames:] == -77).all()
    assert mode == OVERFLOWED
