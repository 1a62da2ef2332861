"""Whom does a buffer meet of those that are placed, and in which order do they lie?

Buffers are sorted by birth. Who meets one of them was alive at the last *mark* before it, or is
born between that mark and its death: a list of its own for each mark, then a range. Marks lie so
close that the lists have twice as many entries together as there are buffers.

    section     0    mark 1    mark 2
    a           #######|#########|##        alive at mark 1: a, c
    b           ####   |         |          alive at mark 2: a, d
    c              ####|##       |          d meets a and c (alive at mark 1), but not b
    d                  | ########|####      and whoever is born from mark 1 until it dies

So a question takes as long as its answer, however many buffers there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.repair.fill import NOWHERE

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.search.board import Ints

# Registers: work left, sections from mark to mark, how many the buffer asked about meets.
WORK, STRIDE, NEAR = range(3)

_PER_BUFFER = 2
"""Entries for each buffer in the lists of those alive at marks, on average."""
_SORTING = 3
"""Units of work that sorting takes for each buffer."""
_CLUSTER = 48
"""Buffers in one slot of a sort from which on they are not just inserted one by one."""


class Lives(NamedTuple):
    """The buffers of a piece, sorted by birth, as columns, and whom the last one asked about meets."""

    born: Ints
    """The place of each in the columns of the piece."""
    start: Ints
    end: Ints
    size: Ints
    offset: Ints
    """Units below each; NOWHERE for those without a place."""
    first: Ints
    """For each section the first buffer that is born there or later."""
    mark: Ints
    """For each mark where its list begins in ``alive``; one entry more ends the last."""
    alive: Ints
    """Those born before a mark that die after it, mark by mark."""
    who: Ints
    """Those met, in no order that matters; the next columns go with it."""
    floor: Ints
    top: Ints
    low: Ints
    """Places in ``who``, by floor."""
    slots: Ints
    """Room for sorting."""
    registers: Ints


def lives_of(piece: Piece, placement: Ints) -> Lives:
    """Return the buffers of a piece, each at its offset; NOWHERE for those without a place."""
    start = np.array(piece.start, np.int64)
    born = np.argsort(start, kind="stable")
    start, end = start[born], np.array(piece.end, np.int64)[born]
    size = np.array(piece.size, np.int64)[born]
    count, sections = len(born), len(piece.loads)
    stride = max(1, int((end - start).sum()) // (_PER_BUFFER * count))
    mark, alive = _alive_at_marks(start, end, stride)
    first = np.searchsorted(start, np.arange(sections + 1))
    who, floor, top, low = (np.zeros(count, np.int64) for _ in range(4))
    registers = np.array([0, stride, 0], np.int64)
    return Lives(
        born, start, end, size, np.array(placement, np.int64)[born], first, mark, alive,
        who, floor, top, low, np.zeros(2 * count + 2, np.int64), registers,
    )  # fmt: skip


def _alive_at_marks(start: Ints, end: Ints, stride: int) -> tuple[Ints, Ints]:
    """Return where the list of each mark begins, and the lists one after the other."""
    before = start // stride + 1  # the first mark after birth
    counts = np.maximum(0, (end - 1) // stride - before + 1)
    buffers = np.repeat(np.arange(len(start)), counts)
    within = np.arange(len(buffers)) - np.repeat(np.cumsum(counts) - counts, counts)
    marks = np.repeat(before, counts) + within
    order = np.argsort(marks, kind="stable")
    places = np.arange(int(end.max()) // stride + 2)
    return np.searchsorted(marks[order], places), buffers[order]


def placement_of(lives: Lives) -> tuple[int, ...]:
    """Return the offsets in the order of the piece's columns."""
    placement = np.empty_like(lives.offset)
    placement[lives.born] = lives.offset
    return tuple(placement.tolist())


@compiled
def meet(lives: Lives, buffer: int) -> int:
    """Note whom a buffer meets of those that are placed; return how many they are."""
    mark = lives.start[buffer] // lives.registers[STRIDE]
    first, last = lives.mark[mark], lives.mark[mark + 1]
    born, dead = lives.first[mark * lives.registers[STRIDE]], lives.first[lives.end[buffer]]
    near = 0
    for at in range(first, last):
        near = _note(lives, buffer, lives.alive[at], near)
    for other in range(born, dead):
        near = _note(lives, buffer, other, near)
    lives.registers[NEAR] = near
    lives.registers[WORK] -= last - first + dead - born
    return int(near)


@compiled
def _note(lives: Lives, buffer: int, other: int, near: int) -> int:
    """Note a buffer, if it is placed and has not died before; return how many are noted."""
    floor = lives.offset[other]
    if lives.end[other] <= lives.start[buffer] or floor < 0:
        return near
    lives.who[near] = other
    lives.floor[near] = floor
    lives.top[near] = floor + lives.size[other]
    return near + 1


@compiled
def sort(lives: Lives, keys: Ints, order: Ints, capacity: int) -> None:
    """Sort those met by keys that lie about evenly from 0 to ``capacity``; fill ``order``.

    Each goes into the slot of its key; slots that hold several are sorted by insertion, from
    afar first (Shell 1959) where one holds many.
    """
    near, slots, shift, most = lives.registers[NEAR], lives.slots, 0, 0
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
    lives.registers[WORK] -= _SORTING * near


@compiled
def stack(lives: Lives, order: Ints, at: int, capacity: int) -> int:
    """Place buffers in the order given from place ``at`` on, each in the lowest gap: first fit.

    Stops when WORK is used up; returns how many have had their turn. ``capacity`` is about how
    tall the result will be.
    """
    floor, top, low, size = lives.floor, lives.top, lives.low, lives.size
    while at < len(order) and lives.registers[WORK] > 0:
        buffer = order[at]
        place = 0
        near = meet(lives, buffer)
        sort(lives, floor, low, capacity)
        for look in range(near):
            other = low[look]
            if floor[other] - place >= size[buffer]:
                break
            place = max(place, top[other])
        lives.offset[buffer] = place
        at += 1
    return int(at)


def unplaced(lives: Lives) -> Lives:
    """Return the same buffers, none of them placed."""
    return lives._replace(offset=np.full_like(lives.offset, NOWHERE))
