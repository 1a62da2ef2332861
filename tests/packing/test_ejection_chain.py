from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.packing_instances import crowded, square, thinned
from memplan_cli.core.problem import BufferId, Problem
from memplan_cli.packing.budget import Budget
from memplan_cli.packing.heuristics.greedy import by_size, by_start, lowest, place
from memplan_cli.packing.pieces import Piece, height_of, reduce
from memplan_cli.packing.repair.ejection_chain import lowered, settle
from memplan_cli.packing.repair.interval_index import (
    NOWHERE,
    find_overlaps,
    intervals_of,
    placement_of,
    sort,
    stack,
    unplaced,
)
from memplan_cli.packing.repair.interval_index import WORK as LOOKS
from memplan_cli.packing.repair.state import (
    WORK,
    eject,
    pop_first,
    state_of,
    undo_chain,
)
from packing_problems import full_problems, heaviest, is_safe, problems, start_of

if TYPE_CHECKING:
    from random import Random


def check_overlaps(piece: Piece, placement: list[int]) -> None:
    """Query what each buffer overlaps, and compare with a look at all."""
    intervals = intervals_of(piece, np.array(placement))
    count = len(piece.size)
    for buffer in range(count):
        me = intervals.column[buffer]
        near = find_overlaps(intervals, buffer)
        expected = [
            index
            for index in range(count)
            if placement[index] >= 0
            and piece.start[index] < piece.end[me]
            and piece.start[me] < piece.end[index]
        ]
        found = [int(intervals.column[other]) for other in intervals.overlaps[:near]]
        assert sorted(found) == expected
        assert intervals.floor[:near].tolist() == [placement[i] for i in found]
        assert intervals.top[:near].tolist() == [placement[i] + piece.size[i] for i in found]


@settings(deadline=None, max_examples=60)
@given(problem=problems(), chance=st.randoms(use_true_random=False))
def test_a_buffer_overlaps_those_placed_that_share_a_section_with_it(
    problem: Problem, chance: Random
) -> None:
    for piece in reduce(problem).pieces:
        check_overlaps(
            piece, [chance.choice((NOWHERE, 7 * index)) for index in range(len(piece.size))]
        )


@pytest.mark.parametrize(
    "problem", [crowded(300, 0), thinned(300, 0)], ids=["crowded", "full"]
)
def test_a_buffer_overlaps_the_same_where_marks_are_far_apart(problem: Problem) -> None:
    piece = heaviest(problem)
    check_overlaps(piece, [index % 5 - 1 for index in range(len(piece.size))])


@pytest.mark.parametrize("keys", ["even", "all at one place", "above the capacity"])
def test_overlaps_are_sorted_whatever_their_offsets(keys: str) -> None:
    chance = np.random.default_rng(1)
    count = 1000
    heights = {
        "even": chance.integers(0, 1 << 20, count),
        "all at one place": np.append(chance.integers(0, 50, count - 1), 1 << 20),
        "above the capacity": chance.integers(0, 1 << 24, count),
    }[keys]
    ids = tuple(BufferId(str(index)) for index in range(count))
    piece = Piece(ids, (0,) * count, (1,) * count, (1,) * count, (count,))
    intervals = intervals_of(piece, heights)
    assert find_overlaps(intervals, 0) == count
    sort(intervals, intervals.floor, intervals.low, 1 << 20)
    assert intervals.floor[intervals.low].tolist() == sorted(heights.tolist())


@settings(deadline=None, max_examples=60)
@given(problem=problems())
def test_first_fit_among_overlaps_is_first_fit_among_all(problem: Problem) -> None:
    for piece in reduce(problem).pieces:
        for order in (by_size, by_start):
            intervals = unplaced(intervals_of(piece, np.zeros(len(piece.size), np.int64)))
            rank = np.argsort(intervals.column)[np.array(order(piece), np.int64)]
            turn = 0
            while turn < len(rank):
                intervals.registers[LOOKS] = 5
                turn = stack(intervals, rank, turn, piece.load)
            assert placement_of(intervals) == place(piece, order(piece), lowest)


def test_a_query_costs_what_its_answer_takes() -> None:
    ids = tuple(map(BufferId, map(str, range(10_000))))
    start, end = tuple(range(10_000)), tuple(range(3, 10_003))
    piece = Piece(ids, start, end, (1,) * 10_000, (3,) * 10_002)
    intervals = intervals_of(piece, np.zeros(10_000, np.int64))
    assert find_overlaps(intervals, 5_000) == 5
    assert -intervals.registers[LOOKS] < 20


def test_the_highest_priority_not_placed_is_taken_first_and_a_chain_can_be_undone() -> None:
    piece = heaviest(square(200, 1))
    start = start_of(piece)
    state = state_of(piece, np.array(start.placement), start.height)
    state.chain[:] = NOWHERE
    chosen = range(0, len(piece.size), 3)
    for buffer in chosen:
        eject(state, buffer)
    assert (state.offset[::3] == NOWHERE).all()
    taken = [pop_first(state) for _ in chosen]
    assert taken == sorted(chosen, key=lambda i: (-state.priority[i], i))
    undo_chain(state)
    assert placement_of(state.intervals) == start.placement


@settings(deadline=None, max_examples=60)
@given(problem=full_problems(), work=st.integers(100, 200_000))
def test_whatever_the_work_what_is_lowered_is_safe(problem: Problem, work: int) -> None:
    for piece in reduce(problem).pieces:
        start = start_of(piece)
        found = lowered(piece, start, Budget(work))
        assert start.bound <= found.height <= start.height
        assert found.height == height_of(piece, found.placement)
        assert is_safe(piece, found)


def test_what_exceeds_the_capacity_is_ejected_at_no_cost() -> None:
    # There is no gap for b below 3 units, and c, of higher priority than a, exceeds them.
    piece = Piece(tuple(map(BufferId, "abc")), (0, 0, 0), (9, 1, 9), (1, 1, 3), (5,) * 9)
    state = state_of(piece, np.array((0, NOWHERE, 1)), 4)
    state.registers[WORK] = 1
    assert not settle(state, 3)
    assert state.offset.tolist() == [0, 1, NOWHERE]


def test_ten_thousand_crowded_buffers_come_within_a_twentieth_in_a_second_of_work() -> None:
    piece = heaviest(crowded(10_000, 1))
    start = start_of(piece)
    budget = Budget(150_000_000)
    found = lowered(piece, start, budget)
    assert start.height > 1.2 * start.bound
    assert found.height <= 1.05 * found.bound
    assert is_safe(piece, found)
    assert budget.spent <= 1.01 * budget.work


def test_the_clock_ends_it_too() -> None:
    piece = heaviest(thinned(2_000, 1))
    start = start_of(piece)
    assert lowered(piece, start, Budget(10**12, deadline=0.0)) == start


def test_what_is_low_enough_is_not_lowered_further() -> None:
    piece = heaviest(crowded(1_000, 1))
    start = start_of(piece)
    enough = int(1.04 * start.bound)
    budget = Budget(300_000_000, enough=enough)
    found = lowered(piece, start, budget)
    assert start.bound < found.height <= enough
    assert budget.spent < budget.work
