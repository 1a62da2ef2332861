"""Offset allocation: problems, layouts, and the checks that make a layout safe.

A buffer is a rectangle: ticks of the clock to the right, bytes upwards. A layout slides
the rectangles up and down until none overlap; the arena must be as tall as the top one.

    offset
      |   +------+
      |   |  b   |+--------+
      | +-+------+|   c    |
      | |    a   |+--------+
      +-+--------+----------> tick

Nothing here knows of graphs: allocators take a `Problem` and give a `Layout`, and
`violations` says, with code that none of them share, whether that layout is safe to run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NewType, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

BufferId = NewType("BufferId", str)
"""The id of the var that opened the buffer."""


# What a large model has hundreds of thousands of is a named tuple: as frozen as a dataclass,
# and made in half the time.

Row = TypeVar("Row", bound=tuple[Any, ...])


def rows(kind: type[Row], fields: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
    """Yield named tuples of one kind from all their fields, in half the time of calls."""
    return map(partial(tuple.__new__, kind), fields)


class LiveRange(NamedTuple):
    """Half-open interval of clock ticks: ``start <= tick < end``."""

    start: int
    end: int


class Buffer(NamedTuple):
    """Storage for one var, or for several that share their bytes.

    ``size`` is in units of the arena (bytes for fixed sizes, multiples of the arena's
    symbols otherwise). ``dtype`` and ``shape`` serve the pool levels, which match on them.
    """

    id: BufferId
    size: int
    live: LiveRange
    dtype: str = ""
    shape: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers that share one arena; every offset must be a multiple of ``alignment``."""

    buffers: tuple[Buffer, ...]
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """An offset for each buffer, and the height of the arena that holds them all.

    ``proved`` is true only when the height is known to be the least possible: it equals
    the lower bound, or an exhaustive search found nothing shorter.
    """

    offsets: Mapping[BufferId, int]
    height: int
    proved: bool = False


Allocator = Callable[[Problem], Layout]
"""One strategy: where each buffer goes."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a layout is wrong, and the buffers that break the rule."""

    reason: str
    buffers: tuple[BufferId, ...]


def align(size: int, alignment: int) -> int:
    """Round ``size`` up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def pressure(problem: Problem) -> Iterator[tuple[int, int]]:
    """Return ``(tick, bytes live from that tick on)`` wherever the number changes."""
    deltas: dict[int, int] = {}
    alignment, known = problem.alignment, deltas.get
    for _, size, (start, end), _, _ in problem.buffers:
        padded = -(-size // alignment) * alignment  # `align`, without its call
        deltas[start] = known(start, 0) + padded
        deltas[end] = known(end, 0) - padded
    ticks = sorted(deltas)
    return zip(ticks, accumulate([deltas[tick] for tick in ticks]), strict=True)


def lower_bound(problem: Problem) -> int:
    """Return the most bytes live at one tick, sizes aligned: no layout can be shorter."""
    return max(map(itemgetter(1), pressure(problem)), default=0)


def violations(problem: Problem, layout: Layout) -> tuple[Violation, ...]:
    """Return what is wrong with a layout; empty means it is safe to run.

    O(n log n): `first_overlap` stops at the first overlap that it finds.
    """
    ids = [buffer.id for buffer in problem.buffers]
    known = set(ids)
    if len(known) != len(ids):
        return (Violation("the problem has two buffers of one id", tuple(_repeated(ids))),)
    if known != layout.offsets.keys():
        odd = known ^ layout.offsets.keys()
        return (Violation("placed buffers are not the problem's buffers", tuple(sorted(odd))),)
    offsets = [layout.offsets[identity] for identity in ids]
    sizes = [buffer.size for buffer in problem.buffers]
    if _are_misplaced(offsets, sizes, problem.alignment, layout.height):
        return tuple(_misplaced(problem, layout))
    pair = first_overlap([buffer.live for buffer in problem.buffers], offsets, sizes)
    if pair is None:
        return ()
    one, other = pair
    return (Violation("overlap in time and in memory", (ids[one], ids[other])),)


def slot_violations(
    problem: Problem, by_start: Sequence[Buffer], slots: Sequence[int], height: int
) -> tuple[Violation, ...]:
    """Return what is wrong with slots that are reused whole; empty means they are safe.

    A pool needs no offsets: no buffer may take a slot before the live range of the last one
    has ended, and the slots, each as large as its largest buffer, take the bytes that are
    claimed.

    Args:
        problem: What is to be placed.
        by_start: Its buffers, sorted by start.
        slots: The slot of each.
        height: The bytes claimed for all slots.
    """
    ids = {buffer.id for buffer in by_start}
    if len(by_start) != len(problem.buffers) or ids != {b.id for b in problem.buffers}:
        return (Violation("placed buffers are not the problem's buffers", tuple(sorted(ids))),)
    holder: dict[int, Buffer] = {}
    largest: dict[int, int] = {}
    now = 0
    for buffer, slot in zip(by_start, slots, strict=True):
        _, size, (start, _), _, _ = buffer
        before = holder.get(slot)
        if start < now or (before is not None and before.live.end > start):
            pair = (buffer,) if before is None else (before, buffer)
            return (Violation("a slot is taken before it is free", tuple(b.id for b in pair)),)
        now, holder[slot] = start, buffer
        if largest.get(slot, -1) < size:
            largest[slot] = size
    taken = sum(align(size, problem.alignment) for size in largest.values())
    return () if taken == height else (Violation(f"the slots take {taken} bytes", ()),)


def _repeated(ids: Iterable[BufferId]) -> Iterator[BufferId]:
    seen: set[BufferId] = set()
    for identity in ids:
        if identity in seen:
            yield identity
        seen.add(identity)


def _are_misplaced(
    offsets: Sequence[int], sizes: Sequence[int], alignment: int, height: int
) -> bool:
    if not offsets:
        return False
    odd = alignment > 1 and any(offset % alignment for offset in offsets)
    return odd or min(offsets) < 0 or max(map(add, offsets, sizes)) > height


def _misplaced(problem: Problem, layout: Layout) -> Iterator[Violation]:
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
    """Return the places of two rectangles that overlap in time and memory, if any do.

    A sweep over time keeps the offsets of what is live sorted. As long as nothing overlaps,
    what starts needs comparing with its neighbours in memory only. O(n log n).

    Args:
        ranges: When each is live, half-open: at one tick, what ends leaves before what
            starts comes.
        offsets: Where each begins.
        sizes: How much each takes; what takes nothing overlaps with nothing.
    """
    starts = [start for start, _ in ranges]
    ends = [end for _, end in ranges]
    solid = [at for at, size in enumerate(sizes) if size > 0 and starts[at] < ends[at]]
    ending = iter(sorted(solid, key=ends.__getitem__))
    next_end = next(ending, 0)
    live: list[int] = []
    tops: dict[int, int] = {}
    holder: dict[int, int] = {}
    for at in sorted(solid, key=starts.__getitem__):
        start, offset = starts[at], offsets[at]
        # What starts now is still to end, so there is an end left for as long as there are
        # starts.
        while ends[next_end] <= start:
            del live[bisect_left(live, offsets[next_end])]
            next_end = next(ending)
        place = bisect_left(live, offset)
        if place and tops[live[place - 1]] > offset:
            return holder[live[place - 1]], at
        top = offset + sizes[at]
        if place < len(live) and live[place] < top:
            return holder[live[place]], at
        live.insert(place, offset)
        tops[offset] = top
        holder[offset] = at
    return None
