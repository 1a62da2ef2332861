from __future__ import annotations

import time

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem
from memplan_cli.packing.pools import SlotAssignment, level0, level1, pool_levels


def buffer(name: str, live: tuple[int, int], size: int, dtype: str = "float32") -> Buffer:
    return Buffer(BufferId(name), size, LiveRange(*live), dtype, (size,))


def slots(assignment: SlotAssignment) -> dict[str, int]:
    return {
        str(b.id): slot for b, slot in zip(assignment.buffers, assignment.slots, strict=True)
    }


def test_a_twin_reuses_the_slot_of_a_dead_buffer() -> None:
    problem = Problem((buffer("a", (0, 2), 8), buffer("b", (2, 3), 8)))
    assert slots(pool_levels(problem)[0]) == {"a": 0, "b": 0}
    assert level0(problem).height == 8


def test_a_slot_is_reused_as_often_as_its_buffer_dies() -> None:
    problem = Problem(tuple(buffer(name, (i, i + 1), 8) for i, name in enumerate("abc")))
    assert slots(pool_levels(problem)[0]) == {"a": 0, "b": 0, "c": 0}


def test_buffers_get_slots_by_start_and_then_by_id() -> None:
    problem = Problem((buffer("z", (1, 2), 8), buffer("b", (0, 1), 8), buffer("a", (0, 1), 8)))
    assert list(slots(pool_levels(problem)[0]).items()) == [("a", 0), ("b", 1), ("z", 0)]


def test_level_0_wants_the_shape_and_level_1_only_room() -> None:
    problem = Problem((buffer("a", (0, 1), 8), buffer("b", (1, 2), 6)))
    assert level0(problem).height == 14
    assert level1(problem).height == 8


def test_no_level_crosses_dtypes() -> None:
    problem = Problem((buffer("a", (0, 1), 8), buffer("b", (1, 2), 8, "int64")))
    assert level1(problem).height == 16


def test_level_1_keeps_the_slots_of_level_0_where_they_are_at_the_bound() -> None:
    # Were the small one given the large slot, the large one would find none.
    problem = Problem(
        (
            buffer("large", (0, 1), 10),
            buffer("small", (1, 3), 2),
            buffer("twin", (2, 3), 10),
            buffer("late", (4, 5), 2),
        )
    )
    assert level1(problem).height == 12
    twins, own = pool_levels(problem)
    assert own == twins


def test_slots_are_stacked_and_aligned() -> None:
    problem = Problem((buffer("a", (0, 2), 5), buffer("b", (1, 2), 5)), alignment=4)
    layout = level0(problem)
    assert (dict(layout.offsets), layout.height) == ({"a": 0, "b": 8}, 16)


def test_slots_of_wider_elements_lie_below() -> None:
    bytes_first = buffer("a", (0, 2), 5, "int8"), buffer("b", (1, 2), 8, "float32")
    layout = level1(Problem(bytes_first))
    assert (dict(layout.offsets), layout.height) == ({"b": 0, "a": 8}, 13)


def test_thirty_thousand_buffers_are_matched_in_seconds() -> None:
    problem = Problem(
        tuple(
            buffer(f"b{i:06}", (i, i + 1 + i % 50), 1 + i * 7919 % 1000) for i in range(30_000)
        )
    )
    started = time.process_time()
    level1(problem)
    assert time.process_time() - started < 10, "a scan over all free slots would take minutes"
