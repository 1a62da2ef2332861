from __future__ import annotations

import random
import time

from memplan_cli.packing.slots import (
    SlotBuffers,
    best_fit,
    best_fit_rounds,
    best_slots,
    by_size,
    cost,
    first_fit,
    least_slots,
)


def spans(*buffers: tuple[int, int, int]) -> SlotBuffers:
    """Return (start, end, size) as columns."""
    starts, ends, sizes = zip(*buffers, strict=True)
    return SlotBuffers(sizes, starts, ends, max(ends))


CHAIN = spans((0, 2, 1), (1, 3, 2), (2, 4, 3), (3, 5, 4))
"""Each larger than the one before: no slot that is freed fits the next."""


def many(count: int, longest: int) -> SlotBuffers:
    draw = random.Random(count)
    starts = sorted(draw.randrange(count) for _ in range(count))
    ends = [start + 1 + draw.randrange(longest) for start in starts]
    sizes = [draw.randrange(1, 1 << 20) for _ in range(count)]
    return SlotBuffers(sizes, starts, [min(end, count) for end in ends], count)


def test_a_slot_of_each_size_is_needed_that_is_live_with_all_that_are_larger() -> None:
    assert least_slots(CHAIN) == [4, 3]
    assert least_slots(spans((0, 1, 5), (1, 2, 7), (1, 2, 7))) == [7, 7]
    assert least_slots(SlotBuffers((), (), (), 0)) == []


def test_slots_of_the_least_sizes_are_found_for_growing_buffers() -> None:
    found = best_slots(CHAIN, [0, 1, 2, 3])
    assert cost(CHAIN, found) == 7


def test_a_known_assignment_at_the_bound_is_returned() -> None:
    known = [5, 9, 5, 9]
    assert best_slots(CHAIN, known) is known


def test_of_assignments_that_cost_the_same_the_known_one_is_returned() -> None:
    for count in range(5, 40):
        buffers = many(count, 10)
        known = best_slots(buffers, [*range(count)])
        assert best_slots(buffers, known) is known


def test_without_work_only_first_fit_is_tried() -> None:
    assert cost(CHAIN, best_slots(CHAIN, [0, 1, 2, 3], work=0)) == 7


def test_best_fit_enlarges_the_largest_free_slot_where_none_is_large_enough() -> None:
    buffers = spans((0, 1, 2), (0, 1, 3), (1, 2, 5))
    found = best_fit(buffers, (0, 1, 2), ())
    assert found.slots[2] == found.slots[1]
    assert list(found.missed) == [0, 1, 2]


def test_best_fit_takes_the_tightest_slot() -> None:
    found = best_fit(spans((0, 1, 2)), (0,), (9, 3))
    assert (found.slots, list(found.missed)) == ([0], [])


def test_buffers_without_a_slot_come_first_in_the_next_round() -> None:
    buffers = spans((3, 5, 3), (1, 3, 1), (2, 3, 3), (0, 2, 1), (2, 5, 3))
    costs = [cost(buffers, slots) for slots in best_fit_rounds(buffers, [3, 3, 1], 2)]
    assert costs == [9, 7]


def test_first_fit_takes_the_first_slot_that_is_free() -> None:
    buffers = many(200, 30)
    order = sorted(range(200), key=lambda at: by_size(buffers, at))
    slots = first_fit(buffers, order)
    members: list[list[int]] = []
    for at in order:
        free = [
            number
            for number, others in enumerate(members)
            if not any(
                buffers.starts[at] < buffers.ends[o] and buffers.starts[o] < buffers.ends[at]
                for o in others
            )
        ]
        assert slots[at] == (free[0] if free else len(members))
        if slots[at] == len(members):
            members.append([])
        members[slots[at]].append(at)


def test_thousands_of_buffers_of_as_many_sizes_are_near_the_bound_in_seconds() -> None:
    buffers = many(5_000, 50)
    started = time.process_time()
    found = best_slots(buffers, list(range(5_000)))
    assert time.process_time() - started < 5
    assert cost(buffers, found) < 1.08 * sum(least_slots(buffers))
