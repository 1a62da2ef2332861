from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    Layout,
    LiveRange,
    Problem,
    align,
    first_overlap,
    lower_bound,
    pressure,
    slot_violations,
    violations,
)


def buffer(name: str, start: int, end: int, size: int) -> Buffer:
    return Buffer(BufferId(name), size, LiveRange(start, end))


def layout(height: int, **offsets: int) -> Layout:
    return Layout({BufferId(name): offset for name, offset in offsets.items()}, height)


def reasons(problem: Problem, found: Layout) -> list[str]:
    return [violation.reason for violation in violations(problem, found)]


PAIR = Problem((buffer("a", 0, 2, 4), buffer("b", 1, 3, 4)))


def test_align_rounds_up() -> None:
    assert [align(size, 64) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_pressure_counts_what_starts_and_ends_at_a_tick_together() -> None:
    problem = Problem((buffer("a", 0, 2, 4), buffer("b", 2, 3, 6)))
    assert list(pressure(problem)) == [(0, 4), (2, 6), (3, 0)]


def test_lower_bound_aligns_sizes() -> None:
    assert lower_bound(PAIR) == 8
    assert lower_bound(Problem(PAIR.buffers, alignment=64)) == 128
    assert lower_bound(Problem(())) == 0


def test_a_layout_without_overlap_is_safe() -> None:
    assert reasons(PAIR, layout(8, a=0, b=4)) == []


def test_buffers_that_are_not_live_together_may_share_bytes() -> None:
    problem = Problem((buffer("a", 0, 2, 4), buffer("b", 2, 3, 4)))
    assert reasons(problem, layout(4, a=0, b=0)) == []


def test_buffers_without_bytes_or_time_meet_nobody() -> None:
    problem = Problem((buffer("a", 0, 2, 4), buffer("b", 0, 2, 0), buffer("c", 1, 1, 4)))
    assert reasons(problem, layout(4, a=0, b=1, c=0)) == []


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_overlap_in_time_and_memory_is_a_violation(offset: int) -> None:
    assert reasons(PAIR, layout(8, a=0, b=offset)) == ["overlap in time and in memory"]


def test_an_overlap_behind_a_large_neighbor_is_found() -> None:
    problem = Problem(
        (
            buffer("a", 0, 9, 2),
            buffer("b", 0, 9, 8),
            buffer("c", 1, 9, 2),
            buffer("d", 2, 9, 1),
        )
    )
    assert reasons(problem, layout(20, a=0, b=2, c=10, d=9)) != []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (layout(8, a=-4, b=0), "negative offset"),
        (layout(7, a=0, b=4), "sticks out of the arena"),
        (layout(8, a=0), "placed buffers are not the problem's buffers"),
        (layout(8, a=0, b=4, c=0), "placed buffers are not the problem's buffers"),
    ],
)
def test_a_layout_that_breaks_a_rule_says_which(found: Layout, reason: str) -> None:
    assert reason in reasons(PAIR, found)


def test_offsets_are_multiples_of_the_alignment() -> None:
    assert reasons(Problem(PAIR.buffers, 4), layout(12, a=0, b=6)) == ["misaligned offset"]


@pytest.mark.parametrize("kind", [int, float, np.int64])
def test_an_overlap_is_found_whatever_kind_of_number_an_offset_is(
    kind: type[int | float],
) -> None:
    offsets = {buffer.id: kind(64) for buffer in PAIR.buffers}
    found = violations(Problem(PAIR.buffers, 64), Layout(offsets, 128))  # type: ignore[arg-type]
    assert [violation.reason for violation in found] == ["overlap in time and in memory"]


def test_two_buffers_of_one_id_are_a_violation() -> None:
    problem = Problem((buffer("a", 0, 2, 4), buffer("a", 5, 6, 4)))
    assert reasons(problem, layout(4, a=0)) == ["the problem has two buffers of one id"]


CHAINED = (buffer("a", 0, 2, 8), buffer("b", 1, 3, 4), buffer("c", 2, 4, 6))
"""``c`` starts when ``a`` is dead and ``b`` is not."""


def wrong_with(slots: tuple[int, ...], height: int, by_start: tuple[Buffer, ...]) -> list[str]:
    found = slot_violations(Problem(CHAINED), by_start, slots, height)
    return [violation.reason for violation in found]


def test_slots_that_are_reused_when_they_are_free_are_safe() -> None:
    assert wrong_with((0, 1, 0), 12, CHAINED) == []
    assert wrong_with((0, 1, 2), 18, CHAINED) == []
    aligned = Problem(CHAINED, alignment=64)
    assert slot_violations(aligned, CHAINED, (0, 1, 0), 128) == ()


def test_a_slot_may_be_taken_by_what_is_larger_than_its_first_holder() -> None:
    small = (buffer("a", 0, 1, 2), buffer("b", 1, 2, 9))
    assert slot_violations(Problem(small), small, (0, 0), 9) == ()
    assert slot_violations(Problem(small), small, (0, 0), 2) != ()


def test_a_slot_that_somebody_still_holds_is_no_free_one() -> None:
    (found,) = slot_violations(Problem(CHAINED), CHAINED, (0, 1, 1), 14)
    assert found.reason == "a slot is taken before it is free"
    assert found.buffers == ("b", "c")


def test_slots_that_take_other_bytes_than_claimed_are_a_violation() -> None:
    assert wrong_with((0, 1, 0), 11, CHAINED) == ["the slots take 12 bytes"]


def test_slots_must_be_given_to_the_buffers_of_the_problem_by_start() -> None:
    unsorted = "the placed buffers are not sorted by start"
    assert wrong_with((0, 1, 2), 18, CHAINED[::-1]) == [unsorted]
    missing = "placed buffers are not the problem's buffers"
    assert wrong_with((0, 1), 12, CHAINED[:2]) == [missing]
    assert wrong_with((0, 1, 2), 20, (*CHAINED[:2], CHAINED[0])) == [missing]
    assert wrong_with((0, 1, 2, 3), 26, (*CHAINED, CHAINED[0])) == [missing]


RECTANGLES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 12), st.integers(0, 5)),
    max_size=8,
)
"""Start, duration, offset, size; both may be nothing."""


@given(rectangles=RECTANGLES)
def test_the_sweep_finds_an_overlap_exactly_where_two_rectangles_share_a_byte_and_a_tick(
    rectangles: list[tuple[int, int, int, int]],
) -> None:
    cells = [
        {(t, b) for t in range(start, start + ticks) for b in range(low, low + size)}
        for start, ticks, low, size in rectangles
    ]
    wrong = {
        frozenset((one, other))
        for one in range(len(cells))
        for other in range(one)
        if cells[one] & cells[other]
    }
    pair = first_overlap(
        [(start, start + ticks) for start, ticks, _, _ in rectangles],
        [low for _, _, low, _ in rectangles],
        [size for _, _, _, size in rectangles],
    )
    assert (pair is None) == (not wrong)
    assert pair is None or frozenset(pair) in wrong
