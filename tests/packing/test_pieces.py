from __future__ import annotations

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, violations
from memplan_cli.packing.pieces import layout_of, reduce_problem


def problem(*spans: tuple[int, int, int], alignment: int = 1) -> Problem:
    return Problem(
        tuple(
            Buffer(BufferId(f"b{i}"), size, LiveRange(start, end))
            for i, (start, end, size) in enumerate(spans)
        ),
        alignment,
    )


def test_time_is_cut_where_nothing_is_live() -> None:
    found = reduce_problem(problem((0, 2, 4), (2, 3, 4), (7, 9, 4)))
    assert [piece.ids for piece in found.pieces] == [("b0",), ("b1",), ("b2",)]


def test_sections_are_the_largest_sets_of_live_buffers() -> None:
    (piece,) = reduce_problem(problem((0, 6, 1), (3, 9, 2), (5, 11, 4), (9, 12, 8))).pieces
    assert (piece.start, piece.end) == ((0, 0, 0, 1), (1, 1, 2, 2))
    assert piece.loads == (7, 12)


def test_a_buffer_that_starts_where_another_ends_does_not_overlap_it() -> None:
    (piece,) = reduce_problem(problem((0, 3, 1), (0, 9, 1), (3, 9, 1))).pieces
    assert dict(zip(piece.ids, zip(piece.start, piece.end, strict=True), strict=True)) == {
        "b0": (0, 1),
        "b1": (0, 2),
        "b2": (1, 2),
    }


def test_sizes_are_divided_by_their_greatest_common_divisor() -> None:
    found = reduce_problem(problem((0, 2, 96), (1, 3, 64)))
    assert (found.unit, found.pieces[0].size) == (32, (3, 2))


def test_sizes_are_rounded_up_to_the_alignment_first() -> None:
    found = reduce_problem(problem((0, 2, 65), (1, 3, 1), alignment=64))
    assert (found.unit, found.pieces[0].size, found.load) == (64, (2, 1), 3)


def test_weightless_buffers_overlap_nothing_and_still_get_an_offset() -> None:
    given = problem((0, 2, 4), (0, 2, 0), (1, 1, 9))
    found = reduce_problem(given)
    assert found.weightless == ("b1", "b2")
    layout = layout_of(found, [(0,)])
    assert violations(given, layout) == ()
    assert layout.height == 9, "a buffer without time still has to lie in the arena"


def test_a_layout_as_short_as_the_load_is_proved() -> None:
    found = reduce_problem(problem((0, 2, 4), (1, 3, 6)))
    assert layout_of(found, [(0, 2)]).proved
    assert not layout_of(found, [(0, 3)]).proved


def test_an_empty_problem_has_a_proved_height_of_zero() -> None:
    layout = layout_of(reduce_problem(problem()), [])
    assert (layout.height, layout.proved) == (0, True)
