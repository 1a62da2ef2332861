from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.packing_instances import crowded, square, thinned
from memplan_cli.core.problem import BufferId, Problem
from memplan_cli.packing.budget import BestPlacement, Budget
from memplan_cli.packing.ejection_chains import (
    WORK,
    completed_at_bound,
    eject,
    lowered_by_chains,
    new_state,
    place_waiting,
    placement_of,
    pop_first,
    undo_chain,
)
from memplan_cli.packing.pieces import NOWHERE, Piece, height_of, reduce
from packing_problems import full_problems, heaviest, is_safe, problems, start_of


def test_waiting_buffers_are_popped_by_priority_and_a_chain_can_be_undone() -> None:
    piece = heaviest(square(200, 1))
    start = start_of(piece)
    state = new_state(piece, np.array(start.placement), start.height)
    state.chain[:] = NOWHERE
    chosen = range(0, len(piece.size), 3)
    for buffer in chosen:
        eject(state, buffer)
    assert (state.offset[::3] == NOWHERE).all()
    taken = [pop_first(state) for _ in chosen]
    assert taken == sorted(chosen, key=lambda i: (-state.priority[i], i))
    undo_chain(state)
    assert placement_of(state) == start.placement


@settings(deadline=None, max_examples=24)
@given(problem=full_problems(), work=st.integers(100, 200_000))
def test_a_lowered_placement_is_safe_with_any_amount_of_work(
    problem: Problem, work: int
) -> None:
    for piece in reduce(problem).pieces:
        start = start_of(piece)
        found = lowered_by_chains(piece, start, Budget(work))
        assert start.bound <= found.height <= start.height
        assert found.height == height_of(piece, found.placement)
        assert is_safe(piece, found)


@settings(deadline=None, max_examples=24)
@given(problem=problems(), placed=st.integers(0, 14))
def test_a_completed_placement_is_safe_and_within_the_bound(
    problem: Problem, placed: int
) -> None:
    for piece in reduce(problem).pieces:
        start = start_of(piece)
        bound = start.height + 1
        offsets = np.full(len(piece.size), NOWHERE)
        offsets[:placed] = start.placement[:placed]
        asked = BestPlacement(start.placement, start.height, bound)
        found = completed_at_bound(piece, asked, offsets, Budget(10**6))
        assert found.height <= bound
        assert is_safe(piece, found)


def test_an_ejection_makes_room_where_no_gap_is_large_enough() -> None:
    # b is in the middle: c, as tall as what is left, fits only if b moves.
    piece = Piece(tuple(map(BufferId, "abc")), (0, 0, 1), (1, 2, 2), (1, 1, 2), (2, 3))
    best = BestPlacement((0, 1, 2), 4, 3)
    offsets = np.array((0, 1, NOWHERE))
    found = completed_at_bound(piece, best, offsets, Budget(10_000))
    assert found.height == 3
    assert is_safe(piece, found)


def test_buffers_above_the_capacity_are_ejected_at_no_cost() -> None:
    # There is no gap for b below 3 units, and c, of higher priority than a, exceeds them.
    piece = Piece(tuple(map(BufferId, "abc")), (0, 0, 0), (9, 1, 9), (1, 1, 3), (5,) * 9)
    state = new_state(piece, np.array((0, NOWHERE, 1)), 4)
    state.registers[WORK] = 1
    assert not place_waiting(state, 3)
    assert state.offset.tolist() == [0, 1, NOWHERE]


def test_ten_thousand_crowded_buffers_come_within_a_twentieth_in_a_second_of_work() -> None:
    piece = heaviest(crowded(10_000, 1))
    start = start_of(piece)
    budget = Budget(300_000_000)
    found = lowered_by_chains(piece, start, budget)
    assert start.height > 1.2 * start.bound
    assert found.height <= 1.05 * found.bound
    assert is_safe(piece, found)
    assert budget.spent <= 1.01 * budget.work


def test_the_deadline_ends_the_search() -> None:
    piece = heaviest(thinned(2_000, 1))
    start = start_of(piece)
    assert lowered_by_chains(piece, start, Budget(10**12, deadline=0.0)) == start


def test_without_work_the_placement_stays() -> None:
    piece = heaviest(square(100, 1))
    start = start_of(piece)
    assert lowered_by_chains(piece, start, Budget(0)) == start
    unplaced = np.full(len(piece.size), NOWHERE)
    assert completed_at_bound(piece, start, unplaced, Budget(0)) == start


def test_the_same_work_gives_the_same_placement_and_is_charged() -> None:
    piece = max(reduce(thinned(400, 2)).pieces, key=lambda piece: len(piece.size))
    start = start_of(piece)
    budgets = [Budget(20_000_000), Budget(20_000_000)]
    one, other = (lowered_by_chains(piece, start, budget) for budget in budgets)
    assert one == other
    assert one.height < start.height
    assert budgets[0].spent == budgets[1].spent > 0


def test_a_height_that_is_low_enough_is_not_lowered_further() -> None:
    piece = heaviest(crowded(1_000, 1))
    start = start_of(piece)
    enough = int(1.04 * start.bound)
    budget = Budget(300_000_000, target_height=enough)
    found = lowered_by_chains(piece, start, budget)
    assert start.bound < found.height <= enough
    assert budget.spent < budget.work
