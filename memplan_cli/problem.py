"""What is offset allocation, and when is an answer right?

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

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

BufferId = NewType("BufferId", str)
"""The id of the var that opened the buffer."""


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Half-open interval of clock ticks: ``start <= tick < end``."""

    start: int
    end: int

    def overlaps(self, other: LiveRange) -> bool:
        """Whether both are live at some tick."""
        return self.start < other.end and other.start < self.end

    def including(self, time: int) -> LiveRange:
        """Return the smallest range that also covers ``time``."""
        return LiveRange(min(self.start, time), max(self.end, time + 1))

    def hull(self, other: LiveRange) -> LiveRange:
        """Return the smallest range that covers both."""
        return LiveRange(min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class Buffer:
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
    """Yield ``(tick, bytes live from that tick on)`` wherever the number changes."""
    deltas: dict[int, int] = {}
    for buffer in problem.buffers:
        size = align(buffer.size, problem.alignment)
        deltas[buffer.live.start] = deltas.get(buffer.live.start, 0) + size
        deltas[buffer.live.end] = deltas.get(buffer.live.end, 0) - size
    ticks = sorted(deltas)
    yield from zip(ticks, accumulate(deltas[tick] for tick in ticks), strict=True)


def lower_bound(problem: Problem) -> int:
    """Return the most bytes live at one tick, sizes aligned: no layout can be shorter."""
    return max((live for _, live in pressure(problem)), default=0)


def violations(problem: Problem, layout: Layout) -> tuple[Violation, ...]:
    """Return what is wrong with a layout; empty means it is safe to run.

    O(n log n): a sweep over time keeps the live buffers sorted by offset and looks only at
    neighbours, which is enough as long as nothing found so far overlaps; it stops at the
    first overlap.
    """
    ids = [buffer.id for buffer in problem.buffers]
    if len(set(ids)) != len(ids):
        return (Violation("the problem has two buffers of one id", tuple(_repeated(ids))),)
    if set(ids) != set(layout.offsets):
        odd = set(ids) ^ set(layout.offsets)
        return (Violation("placed buffers are not the problem's buffers", tuple(sorted(odd))),)
    found = tuple(_misplaced(problem, layout))
    return found or tuple(_first_overlap(problem, layout))


def _repeated(ids: Iterable[BufferId]) -> Iterator[BufferId]:
    seen: set[BufferId] = set()
    for identity in ids:
        if identity in seen:
            yield identity
        seen.add(identity)


def _misplaced(problem: Problem, layout: Layout) -> Iterator[Violation]:
    for buffer in problem.buffers:
        offset = layout.offsets[buffer.id]
        if offset < 0:
            yield Violation("negative offset", (buffer.id,))
        if offset % problem.alignment:
            yield Violation("misaligned offset", (buffer.id,))
        if offset + buffer.size > layout.height:
            yield Violation("sticks out of the arena", (buffer.id,))


def _first_overlap(problem: Problem, layout: Layout) -> Iterator[Violation]:
    solid = [b for b in problem.buffers if b.size > 0 and b.live.start < b.live.end]
    # At one tick, what ends there leaves before what starts there comes.
    events = sorted(
        [(b.live.start, 1, layout.offsets[b.id], b.size, b.id) for b in solid]
        + [(b.live.end, 0, layout.offsets[b.id], b.size, b.id) for b in solid]
    )
    live: list[tuple[int, int, BufferId]] = []
    for _, starts, offset, size, identity in events:
        entry = (offset, size, identity)
        at = bisect_left(live, entry)
        if not starts:
            del live[at]
            continue
        for other_offset, other_size, other in live[max(at - 1, 0) : at + 1]:
            if offset < other_offset + other_size and other_offset < offset + size:
                yield Violation("overlap in time and in memory", (other, identity))
                return
        insort(live, entry)
