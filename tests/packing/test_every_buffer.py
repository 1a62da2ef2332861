"""Every allocator places every buffer, those without bytes or time too, and at its alignment."""

from __future__ import annotations

import pytest

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, violations
from memplan_cli.packing import ALLOCATORS
from memplan_cli.packing.pieces import reduce_problem
from memplan_cli.packing.slots import SlotBuffers, by_size, by_start


def buffer(name: str, size: int, start: int, end: int) -> Buffer:
    return Buffer(BufferId(name), size, LiveRange(start, end), "int8", (size,))


ODD = Problem(
    (buffer("none", 0, 0, 4), buffer("never", 8, 2, 2), buffer("a", 5, 0, 2),
     buffer("b", 3, 1, 3), buffer("later", 9, 7, 9), buffer("never again", 4, 30, 30)),
    4,
)  # fmt: skip


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_allocator_places_buffers_without_bytes_or_time(name: str) -> None:
    found = ALLOCATORS[name](ODD)
    assert set(found.offsets) == {each.id for each in ODD.buffers}
    assert violations(ODD, found) == ()


def test_buffers_without_bytes_or_time_are_in_no_piece() -> None:
    found = reduce_problem(ODD)
    assert sorted(found.weightless) == ["never", "never again", "none"]
    assert [sorted(piece.ids) for piece in found.pieces] == [["a", "b"], ["later"]]


def test_each_piece_begins_at_its_own_first_section() -> None:
    stairs = Problem(tuple(buffer(f"b{at}", 1 + at, 3 * at, 3 * at + 2) for at in range(4)))
    found = reduce_problem(stairs)
    assert [(piece.start, piece.end) for piece in found.pieces] == [((0,), (1,))] * 4


def test_orders_of_slots_put_first_what_their_names_say() -> None:
    spans = SlotBuffers((4, 9, 9, 2), (0, 1, 3, 2), (9, 5, 7, 4), 9)
    rows = range(4)
    assert sorted(rows, key=lambda at: by_start(spans, at)) == [0, 1, 3, 2]
    assert sorted(rows, key=lambda at: by_size(spans, at)) == [1, 2, 0, 3]
