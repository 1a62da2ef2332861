"""First fit around fixed buffers: the others fill the gaps of a partial layout.

Each goes, in the order given, into the lowest gap that is large enough, and above everything
that overlaps it in time where there is none. A compiled loop: thousands of buffers take
milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.packing.compiled import compiled

if TYPE_CHECKING:
    from memplan_cli.packing.search.board import Ints

NOWHERE = -1
"""The offset of a buffer that is not placed."""


@compiled
def lowest_gap(  # noqa: PLR0913, PLR0917 - compiled code takes plain arrays
    start: Ints, end: Ints, size: Ints, offset: Ints, stacked: Ints, count: int, buffer: int
) -> int:
    """Return the lowest offset at which a buffer overlaps none of those in ``stacked``.

    Args:
        start: First section of each buffer.
        end: Section after the last of each buffer.
        size: Units of each buffer.
        offset: Units below each buffer that is placed.
        stacked: The buffers that are placed, by offset.
        count: How many those are.
        buffer: Which one to place.
    """
    begin, stop, units = start[buffer], end[buffer], size[buffer]
    floor = 0
    for at in range(count):
        other = stacked[at]
        if start[other] < stop and begin < end[other]:
            if offset[other] - floor >= units:
                break
            floor = max(floor, offset[other] + size[other])
    return int(floor)


@compiled
def fill(  # noqa: PLR0913, PLR0917 - compiled code takes plain arrays
    start: Ints, end: Ints, size: Ints, offset: Ints, stacked: Ints, order: Ints
) -> int:
    """Place every buffer whose offset is NOWHERE; return the height.

    Args:
        start: First section of each buffer.
        end: Section after the last of each buffer.
        size: Units of each buffer.
        offset: Units below each buffer, or NOWHERE; filled in.
        stacked: All buffers, by offset, those not placed first; sorted anew.
        order: All buffers, in the order in which they are placed.
    """
    count, height = 0, 0
    for buffer in stacked:
        if offset[buffer] >= 0:
            stacked[count] = buffer
            count += 1
            height = max(height, offset[buffer] + size[buffer])
    for buffer in order:
        if offset[buffer] >= 0:
            continue
        floor = lowest_gap(start, end, size, offset, stacked, count, buffer)
        offset[buffer] = floor
        at = count
        while at > 0 and offset[stacked[at - 1]] > floor:
            stacked[at] = stacked[at - 1]
            at -= 1
        stacked[at] = buffer
        count += 1
        height = max(height, floor + size[buffer])
    return int(height)
