"""Interval index over live ranges: the placed buffers that overlap a given one, by offset.

Buffers are sorted by start. What overlaps one of them was live at the last *mark* before it,
or starts between that mark and its end: a list of its own for each mark, then a range. Marks
are so close that the lists have twice as many entries together as there are buffers.

    section     0    mark 1    mark 2
    a           #######|#########|##        live at mark 1: a, c
    b           ####   |         |          live at mark 2: a, d
    c              ####|##       |          d overlaps a and c (live at mark 1), but not b,
    d                  | ########|####      and what starts from mark 1 until it ends

So a query takes as long as its answer, however many buffers there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.packing.compiled import compiled

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.search.board import Ints

NOWHERE = -1
"""The offset of a buffer that is not placed."""

# Registers: work left, sections from mark to mark, how many the buffer queried last overlaps.
WORK, STRIDE, NEAR = range(3)

_PER_BUFFER = 2
"""Entries for each buffer in the lists of those live at marks, on average."""
_SORTING = 3
"""Units of work that sorting takes for each buffer."""
_CLUSTER = 48
"""Buffers in one slot of a sort from which on they are not just inserted one by one."""


class IntervalIndex(NamedTuple):
    """The buffers of a piece, sorted by start, as columns, and what the last query found."""

    column: Ints
    """The index of each in the columns of the piece."""
    start: Ints
    end: Ints
    size: Ints
    offset: Ints
    """Units below each; NOWHERE for those not placed."""
    first: Ints
    """For each section the first buffer that starts there or later."""
    mark: Ints
    """For each mark where its list begins in ``live``; one entry more ends the last."""
    live: Ints
    """Those that start before a mark and end after it, mark by mark."""
    overlaps: Ints
    """Those that overlap, in no order that matters; the next columns go with it."""
    floor: Ints
    top: Ints
    low: Ints
    """Indices in ``overlaps``, by floor."""
    slots: Ints
    """Room for sorting."""
    registers: Ints


def intervals_of(piece: Piece, placement: Ints) -> IntervalIndex:
    """Return the buffers of a piece, each at its offset; NOWHERE for those not placed."""
    start = np.array(piece.start, np.int64)
    column = np.argsort(start, kind="stable")
    start, end = start[column], np.array(piece.end, np.int64)[column]
    size = np.array(piece.size, np.int64)[column]
    count, sections = len(column), len(piece.loads)
    stride = max(1, int((end - start).sum()) // (_PER_BUFFER * count))
    mark, live = _live_at_marks(start, end, stride)
    first = np.searchsorted(start, np.arange(sections + 1))
    overlaps, floor, top, low = (np.zeros(count, np.int64) for _ in range(4))
    registers = np.array([0, stride, 0], np.int64)
    return IntervalIndex(
        column, start, end, size, np.array(placement, np.int64)[column], first, mark, live,
        overlaps, floor, top, low, np.zeros(2 * count + 2, np.int64), registers,
    )  # fmt: skip


def _live_at_marks(start: Ints, end: Ints, stride: int) -> tuple[Ints, Ints]:
    """Return where the list of each mark begins, and the lists one after the other."""
    before = start // stride + 1  # the first mark after the start
    counts = np.maximum(0, (end - 1) // stride - before + 1)
    buffers = np.repeat(np.arange(len(start)), counts)
    within = np.arange(len(buffers)) - np.repeat(np.cumsum(counts) - counts, counts)
    marks = np.repeat(before, counts) + within
    order = np.argsort(marks, kind="stable")
    places = np.arange(int(end.max()) // stride + 2)
    return np.searchsorted(marks[order], places), buffers[order]


def placement_of(intervals: IntervalIndex) -> tuple[int, ...]:
    """Return the offsets in the order of the piece's columns."""
    placement = np.empty_like(intervals.offset)
    placement[intervals.column] = intervals.offset
    return tuple(placement.tolist())


@compiled
def find_overlaps(intervals: IntervalIndex, buffer: int) -> int:
    """Note which placed buffers overlap a buffer in time; return how many they are."""
    mark = intervals.start[buffer] // intervals.registers[STRIDE]
    first, last = intervals.mark[mark], intervals.mark[mark + 1]
    begin = intervals.first[mark * intervals.registers[STRIDE]]
    stop = intervals.first[intervals.end[buffer]]
    near = 0
    for at in range(first, last):
        near = _note(intervals, buffer, intervals.live[at], near)
    for other in range(begin, stop):
        near = _note(intervals, buffer, other, near)
    intervals.registers[NEAR] = near
    intervals.registers[WORK] -= last - first + stop - begin
    return int(near)


@compiled
def _note(intervals: IntervalIndex, buffer: int, other: int, near: int) -> int:
    """Note a buffer, if it is placed and has not ended before; return how many are noted."""
    floor = intervals.offset[other]
    if intervals.end[other] <= intervals.start[buffer] or floor < 0:
        return near
    intervals.overlaps[near] = other
    intervals.floor[near] = floor
    intervals.top[near] = floor + intervals.size[other]
    return near + 1


@compiled
def sort(intervals: IntervalIndex, keys: Ints, order: Ints, capacity: int) -> None:
    """Sort the overlaps by keys spread about evenly over 0 to ``capacity``; fill ``order``.

    Each goes into the slot of its key; slots with several are sorted by insertion, with
    large gaps first (Shell 1959) where one has many.
    """
    near, slots, shift, most = intervals.registers[NEAR], intervals.slots, 0, 0
    while capacity >> shift > near:
        shift += 1
    last = capacity >> shift
    slots[: last + 2] = 0
    for at in range(near):
        slots[min(keys[at] >> shift, last) + 1] += 1
    for slot in range(1, last + 2):
        most = max(most, slots[slot])
        slots[slot] += slots[slot - 1]
    for at in range(near):
        slot = min(keys[at] >> shift, last)
        order[slots[slot]] = at
        slots[slot] += 1
    gap = 1
    while most > _CLUSTER and gap < near // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for at in range(gap, near):
            chosen, to = order[at], at
            while to >= gap and keys[order[to - gap]] > keys[chosen]:
                order[to] = order[to - gap]
                to -= gap
            order[to] = chosen
        gap //= 3
    intervals.registers[WORK] -= _SORTING * near


@compiled
def stack(intervals: IntervalIndex, order: Ints, at: int, capacity: int) -> int:
    """Place buffers in the order given from place ``at`` on, each in the lowest gap: first fit.

    Stops when WORK is used up; returns how many have had their turn. ``capacity`` is about how
    tall the result will be.
    """
    floor, top, low, size = intervals.floor, intervals.top, intervals.low, intervals.size
    while at < len(order) and intervals.registers[WORK] > 0:
        buffer = order[at]
        place = 0
        near = find_overlaps(intervals, buffer)
        sort(intervals, floor, low, capacity)
        for look in range(near):
            other = low[look]
            if floor[other] - place >= size[buffer]:
                break
            place = max(place, top[other])
        intervals.offset[buffer] = place
        at += 1
    return int(at)


def unplaced(intervals: IntervalIndex) -> IntervalIndex:
    """Return the same buffers, none of them placed."""
    return intervals._replace(offset=np.full_like(intervals.offset, NOWHERE))
