from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.packing_instances import square, thinned
from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    Layout,
    LiveRange,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.packing import portfolio
from memplan_cli.packing.bottleneck import bottleneck_subsets, fill, lowered_by_subsets
from memplan_cli.packing.budget import BestPlacement, Budget
from memplan_cli.packing.ejection_chains import lowered_by_chains
from memplan_cli.packing.pieces import NOWHERE, arena_offsets, layout_of, reduce
from memplan_cli.packing.portfolio import cheapest
from memplan_cli.packing.search.depth_first import search
from memplan_cli.packing.search.exact import Answer, Searcher
from memplan_cli.packing.search.state import OVERFLOWED, new_state
from memplan_cli.packing.search.state import WORK as WORK_LEFT
from packing_problems import full_problems, heaviest, is_safe, problems, start_of

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
def test_a_training_step_of_few_large_and_many_small_buffers_reaches_its_bound() -> None:
    problem = read("training_convolutions.csv.gz")
    found = portfolio(problem)
    assert violations(problem, found) == ()
    assert found.height == lower_bound(problem)
    assert found.proved


def test_a_training_step_of_thousands_of_alike_buffers_comes_within_a_ten_thousandth() -> None:
    problem = read("training_recurrent.csv.gz")
    found = portfolio(problem)
    assert violations(problem, found) == ()
    assert found.height <= 1.0001 * lower_bound(problem)
    assert found.height < 64 * start_of(heaviest(problem)).height


def test_a_window_with_two_full_sections_is_filled_by_asking_first_where_tries_ended() -> None:
    piece = heaviest(read("training_window.csv.gz"))
    answer, placement = Searcher(piece).fit(piece.load, Budget(50_000_000))
    assert answer is Answer.YES
    assert is_safe(piece, BestPlacement(placement, piece.load, piece.load))


@pytest.mark.slow
def test_a_thinned_square_of_ten_thousand_is_lowered_by_ejection_chains() -> None:
    problem = thinned(10_000, 0)
    found = portfolio(problem)
    assert violations(problem, found) == ()
    assert found.height <= 1.15 * lower_bound(problem)


@settings(deadline=None, max_examples=24)
@given(problem=problems())
def test_bundles_of_a_subset_unfold_to_buffers_that_do_not_overlap(problem: Problem) -> None:
    for piece in reduce(problem).pieces:
        for subset in bottleneck_subsets(piece):
            inner = subset.reduction
            placements = [cheapest(part, part.load) for part in inner.pieces]
            offsets = subset.unfold(piece, arena_offsets(inner, placements))
            inside = [i for i in range(len(piece.size)) if offsets[i] >= 0]
            assert sorted(i for bundle in subset.members for i in bundle) == inside
            chosen = Problem(
                tuple(
                    Buffer(
                        piece.ids[i], piece.size[i], LiveRange(piece.start[i], piece.end[i])
                    )
                    for i in inside
                )
            )
            at = {piece.ids[i]: int(offsets[i]) for i in inside}
            height = max(at[b.id] + b.size for b in chosen.buffers)
            layout = layout_of(inner, placements)
            assert height == layout.height
            assert violations(chosen, Layout(at, height)) == ()


def test_a_subset_that_is_everything_has_every_buffer_of_the_piece() -> None:
    piece = heaviest(square(60, 1))
    assert any(
        sum(map(len, subset.members)) == len(piece.size)
        for subset in bottleneck_subsets(piece)
    )


@settings(deadline=None, max_examples=24)
@given(problem=full_problems())
def test_what_is_lowered_is_safe_and_never_taller(problem: Problem) -> None:
    for piece in reduce(problem).pieces:
        start = start_of(piece)
        for lower in (lowered_by_subsets, lowered_by_chains):
            found = lower(piece, start, Budget(2_000_000))
            assert start.bound <= found.height <= start.height
            assert is_safe(piece, found)


def test_filling_leaves_what_is_placed_and_takes_the_lowest_gap() -> None:
    start, end, size = (
        np.array(column) for column in ((0, 0, 1, 1), (2, 1, 2, 2), (2, 1, 1, 3))
    )
    offset = np.array([1, NOWHERE, NOWHERE, NOWHERE])
    height = fill(start, end, size, offset, np.argsort(offset, kind="stable"), np.arange(4))
    assert offset.tolist() == [1, 0, 0, 3]
    assert height == 6


BOXES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(1, 5), st.booleans()),
    min_size=1,
    max_size=9,
)


@given(BOXES)
def test_filling_is_first_fit_among_all_that_lie_there(
    boxes: list[tuple[int, int, int, bool]],
) -> None:
    start, length, size, there = (np.array(column) for column in zip(*boxes, strict=True))
    end, count = start + length, len(boxes)

    def lowest_gap(buffer: int, offset: list[int]) -> int:
        beside = [
            other
            for other in range(count)
            if offset[other] >= 0 and start[other] < end[buffer] and start[buffer] < end[other]
        ]
        at = 0
        while any(at < offset[o] + size[o] and offset[o] < at + size[buffer] for o in beside):
            at += 1
        return at

    wanted = [NOWHERE] * count
    for buffer in np.flatnonzero(there):
        wanted[buffer] = lowest_gap(int(buffer), wanted)
    offset = np.array(wanted)
    for buffer in np.flatnonzero(~there):
        wanted[buffer] = lowest_gap(int(buffer), wanted)
    stacked = np.argsort(offset, kind="stable")
    height = fill(start, end, size, offset, stacked, np.arange(count))
    assert offset.tolist() == wanted
    assert height == max(w + s for w, s in zip(wanted, size, strict=True))
    assert [wanted[each] for each in stacked] == sorted(wanted)


@pytest.mark.parametrize("frames", range(2, 9))
def test_a_search_ends_before_its_stack_does(frames: int) -> None:
    """Compiled loops write wherever an index says: what lies behind a stack must stay as it was."""
    problem = square(40, seed=3)
    searcher = Searcher(heaviest(problem))
    board, capacity = searcher.arrays, heaviest(problem).load
    room = new_state(
        board, np.zeros(1 << 19, np.uint64), np.ones(len(board.load), np.int64), 9999
    )
    memory = np.full((frames + 6, room.frames.shape[1]), -77, np.int64)
    state = room._replace(frames=memory[:frames])
    state.registers[WORK_LEFT] = 1 << 20
    mode = search(board, state, capacity, np.arange(len(board.size)), 0, 0)
    assert (memory[frames:] == -77).all()
    assert mode == OVERFLOWED
