from __future__ import annotations

import time

from memplan_cli.allocators.pool import (
    Handover,
    level0,
    level0_pools,
    level1,
    level1_pools,
    slot_layout,
)
from memplan_cli.problem import Buffer, BufferId, LiveRange, Problem


def buffer(name: str, live: tuple[int, int], size: int, dtype: str = "float32") -> Buffer:
    return Buffer(BufferId(name), size, LiveRange(*live), dtype, (size,))


def by_name(handovers: tuple[Handover, ...]) -> dict[str, Handover]:
    return {h.buffer: h for h in handovers}


def test_a_twin_takes_over_the_slot_of_a_dead_buffer() -> None:
    problem = Problem((buffer("a", (0, 2), 8), buffer("b", (2, 3), 8)))
    assert level0_pools(problem)[1] == Handover(BufferId("b"), BufferId("a"), slot=0, pool=1)
    assert level0(problem).height == 8


def test_the_donor_is_the_last_holder_and_not_the_first() -> None:
    problem = Problem(tuple(buffer(name, (i, i + 1), 8) for i, name in enumerate("abc")))
    assert [h.donor for h in level0_pools(problem)] == [None, "a", "b"]


def test_level_0_wants_the_shape_and_level_1_only_room() -> None:
    problem = Problem((buffer("a", (0, 1), 8), buffer("b", (1, 2), 6)))
    assert level0(problem).height == 14
    assert level1(problem).height == 8


def test_no_level_crosses_dtypes() -> None:
    problem = Problem((buffer("a", (0, 1), 8), buffer("b", (1, 2), 8, "int64")))
    assert level1(problem).height == 16


def test_the_tightest_slot_is_taken() -> None:
    problem = Problem((buffer("a", (0, 1), 9), buffer("b", (0, 1), 7), buffer("c", (1, 2), 6)))
    assert by_name(level1_pools(problem))["c"].donor == "b"


def test_every_refusal_has_its_reason() -> None:
    problem = Problem(
        (
            buffer("a", (0, 2), 4),
            buffer("b", (1, 9), 4),
            buffer("c", (3, 4), 6),
            buffer("d", (3, 4), 2, "int8"),
        )
    )
    found = by_name(level1_pools(problem))
    assert found["a"].reason == "nothing is dead yet"
    assert found["b"].reason == "no slot is free"
    assert found["c"].reason == "no free slot of dtype float32 is large enough"
    assert found["d"].reason == "no free slot has dtype int8"
    twin = by_name(level0_pools(problem))["c"]
    assert twin.reason == "no free slot has dtype float32 and shape [6]"


def test_pool_counts_all_free_slots_at_that_moment() -> None:
    problem = Problem(
        (buffer("a", (0, 1), 4), buffer("b", (0, 1), 4, "int8"), buffer("c", (1, 2), 4))
    )
    assert by_name(level0_pools(problem))["c"].pool == 2


def test_level_1_falls_back_to_level_0_where_its_own_matching_is_worse() -> None:
    # At level 1 the small one takes the large slot, and the large one finds none.
    problem = Problem(
        (
            buffer("large", (0, 1), 10),
            buffer("small", (1, 3), 2),
            buffer("twin", (2, 3), 10),
            buffer("late", (4, 5), 2),
        )
    )
    assert level1(problem).height == 12
    assert level1_pools(problem) == level0_pools(problem)


def test_slots_are_stacked_and_aligned() -> None:
    problem = Problem((buffer("a", (0, 2), 5), buffer("b", (1, 2), 5)), alignment=4)
    layout = slot_layout(problem, level0_pools(problem))
    assert (dict(layout.offsets), layout.height) == ({"a": 0, "b": 8}, 16)


def test_a_hundred_thousand_buffers_are_matched_in_seconds() -> None:
    problem = Problem(
        tuple(
            buffer(f"b{i:06}", (i, i + 1 + i % 50), 1 + i * 7919 % 1000)
            for i in range(100_000)
        )
    )
    started = time.perf_counter()
    level1(problem)
    assert time.perf_counter() - started < 10, "a scan over all free slots would take minutes"
