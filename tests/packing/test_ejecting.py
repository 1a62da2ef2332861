from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.packing_instances import crowded, square, thinned
from memplan_cli.core.problem import BufferId, Problem
from memplan_cli.packing.budget import Budget
from memplan_cli.packing.heuristics.greedy import by_birth, by_size, lowest, place
from memplan_cli.packing.pieces import Piece, height_of, reduce
from memplan_cli.packing.repair.ejection_chain import lowered, settle
from memplan_cli.packing.repair.fill import NOWHERE
from memplan_cli.packing.repair.interval_index import WORK as LOOKS
from memplan_cli.packing.repair.interval_index import (
    lives_of,
    meet,
    placement_of,
    sort,
    stack,
    unplaced,
)
from memplan_cli.packing.repair.state import (
    WORK,
    crowd_of,
    loosen,
    take_back,
    take_worthiest,
)
from packing_problems import full_problems, heaviest, is_safe, problems, start_of

if TYPE_CHECKING:
    from random import Random


def check_meetings(piece: Piece, placement: list[int]) -> None:
    """Ask for every buffer whom it meets, and compare with a look at all."""
    lives = lives_of(piece, np.array(placement))
    count = len(piece.size)
    for buffer in range(count):
        me = lives.born[buffer]
        near = meet(lives, buffer)
        expected = [
            index
            for index in range(count)
            if placement[index] >= 0
            and piece.start[index] < piece.end[me]
            and piece.start[me] < piece.end[index]
        ]
        found = [int(lives.born[other]) for other in lives.who[:near]]
        assert sorted(found) == expected
        assert lives.floor[:near].tolist() == [placement[i] for i in found]
        assert lives.top[:near].tolist() == [placement[i] + piece.size[i] for i in found]


@settings(deadline=None, max_examples=60)
@given(problem=problems(), chance=st.randoms(use_true_random=False))
def test_a_buffer_meets_those_placed_that_share_a_section_with_it(
    problem: Problem, chance: Random
) -> None:
    for piece in reduce(problem).pieces:
        check_meetings(
            piece, [chance.choice((NOWHERE, 7 * index)) for index in range(len(piece.size))]
        )


@pytest.mark.parametrize(
    "problem", [crowded(300, 0), thinned(300, 0)], ids=["crowded", "full"]
)
def test_a_buffer_meets_the_same_where_marks_lie_far_apart(problem: Problem) -> None:
    piece = heaviest(problem)
    check_meetings(piece, [index % 5 - 1 for index in range(len(piece.size))])


@pytest.mark.parametrize("keys", ["even", "all at one place", "above the capacity"])
def test_those_met_are_sorted_wherever_they_lie(keys: str) -> None:
    chance = np.random.default_rng(1)
    count = 1000
    heights = {
        "even": chance.integers(0, 1 << 20, count),
        "all at one place": np.append(chance.integers(0, 50, count - 1), 1 << 20),
        "above the capacity": chance.integers(0, 1 << 24, count),
    }[keys]
    ids = tuple(BufferId(str(index)) for index in range(count))
    piece = Piece(ids, (0,) * count, (1,) * count, (1,) * count, (count,))
    lives = lives_of(piece, heights)
    assert meet(lives, 0) == count
    sort(lives, lives.floor, lives.low, 1 << 20)
    assert lives.floor[lives.low].tolist() == sorted(heights.tolist())


@settings(deadline=None, max_examples=60)
@given(problem=problems())
def test_first_fit_among_those_met_is_first_fit_among_all(problem: Problem) -> None:
    for piece in reduce(problem).pieces:
        for order in (by_size, by_birth):
            lives = unplaced(lives_of(piece, np.zeros(len(piece.size), np.int64)))
            rank = np.argsort(lives.born)[np.array(order(piece), np.int64)]
            turn = 0
            while turn < len(rank):
                lives.registers[LOOKS] = 5
                turn = stack(lives, rank, turn, piece.load)
            assert placement_of(lives) == place(piece, order(piece), lowest)


def test_a_question_costs_what_the_answer_takes() -> None:
    ids = tuple(map(BufferId, map(str, range(10_000))))
    start, end = tuple(range(10_000)), tuple(range(3, 10_003))
    piece = Piece(ids, start, end, (1,) * 10_000, (3,) * 10_002)
    lives = lives_of(piece, np.zeros(10_000, np.int64))
    assert meet(lives, 5_000) == 5
    assert -lives.registers[LOOKS] < 20


def test_the_worthiest_without_a_place_is_taken_first_and_a_chain_can_be_taken_back() -> None:
    piece = heaviest(square(200, 1))
    start = start_of(piece)
    crowd = crowd_of(piece, np.array(start.placement), start.height)
    crowd.chain[:] = NOWHERE
    chosen = range(0, len(piece.size), 3)
    for buffer in chosen:
        loosen(crowd, buffer)
    assert (crowd.offset[::3] == NOWHERE).all()
    taken = [take_worthiest(crowd) for _ in chosen]
    assert taken == sorted(chosen, key=lambda i: (-crowd.worth[i], i))
    take_back(crowd)
    assert placement_of(crowd.lives) == start.placement


@settings(deadline=None, max_examples=60)
@given(problem=full_problems(), work=st.integers(100, 200_000))
def test_whatever_the_work_what_is_lowered_is_safe(problem: Problem, work: int) -> None:
    for piece in reduce(problem).pieces:
        start = start_of(piece)
        found = lowered(piece, start, Budget(work))
        assert start.bound <= found.height <= start.height
        assert found.height == height_of(piece, found.placement)
        assert is_safe(piece, found)


def test_who_sticks_out_is_thrown_out_for_nothing() -> None:
    # There is no gap for b below 3 units, and c, worth much more than a, sticks out of them.
    piece = Piece(tuple(map(BufferId, "abc")), (0, 0, 0), (9, 1, 9), (1, 1, 3), (5,) * 9)
    crowd = crowd_of(piece, np.array((0, NOWHERE, 1)), 4)
    crowd.registers[WORK] = 1
    assert not settle(crowd, 3)
    assert crowd.offset.tolist() == [0, 1, NOWHERE]


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
