"""Offset allocation: problems, layouts, and the checks that make a layout safe.

A buffer is a rectangle: ticks of the clock to the right, bytes upwards. A layout moves the
rectangles up and down so that none overlap; the arena's height is the top of the highest one.

    offset
      |   +------+
      |   |  b   |+--------+
      | +-+------+|   c    |
      | |    a   |+--------+
      +-+--------+----------> tick

This module does not depend on graphs: an allocator is a function from `Problem` to `Layout`.
`violations` checks a layout without any code of the allocators.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, NewType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

BufferId = NewType("BufferId", str)
"""The id of the first var that is stored in the buffer."""


# Types with 100,000 instances in a large model are named tuples: immutable as frozen dataclasses,
# and created in half the time.


class LiveRange(NamedTuple):
    """Half-open interval of clock ticks: ``start <= tick < end``."""

    start: int
    end: int


class Buffer(NamedTuple):
    """Storage of one var, or of several aliases.

    Attributes:
        size: in units of the arena: bytes, or multiples of the arena's symbols.
        live: the ticks at which it is needed.
        dtype, shape: compared at levels 0 and 1, where slots are reused whole.
    """

    id: BufferId
    size: int
    live: LiveRange
    dtype: str = ""
    shape: tuple[int | str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers that share one arena; every offset must be a multiple of ``alignment``."""

    buffers: tuple[Buffer, ...]
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """An offset for each buffer of an arena.

    Attributes:
        offsets: the first byte of each buffer.
        height: the size of the arena.
        proved: whether no layout has a smaller height: it equals the lower bound, or an
            exhaustive search found no other.
    """

    offsets: Mapping[BufferId, int]
    height: int
    proved: bool = False


Allocator = Callable[[Problem], Layout]
"""A function that places every buffer of a problem."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a layout breaks, and the buffers that break it."""

    reason: str
    buffers: tuple[BufferId, ...]


def align(size: int, alignment: int) -> int:
    """Round ``size`` up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def pressure(problem: Problem) -> Iterator[tuple[int, int]]:
    """Return ``(tick, bytes live from that tick on)`` for each tick at which a buffer starts or ends.

    Sizes are rounded up to the alignment.
    """
    deltas: dict[int, int] = {}
    for buffer in problem.buffers:
        padded, (start, end) = align(buffer.size, problem.alignment), buffer.live
        deltas[start] = deltas.get(start, 0) + padded
        deltas[end] = deltas.get(end, 0) - padded
    ticks = sorted(deltas)
    return zip(ticks, accumulate([deltas[tick] for tick in ticks]), strict=True)


def lower_bound(problem: Problem) -> int:
    """Return the most bytes live at one tick, sizes aligned. No layout has a smaller height."""
    return max(map(itemgetter(1), pressure(problem)), default=0)


def violations(problem: Problem, layout: Layout) -> tuple[Violation, ...]:
    """Return the rules that a layout breaks; empty if it is safe to run.

    Of several overlaps only one is returned. O(n log n).
    """
    ids = [buffer.id for buffer in problem.buffers]
    unique_ids = set(ids)
    if len(unique_ids) != len(ids):
        return (Violation("the problem has two buffers of one id", tuple(_repeated(ids))),)
    if unique_ids != layout.offsets.keys():
        unmatched = tuple(sorted(unique_ids ^ layout.offsets.keys()))
        return (Violation("placed buffers are not the problem's buffers", unmatched),)
    misplaced = tuple(_misplaced(problem, layout))
    if misplaced:
        return misplaced
    offsets = [layout.offsets[identity] for identity in ids]
    sizes = [buffer.size for buffer in problem.buffers]
    pair = first_overlap([buffer.live for buffer in problem.buffers], offsets, sizes)
    if pair is None:
        return ()
    first, second = pair
    return (Violation("overlap in time and in memory", (ids[first], ids[second])),)


def slot_violations(
    problem: Problem, by_start: Sequence[Buffer], slots: Sequence[int], height: int
) -> tuple[Violation, ...]:
    """Return the first rule that an assignment of buffers to slots breaks; empty if it is safe.

    Two buffers in one slot must not be live at the same tick. A slot is as large as its largest
    buffer, and the aligned sizes of all slots must add up to ``height``. An assignment whose
    buffers are not sorted by start is a violation too.

    Args:
        problem: the buffers to be placed, and the alignment of slots.
        by_start: its buffers, sorted by start.
        slots: the slot of each buffer in ``by_start``.
        height: the total size of all slots.
    """
    ids = {buffer.id for buffer in by_start}
    if len(by_start) != len(problem.buffers) or ids != {b.id for b in problem.buffers}:
        return (Violation("placed buffers are not the problem's buffers", tuple(sorted(ids))),)
    owner: dict[int, Buffer] = {}
    slot_sizes: dict[int, int] = {}
    previous_start = 0
    for buffer, slot in zip(by_start, slots, strict=True):
        start, previous = buffer.live.start, owner.get(slot)
        if start < previous_start:
            return (Violation("the placed buffers are not sorted by start", (buffer.id,)),)
        if previous is not None and previous.live.end > start:
            ids_in_slot = (previous.id, buffer.id)
            return (Violation("a slot is taken before it is free", ids_in_slot),)
        previous_start, owner[slot] = start, buffer
        slot_sizes[slot] = max(buffer.size, slot_sizes.get(slot, 0))
    total = sum(align(size, problem.alignment) for size in slot_sizes.values())
    return () if total == height else (Violation(f"the slots take {total} bytes", ()),)


def _repeated(ids: Iterable[BufferId]) -> Iterator[BufferId]:
    """Yield an id for each of its occurrences after the first."""
    seen: set[BufferId] = set()
    for identity in ids:
        if identity in seen:
            yield identity
        seen.add(identity)


def _misplaced(problem: Problem, layout: Layout) -> Iterator[Violation]:
    """Yield a violation for each buffer that is misaligned or outside of the arena."""
    for buffer in problem.buffers:
        offset = layout.offsets[buffer.id]
        if offset < 0:
            yield Violation("negative offset", (buffer.id,))
        if offset % problem.alignment:
            yield Violation("misaligned offset", (buffer.id,))
        if offset + buffer.size > layout.height:
            yield Violation("sticks out of the arena", (buffer.id,))


def first_overlap(
    ranges: Sequence[tuple[int, int]], offsets: Sequence[int], sizes: Sequence[int]
) -> tuple[int, int] | None:
    """Return the indices of two buffers that overlap in time and memory; None if there are none.

    A sweep over the starts and ends keeps the live buffers sorted by offset. As long as no two of them
    overlap, a starting buffer needs to be compared with its two neighbors only. O(n log n).

    Args:
        ranges: half-open live ranges.
        offsets: the first byte of each buffer.
        sizes: the bytes of each buffer; one of size 0 overlaps with none.
    """
    events: list[tuple[int, bool, int]] = []  # tick, whether a buffer starts there, its index
    for index, ((start, end), size) in enumerate(zip(ranges, sizes, strict=True)):
        if size > 0 and start < end:
            events += (start, True, index), (end, False, index)
    live: list[tuple[int, int]] = []  # offset and index of each live buffer, sorted
    for _, is_start, index in sorted(events):  # at one tick, buffers end before others start
        offset = offsets[index]
        place = bisect_left(live, (offset, index))
        if not is_start:
            del live[place]
            continue
        for other_offset, other in live[max(place - 1, 0) : place + 1]:
            if other_offset < offset + sizes[index] and offset < other_offset + sizes[other]:
                return other, index
        live.insert(place, (offset, index))
    return None
