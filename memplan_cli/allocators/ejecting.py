"""Can what sticks out of an arena be fitted in by throwing others out, who then fit elsewhere?

The buffer that is worth most of those without a place goes into the tightest gap. Where there
is none, it goes where those in its way are together the cheapest, and they are placed anew
after it. Whoever finds no gap becomes dearer, so that the same two do not throw each other out
for ever, and for some steps cannot be thrown out again.

The penalties are those of guided ejection search (Nagata and Bräysy 2009, for vehicle
routing); gaps, prices and worth by the geometric mean of size and length are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.allocators.budget import Found
from memplan_cli.allocators.compiled import compiled
from memplan_cli.allocators.filling import NOWHERE
from memplan_cli.allocators.pieces import height_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memplan_cli.allocators.board import Ints
    from memplan_cli.allocators.budget import Budget
    from memplan_cli.allocators.pieces import Piece

    Floats = NDArray[np.float64]

# Registers: how many are placed, how many are not, steps taken, state of chance, work left,
# how many of those placed the buffer at hand meets.
PLACED, LOOSE, STEP, CHANCE, WORK, NEAR = range(6)

_LOOK = 4
"""Buffers that are passed over in the time of a unit of work."""
_WEIGH = 10
"""Units of work for weighing one buffer that is in the way."""
_BAN = 3
"""Steps for which a buffer that found no gap cannot be thrown out; chance doubles them."""
_BANNED = 1e15
"""The price of such a buffer."""
_SLICE = 20_000_000
"""Work between two looks at the clock."""
_FIRST = 0.15
"""Share of the work for the height that is aimed at."""
_EACH = 0.3
"""Share of what is left for each of the heights between."""
_FINEST = 2000
"""One in how many of the height is too little to be tried for."""


class Crowd(NamedTuple):
    """Buffers with and without a place, as columns."""

    start: Ints
    end: Ints
    size: Ints
    offset: Ints
    """Units below each; NOWHERE for those without a place."""
    by_floor: Ints
    """Those placed, by offset."""
    by_top: Ints
    """Those placed, by offset and size."""
    loose: Ints
    """Those not placed."""
    worth: Floats
    price: Floats
    """What throwing each out costs: its worth, the more the oftener it found no gap."""
    banned: Ints
    """The step up to which each cannot be thrown out."""
    low: Ints
    """Those that the buffer at hand meets, by offset."""
    high: Ints
    """The same, by offset and size."""
    registers: Ints


def crowd_of(piece: Piece, placement: Ints, capacity: int) -> Crowd:
    """Return the buffers of a piece; what sticks out of ``capacity`` units has no place."""
    start, end = np.array(piece.start, np.int64), np.array(piece.end, np.int64)
    size = np.array(piece.size, np.int64)
    inside = (placement >= 0) & (placement + size <= capacity)
    offset = np.where(inside, placement, NOWHERE)
    worth = np.sqrt(size.astype(np.float64) * (end - start))
    by_floor, by_top = np.zeros_like(size), np.zeros_like(size)
    count = int(inside.sum())
    placed = np.flatnonzero(inside)
    by_floor[:count] = placed[np.argsort(offset[placed], kind="stable")]
    by_top[:count] = placed[np.argsort((offset + size)[placed], kind="stable")]
    loose = np.zeros_like(size)
    loose[: len(size) - count] = np.flatnonzero(~inside)
    registers = np.array([count, len(size) - count, 0, 1, 0, 0], np.int64)
    return Crowd(
        start, end, size, offset, by_floor, by_top, loose, worth, worth.copy(),
        np.zeros_like(size), np.zeros_like(size), np.zeros_like(size), registers,
    )  # fmt: skip


@compiled
def _random(crowd: Crowd, below: int) -> int:
    """Return a number from 0 up to ``below``; the sequence is always the same."""
    state = (crowd.registers[CHANCE] * 1103515245 + 12345) & 0x7FFFFFFF
    crowd.registers[CHANCE] = state
    return int((state >> 8) % below)


@compiled
def _take_worthiest(crowd: Crowd) -> int:
    loose, worth, registers = crowd.loose, crowd.worth, crowd.registers
    last = registers[LOOSE] - 1
    chosen = last
    for at in range(last):
        if worth[loose[at]] > worth[loose[chosen]]:
            chosen = at
    buffer = loose[chosen]
    loose[chosen] = loose[last]
    registers[LOOSE] = last
    registers[WORK] -= last
    return int(buffer)


@compiled
def _tightest_gap(crowd: Crowd, buffer: int, capacity: int) -> int:
    """Return the offset of the tightest gap, or NOWHERE; note whom the buffer meets."""
    start, end, size, offset = crowd.start, crowd.end, crowd.size, crowd.offset
    by_floor, low = crowd.by_floor, crowd.low
    begin, stop, units = start[buffer], end[buffer], size[buffer]
    near, floor, found, tightest = 0, 0, NOWHERE, capacity + 1
    for at in range(crowd.registers[PLACED]):
        other = by_floor[at]
        if start[other] < stop and begin < end[other]:
            low[near] = other
            near += 1
            gap = offset[other] - floor
            if units <= gap < tightest:
                found, tightest = floor, gap
            floor = max(floor, offset[other] + size[other])
    if units <= capacity - floor < tightest:
        found = floor
    crowd.registers[NEAR] = near
    crowd.registers[WORK] -= crowd.registers[PLACED] // _LOOK + near
    return int(found)


@compiled
def _cost_of(crowd: Crowd, buffer: int) -> float:
    return _BANNED if crowd.banned[buffer] > crowd.registers[STEP] else crowd.price[buffer]


@compiled
def _weigh(crowd: Crowd, buffer: int, capacity: int, below: bool) -> tuple[int, float]:  # noqa: FBT001
    """Return the cheapest offset on top of another buffer, or just below one, and its cost.

    Who is in the way has begun below the top and not ended at the floor: both are counted
    along as the place moves upwards.
    """
    low, high, offset, size = crowd.low, crowd.high, crowd.offset, crowd.size
    near, units = crowd.registers[NEAR], size[buffer]
    begun, ended, ties = 0, 0, 0
    cost, best, found = 0.0, 4.0 * _BANNED * (near + 1), NOWHERE
    for at in range(-1, near):
        if below:
            place = (offset[low[at]] if at >= 0 else capacity) - units
        else:
            place = offset[high[at]] + size[high[at]] if at >= 0 else 0
        if place < 0 or (below and at < 0):
            continue
        if place + units > capacity:
            break
        while begun < near and offset[low[begun]] < place + units:
            cost += _cost_of(crowd, low[begun])
            begun += 1
        while ended < near and offset[high[ended]] + size[high[ended]] <= place:
            cost -= _cost_of(crowd, high[ended])
            ended += 1
        if cost < best * (1 - 1e-9):
            best, found, ties = cost, place, 1
        elif cost <= best * (1 + 1e-9):
            ties += 1
            if _random(crowd, ties) == 0:
                found = place
    return found, best


@compiled
def _cheapest_place(crowd: Crowd, buffer: int, capacity: int) -> int:
    """Return where those in the way are the cheapest together."""
    start, end, by_top, high = crowd.start, crowd.end, crowd.by_top, crowd.high
    begin, stop, near = start[buffer], end[buffer], 0
    for at in range(crowd.registers[PLACED]):
        other = by_top[at]
        if start[other] < stop and begin < end[other]:
            high[near] = other
            near += 1
    crowd.registers[WORK] -= crowd.registers[PLACED] // _LOOK + _WEIGH * near
    above, cost = _weigh(crowd, buffer, capacity, False)  # noqa: FBT003
    below, less = _weigh(crowd, buffer, capacity, True)  # noqa: FBT003
    return below if less < cost * (1 - 1e-9) else above


@compiled
def _throw_out(crowd: Crowd, buffer: int, place: int) -> None:
    """Take away all that is in the way of a buffer."""
    start, end, size, offset = crowd.start, crowd.end, crowd.size, crowd.offset
    registers, by_floor, by_top = crowd.registers, crowd.by_floor, crowd.by_top
    begin, stop, top = start[buffer], end[buffer], place + size[buffer]
    kept = 0
    for at in range(registers[PLACED]):
        other = by_floor[at]
        apart = offset[other] >= top or offset[other] + size[other] <= place
        if apart or start[other] >= stop or begin >= end[other]:
            by_floor[kept] = other
            kept += 1
        else:
            offset[other] = NOWHERE
            crowd.loose[registers[LOOSE]] = other
            registers[LOOSE] += 1
    kept = 0
    for at in range(registers[PLACED]):
        if offset[by_top[at]] >= 0:
            by_top[kept] = by_top[at]
            kept += 1
    registers[PLACED] = kept


@compiled
def _put(crowd: Crowd, buffer: int, place: int) -> None:
    offset, size, by_floor, by_top = crowd.offset, crowd.size, crowd.by_floor, crowd.by_top
    offset[buffer] = place
    count = crowd.registers[PLACED]
    at = count
    while at > 0 and offset[by_floor[at - 1]] > place:
        by_floor[at] = by_floor[at - 1]
        at -= 1
    by_floor[at] = buffer
    at, top = count, place + size[buffer]
    while at > 0 and offset[by_top[at - 1]] + size[by_top[at - 1]] > top:
        by_top[at] = by_top[at - 1]
        at -= 1
    by_top[at] = buffer
    crowd.registers[PLACED] = count + 1


@compiled
def settle(crowd: Crowd, capacity: int) -> bool:
    """Place buffers until all have a place or WORK is used up; return whether all have."""
    registers = crowd.registers
    while registers[LOOSE] > 0 and registers[WORK] > 0:
        registers[STEP] += 1
        buffer = _take_worthiest(crowd)
        place = _tightest_gap(crowd, buffer, capacity)
        if place < 0:
            crowd.price[buffer] += crowd.worth[buffer]
            place = _cheapest_place(crowd, buffer, capacity)
            _throw_out(crowd, buffer, place)
            crowd.banned[buffer] = registers[STEP] + 1 + _BAN + _random(crowd, _BAN)
        _put(crowd, buffer, place)
    return bool(registers[LOOSE] == 0)


def lowered(piece: Piece, best: Found, budget: Budget) -> Found:
    """Lower a placement: try the height aimed at, then heights between, as far as work allows."""
    best = _tried(piece, best, best.bound, (budget.share(_FIRST), budget))
    doubtful = best.bound
    while not budget.is_enough(best):
        gap = best.height - doubtful
        if gap <= max(1, best.height // _FINEST):
            break
        capacity = doubtful + gap // 2
        best = _tried(piece, best, capacity, (budget.share(_EACH), budget))
        if best.height > capacity:
            doubtful = capacity
    return best


def settled(piece: Piece, best: Found, offsets: Ints, budgets: tuple[Budget, Budget]) -> Found:
    """Complete a placement of some buffers within the height aimed at, if that succeeds."""
    return _settled(piece, best, crowd_of(piece, offsets, best.bound), best.bound, budgets)


def _tried(piece: Piece, best: Found, capacity: int, budgets: tuple[Budget, Budget]) -> Found:
    """Fit in what sticks out of ``capacity`` units."""
    crowd = crowd_of(piece, np.array(best.placement, np.int64), capacity)
    return _settled(piece, best, crowd, capacity, budgets)


def _settled(
    piece: Piece, best: Found, crowd: Crowd, capacity: int, budgets: tuple[Budget, Budget]
) -> Found:
    part, whole = budgets
    while not part.is_over():
        allowed = min(_SLICE, part.work - part.spent)
        crowd.registers[WORK] = allowed
        done = settle(crowd, capacity)
        used = allowed - int(crowd.registers[WORK])
        part.charge(used)
        whole.charge(used)
        if done:
            placement = tuple(int(offset) for offset in crowd.offset)
            return Found(placement, height_of(piece, placement), best.bound)
    return best
