"""Slots for buffers of one kind: the least sizes they must have, and which buffer goes where.

A slot is as large as the largest buffer in it and holds one buffer at a time. The cost of an
assignment is the sum of the sizes of its slots:

    section    0 1 2 3 4
    slot 0     aaaa  ddd     size 8: a has 8 bytes, d has 6
    slot 1       bbb cc      size 5: b has 5 bytes, c has 2      cost 13

The least cost is max-coloring of an interval graph, which is NP-hard.

**Lower bound.** If k buffers of at least ``size`` bytes are live at one tick, k slots have at
least that size. So the k-th largest slot is at least as large as the largest size of which k
buffers are live together, and the sum of these sizes is a bound (Pemmaraju, Raman and
Varadarajan, "Buffer minimization using max-coloring", 2004). If all buffers have one size, as
at level 0, the bound is always reached.

**Assignment.** First fit by falling size solves most problems. Best fit into slots of the least
sizes gives the buffers that get none of them priority in the next round, until all get one or the
work is used up (squeaky-wheel optimization, Joslin and Clements 1999).

Everything is deterministic: orders end in the index of a buffer.
"""

from __future__ import annotations

from bisect import bisect_left, insort_left
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from memplan_cli.core.problem import Buffer, Problem


@dataclass(frozen=True, slots=True)
class SlotBuffers:
    """Buffers of one kind, as columns with one entry for each buffer.

    Attributes:
        sizes: Aligned bytes of each buffer.
        starts: First section of each buffer. A section begins where a buffer is first used.
        ends: Section after the last of each buffer.
        sections: Number of sections.
    """

    sizes: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    sections: int


def slot_buffers(buffers: Sequence[Buffer], alignment: int) -> SlotBuffers:
    """Return the columns of buffers of one kind (`SlotBuffers`).

    A section is the time from one start of a buffer to the next. In between, buffers only end, so no more
    of them are live together. A buffer counts to the end of the section in which it ends, and for one
    section if its live range is empty.
    """
    ticks = sorted({buffer.live.start for buffer in buffers})
    section = {tick: index for index, tick in enumerate(ticks)}
    starts = [section[buffer.live.start] for buffer in buffers]
    ends = [
        max(bisect_left(ticks, buffer.live.end), start + 1)
        for buffer, start in zip(buffers, starts, strict=True)
    ]
    return SlotBuffers([align(b.size, alignment) for b in buffers], starts, ends, len(ticks))


def by_kind(
    buffers: Sequence[Buffer], kind: Callable[[Buffer], Hashable]
) -> dict[Hashable, list[int]]:
    """Return the indices of the buffers of each kind, kinds in the order of their first buffer."""
    indices: dict[Hashable, list[int]] = {}
    for index, buffer in enumerate(buffers):
        indices.setdefault(kind(buffer), []).append(index)
    return indices


def slot_bound(problem: Problem, kind: Callable[[Buffer], Hashable]) -> int:
    """Return the least bytes that slots for all buffers need if no two kinds share a slot."""
    groups = [
        [problem.buffers[index] for index in indices]
        for indices in by_kind(problem.buffers, kind).values()
    ]
    return sum(sum(least_slots(slot_buffers(group, problem.alignment))) for group in groups)


def least_slots(buffers: SlotBuffers) -> list[int]:
    """Return the slot sizes that every assignment needs at least, the largest first. Their sum bounds its cost.

    Buffers are added by falling size. If those of 8 bytes raise the largest number of live buffers from 3 to 5,
    two slots of 8 bytes are needed. Takes a pass over the sections for each size.
    """
    indices: dict[int, list[int]] = {}
    for index, size in enumerate(buffers.sizes):
        indices.setdefault(size, []).append(index)
    change = [0] * (buffers.sections + 1)  # in the number of live buffers, at each section
    slot_sizes: list[int] = []
    for size in sorted(indices, reverse=True):
        for index in indices[size]:
            change[buffers.starts[index]] += 1
            change[buffers.ends[index]] -= 1
        most_live = max(accumulate(change))
        slot_sizes += [size] * (most_live - len(slot_sizes))
    return slot_sizes


Assignment = list[int]
"""The slot of each buffer, by its index in the columns."""

WORK = 8_000_000
"""Units of work for best fit: half a second for the buffers of one kind. A unit is one slot that is
compared with one buffer."""

FIRST_FIT_WORK = 1_000_000_000
"""Units of work up to which first fit is tried, some two seconds: it ends at the first free slot, which is
mostly among the first of all. A training step of tens of thousands of nodes takes more."""

MAX_ROUNDS = 60
"""Largest number of rounds with priorities."""

_SECTIONS_PER_WORK = 2048
"""Sections, as bits of one integer, that are compared in about the time of a unit of work."""

_WORK_PER_BUFFER = 32
"""Units of work that best fit takes for a buffer besides those for its slots."""


def by_start(buffers: SlotBuffers, index: int) -> tuple[int, ...]:
    """Return a sort key: by first use."""
    return buffers.starts[index], -buffers.sizes[index], index


def by_size(buffers: SlotBuffers, index: int) -> tuple[int, ...]:
    """Return a sort key: by falling size, then by first use."""
    return -buffers.sizes[index], buffers.starts[index], index


def cost(buffers: SlotBuffers, slots: Assignment) -> int:
    """Return the bytes of all slots of an assignment."""
    slot_size: dict[int, int] = {}
    for slot, size in zip(slots, buffers.sizes, strict=True):
        if slot_size.get(slot, -1) < size:
            slot_size[slot] = size
    return sum(slot_size.values())


def best_slots(buffers: SlotBuffers, known: Assignment, work: int = WORK) -> Assignment:
    """Return the cheapest assignment that is found; of equals, the first.

    ``known`` is a valid assignment; the result costs no more. Unless it costs the least possible, first
    fit is tried, and best fit in rounds of at most ``work`` units.
    """
    least_sizes = least_slots(buffers)
    bound = sum(least_sizes)
    best, least_cost = known, cost(buffers, known)
    if least_cost <= bound:  # so without buffers, too
        return best
    for slots in _candidates(buffers, least_sizes, work):
        slots_cost = cost(buffers, slots)
        if slots_cost < least_cost:
            best, least_cost = slots, slots_cost
        if least_cost <= bound:
            break
    return best


def _candidates(
    buffers: SlotBuffers, least_sizes: Sequence[int], work: int
) -> Iterator[Assignment]:
    """Yield the assignment of first fit, then one for each round of best fit.

    The rounds of best fit take at most ``work`` units. First fit has a limit of its own, FIRST_FIT_WORK,
    above which it is left out. ``least_sizes`` are the sizes from `least_slots`. There must be a buffer.
    """
    buffer_count, slot_count = len(buffers.sizes), len(least_sizes)
    # A unit of work is the comparison of a buffer with a slot, by integers that have a bit for each section
    # (a moment at which a buffer is first used). With many sections, a comparison takes more units.
    comparison_work = 1 + buffers.sections // _SECTIONS_PER_WORK
    if buffer_count * slot_count * comparison_work <= FIRST_FIT_WORK:
        yield first_fit(buffers, sorted(range(buffer_count), key=partial(by_size, buffers)))
    round_work = buffer_count * (_WORK_PER_BUFFER + slot_count * comparison_work)
    rounds = min(work // round_work, MAX_ROUNDS)
    yield from best_fit_rounds(buffers, least_sizes, rounds)


def best_fit_rounds(
    buffers: SlotBuffers, least_sizes: Sequence[int], rounds: int
) -> Iterator[Assignment]:
    """Yield an assignment for each round of best fit into slots of the least sizes.

    Buffers are assigned by start. A buffer for which no slot was large enough and free comes earlier
    in later rounds.
    """
    misses = [0] * len(buffers.sizes)
    keys = [by_start(buffers, index) for index in range(len(misses))]
    for _ in range(rounds):
        order = sorted(range(len(misses)), key=lambda index: (-misses[index], keys[index]))
        result = best_fit(buffers, order, least_sizes)
        yield result.slots
        for index in result.missed:
            misses[index] += 1


@dataclass(frozen=True, slots=True)
class BestFitResult:
    """An assignment, and the buffers for which no slot was free and large enough."""

    slots: Assignment
    missed: Sequence[int]


@dataclass(slots=True)
class _Slot:
    """A slot of a best fit.

    Attributes:
        number: tells the slot from others.
        size: its bytes.
        taken: the sections in which it holds a buffer, as bits.
    """

    number: int
    size: int
    taken: int = 0


def best_fit(
    buffers: SlotBuffers, order: Sequence[int], slot_sizes: Sequence[int]
) -> BestFitResult:
    """Give each buffer the smallest slot that is free and large enough.

    If there is none, the buffer is missed, and gets the largest free slot, which is enlarged. If no
    slot is free, one is opened.

    Args:
        buffers: The buffers, all of one kind.
        order: Their indices, in the order in which they are assigned.
        slot_sizes: The sizes of slots that exist from the start, in any order.

    Returns:
        The slot of each buffer, and the missed buffers. The numbers of slots only tell them apart.
    """
    by_size = attrgetter("size")
    slots = [_Slot(number, size) for number, size in enumerate(sorted(slot_sizes))]
    assignment = [-1] * len(order)
    missed = []
    for buffer in order:
        size = buffers.sizes[buffer]
        # One bit for each section of the buffer, as in ``_Slot.taken``: 0b11100 for the sections 2, 3 and 4.
        live = (1 << buffers.ends[buffer]) - (1 << buffers.starts[buffer])
        first_fitting = bisect_left(slots, size, key=by_size)
        for slot in islice(slots, first_fitting, None):
            if not slot.taken & live:
                break
        else:  # no slot that is large enough is free
            missed.append(buffer)
            too_small = reversed(range(first_fitting))
            largest_free = next((i for i in too_small if not slots[i].taken & live), None)
            if largest_free is None:
                slot = _Slot(len(slots), size)
            else:
                slot = slots.pop(largest_free)
                slot.size = size
            insort_left(slots, slot, key=by_size)
        slot.taken |= live
        assignment[buffer] = slot.number
    return BestFitResult(assignment, missed)


def first_fit(buffers: SlotBuffers, order: Sequence[int]) -> Assignment:
    """Give each buffer the first slot that is free; slots are numbered as they are opened.

    ``order`` has the indices of the buffers, in the order in which they are assigned.
    """
    taken: list[int] = []  # for each slot, the sections in which it holds a buffer, as bits
    slots = [-1] * len(order)
    for buffer in order:
        live = (1 << buffers.ends[buffer]) - (1 << buffers.starts[buffer])
        free_slots = (slot for slot, sections in enumerate(taken) if not sections & live)
        slot = next(free_slots, len(taken))
        if slot == len(taken):
            taken.append(0)
        taken[slot] |= live
        slots[buffer] = slot
    return slots
