from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.packing_instances import FAMILIES, chain, square, training
from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    LiveRange,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.packing import ALLOCATORS, portfolio
from memplan_cli.packing.pieces import height_of, reduce_problem
from memplan_cli.packing.search.exact import Answer, Searcher
from memplan_cli.packing.skyline import SWEEPS, best_sweep


def problem(*spans: tuple[int, int, int]) -> Problem:
    return Problem(
        tuple(
            Buffer(BufferId(f"b{i}"), size, LiveRange(start, end))
            for i, (start, end, size) in enumerate(spans)
        )
    )


# At most 7 bytes are live at once, and no layout is shorter than 8.
UNREACHABLE = problem(
    (0, 1, 4), (0, 2, 3), (1, 3, 1), (2, 3, 2), (1, 4, 3), (2, 4, 1), (3, 5, 3), (4, 5, 4)
)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(1, 100)), min_size=1)
)
def test_sweeps_reach_the_bound_if_at_most_two_buffers_are_live(
    steps: list[tuple[int, int, int]],
) -> None:
    free = [0, 0]
    spans = []
    for wait, length, size in steps:
        start = min(free) + wait
        free = [max(free), start + length]
        spans.append((start, start + length, size))
    for piece in reduce_problem(problem(*spans)).pieces:
        assert height_of(piece, best_sweep(piece, piece.load)) == piece.load


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("name", list(ALLOCATORS))
def test_every_allocator_is_safe_on_every_family(family: str, name: str) -> None:
    given = FAMILIES[family](80, 3)
    assert violations(given, ALLOCATORS[name](given)) == ()


@pytest.mark.parametrize("sweep", list(SWEEPS))
def test_every_sweep_places_nested_activations_at_the_bound(sweep: str) -> None:
    for piece in reduce_problem(training(300, 1)).pieces:
        assert height_of(piece, SWEEPS[sweep](piece)) == piece.load


def test_the_best_sweep_is_the_lowest() -> None:
    (piece, *_) = sorted(reduce_problem(square(60, 2)).pieces, key=lambda p: -len(p.size))
    least = min(height_of(piece, sweep(piece)) for sweep in SWEEPS.values())
    assert height_of(piece, best_sweep(piece, 0)) == least


@pytest.mark.parametrize("seed", range(5))
def test_a_square_cut_to_pieces_is_put_together_again(seed: int) -> None:
    given = square(150, seed)
    found = portfolio(given)
    assert violations(given, found) == ()
    assert found.height == lower_bound(given)
    assert found.proved


def test_a_height_above_the_bound_is_proved_by_searching_to_the_end() -> None:
    found = portfolio(UNREACHABLE)
    assert found.proved
    assert (found.height, lower_bound(UNREACHABLE)) == (8, 7)


def test_the_height_of_an_unproved_piece_is_not_proved_by_another_piece() -> None:
    hard = square(500, 0)
    end = max(b.live.end for b in hard.buffers)
    # A piece later in time that could be searched to the end at the height of the first.
    later = tuple(
        Buffer(
            BufferId(f"later {b.id}"),
            b.size * lower_bound(hard) // 8,
            LiveRange(b.live.start + end, b.live.end + end),
        )
        for b in UNREACHABLE.buffers
    )
    given = Problem((*hard.buffers, *later))
    found = portfolio(given, work=1000)
    assert violations(given, found) == ()
    assert found.height > lower_bound(given)
    assert not found.proved


def test_a_failure_at_one_capacity_says_nothing_of_a_larger_one() -> None:
    spans = (
        (0, 6, 2), (0, 5, 4), (6, 8, 4), (0, 1, 3), (3, 6, 1), (7, 8, 1), (5, 8, 5), (3, 7, 1),
        (4, 5, 2), (1, 3, 4), (0, 1, 1),
    )  # fmt: skip
    (piece,) = reduce_problem(problem(*spans)).pieces
    searcher = Searcher(piece)
    answers = [searcher.fit(piece.load + spare, WorkBudget(10**8))[0] for spare in (0, 1, 2)]
    assert answers == [Answer.NO, Answer.YES, Answer.YES]


def test_a_layout_found_with_the_last_unit_of_work_is_returned() -> None:
    (piece,) = reduce_problem(problem((0, 2, 1), (1, 3, 1))).pieces
    assert Searcher(piece).fit(piece.load, WorkBudget(1)) == (Answer.YES, (0, 1))


def test_without_work_nothing_above_the_bound_is_proved() -> None:
    assert not portfolio(UNREACHABLE, work=0).proved


def test_more_work_is_never_worse_and_the_same_work_gives_the_same_layout() -> None:
    given = square(400, 3)
    layouts = [portfolio(given, work=work) for work in (0, 10**6, 10**7)]
    assert all(more.height <= less.height for less, more in pairwise(layouts))
    assert portfolio(given, work=10**6) == layouts[1]


def test_no_time_means_no_search_but_still_a_layout() -> None:
    given = square(300, 1)
    found = portfolio(given, time_limit=0.0)
    assert violations(given, found) == ()
    assert found.height > lower_bound(given)


def test_the_search_stops_at_the_target_height() -> None:
    given = square(300, 1)
    easy = portfolio(given, work=0).height
    assert portfolio(given, target_height=easy).height == easy


def test_progress_is_reported_before_the_search() -> None:
    told: list[str] = []
    portfolio(square(300, 1), progress=told.append)
    assert told[-1].startswith("searching for a lower layout of")


def test_offsets_beyond_64_bits_are_placed_without_the_compiled_search() -> None:
    huge = 1 << 70
    given = problem(
        *((b.live.start, b.live.end, b.size * huge + 1) for b in UNREACHABLE.buffers)
    )
    assert violations(given, portfolio(given)) == ()


def test_an_easy_problem_loads_neither_numba_nor_numpy() -> None:
    code = (
        "import sys; from memplan_cli.packing import portfolio;"
        "from tests.benchmarks.packing_instances import skips;"
        "assert portfolio(skips(500, 1)).proved;"
        "assert not {'numba', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_chain_is_always_at_its_bound() -> None:
    assert portfolio(chain(2000, 5)).height == lower_bound(chain(2000, 5))
