"""Can what sticks out of an arena be fitted in by throwing others out, who then fit elsewhere?

Whoever sticks out of a height a little below the present one is taken out and placed anew: in
the tightest gap, or, where there is none, where those in its way are together the cheapest.
They are placed anew after it, the worthiest first, and so on. That is a *chain*; if it does not
come to an end within some steps, all it moved goes back. So one crowded moment does not spoil
what is found at others, and the work goes where the layout is the tallest.

Whoever finds no gap becomes dearer, so that the same two do not throw each other out for ever,
and for some steps cannot be thrown out again.

The penalties are those of guided ejection search (Nagata and Bräysy 2009, for vehicle
routing); gaps, prices and worth by size and length are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.packing.budget import Found
from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.pieces import height_of
from memplan_cli.packing.repair.fill import NOWHERE
from memplan_cli.packing.repair.interval_index import (
    NEAR,
    lives_of,
    meet,
    placement_of,
    sort,
    stack,
    unplaced,
)
from memplan_cli.packing.repair.interval_index import WORK as LOOKS
from memplan_cli.packing.repair.state import (
    CHAIN,
    FAILED,
    LAST,
    LOOSE,
    MOVED,
    STEP,
    TURN,
    WORK,
    crowd_of,
    loosen,
    move,
    random,
    take_back,
    take_worthiest,
)

if TYPE_CHECKING:
    from memplan_cli.packing.budget import Budget
    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.repair.state import Crowd
    from memplan_cli.packing.search.board import Ints

_STEP = 40
"""Units of work of a step, beside those for looking around."""
_WEIGH = 2
"""Units of work for weighing one buffer that is in the way."""
_SAME = 1e-9
"""Share by which two costs may differ that were summed up in another order."""
_BAN = 3
"""Steps for which a buffer that found no gap cannot be thrown out; chance doubles them."""
_SLICE = 20_000_000
"""Work between two looks at the clock."""
_STRETCH = 0.3
"""Share of the gap above the bound that is tried to be taken off at once, at first."""
_LEAST = 0.01
"""The least such share; it is halved where chains failed."""
_PATIENCE = 100
"""Steps of a chain, at first."""
_GROWTH = 1.2
"""How much longer chains may be after some have failed."""


@compiled
def _tightest_gap(crowd: Crowd, buffer: int, capacity: int) -> int:
    """Return the offset of the tightest gap, or NOWHERE; note whom the buffer meets."""
    lives, units = crowd.lives, crowd.lives.size[buffer]
    floor, found, tightest = 0, NOWHERE, capacity + 1
    near = meet(lives, buffer)
    sort(lives, lives.floor, lives.low, capacity)
    for at in range(near):
        other = lives.low[at]
        gap = min(capacity, lives.floor[other]) - floor
        if units <= gap < tightest:
            found, tightest = floor, gap
        floor = max(floor, lives.top[other])
    if units <= capacity - floor < tightest:
        found = floor
    return int(found)


@compiled
def _weigh(crowd: Crowd, units: int, count: int) -> tuple[int, int, float]:
    """Return the cheapest of the places noted, which rise, and its cost.

    The cost: how many cannot be thrown out, and the price of the others. Who is in the way has
    begun below the top and not ended at the floor: both are counted along.
    """
    floor = crowd.lives.floor
    top = crowd.lives.top
    low = crowd.lives.low
    high = crowd.high
    near = crowd.lives.registers[NEAR]
    begun = ended = ties = bars = 0
    cost, best, fewest, found = 0.0, 0.0, near + 1, NOWHERE
    for at in range(count):
        place = crowd.places[at]
        while begun < near and floor[low[begun]] < place + units:
            cost += crowd.toll[low[begun]]
            bars += crowd.barred[low[begun]]
            begun += 1
        while ended < near and top[high[ended]] <= place:
            cost -= crowd.toll[high[ended]]
            bars -= crowd.barred[high[ended]]
            ended += 1
        if bars > fewest:
            continue
        if bars < fewest or cost < best * (1 - _SAME):
            best, fewest, found, ties = cost, bars, place, 1
        elif cost <= best * (1 + _SAME):
            ties += 1
            if random(crowd, ties) == 0:
                found = place
    return found, fewest, best


@compiled
def _cheapest_place(crowd: Crowd, buffer: int, capacity: int) -> int:
    """Return where those in the way are the cheapest together; who sticks out costs nothing.

    Looks on top of each of those met and at the bottom, then just below each.
    """
    lives = crowd.lives
    near, units = lives.registers[NEAR], lives.size[buffer]
    for at in range(near):
        other = lives.who[at]
        inside = lives.top[at] <= capacity
        crowd.barred[at] = inside and crowd.banned[other] > crowd.registers[STEP]
        crowd.toll[at] = crowd.price[other] if inside else 0.0
    sort(lives, lives.top, crowd.high, capacity)
    lives.registers[LOOKS] -= _WEIGH * near
    crowd.places[0] = 0
    count = 1
    for at in range(near):
        place = lives.top[crowd.high[at]]
        if place + units > capacity:
            break
        crowd.places[count] = place
        count += 1
    above, bars, cost = _weigh(crowd, units, count)
    count = 0
    for at in range(near):
        place = lives.floor[lives.low[at]] - units
        if 0 <= place <= capacity - units:
            crowd.places[count] = place
            count += 1
    below, fewer, less = _weigh(crowd, units, count)
    if fewer < bars or (fewer == bars and less < cost * (1 - _SAME)):
        return int(below)
    return int(above)


@compiled
def _throw_out(crowd: Crowd, buffer: int, place: int) -> None:
    """Take away all that is in the way of a buffer."""
    lives, top = crowd.lives, place + crowd.lives.size[buffer]
    for at in range(lives.registers[NEAR]):
        if lives.floor[at] < top and lives.top[at] > place:
            loosen(crowd, lives.who[at])


@compiled
def settle(crowd: Crowd, capacity: int) -> bool:
    """Place buffers until all have a place, WORK is used up or LAST is over.

    Returns whether all have.
    """
    registers, looks = crowd.registers, crowd.lives.registers
    looks[LOOKS] = registers[WORK]
    while registers[LOOSE] > 0 and looks[LOOKS] > 0 and registers[STEP] < registers[LAST]:
        registers[STEP] += 1
        looks[LOOKS] -= _STEP
        buffer = take_worthiest(crowd)
        place = _tightest_gap(crowd, buffer, capacity)
        if place < 0:
            crowd.price[buffer] += crowd.worth[buffer]
            place = _cheapest_place(crowd, buffer, capacity)
            _throw_out(crowd, buffer, place)
            crowd.banned[buffer] = registers[STEP] + 1 + _BAN + random(crowd, _BAN)
        move(crowd, buffer, place)
    registers[WORK] = looks[LOOKS]
    return bool(registers[LOOSE] == 0)


@compiled
def fit_in(crowd: Crowd, outside: Ints, capacity: int, patience: int) -> None:
    """Go on with the chains of those that stick out, in turn, until WORK is used up."""
    registers = crowd.registers
    while registers[WORK] > 0:
        if registers[LOOSE] == 0:
            if registers[TURN] == len(outside):
                return
            buffer = outside[registers[TURN]]
            registers[TURN] += 1
            registers[WORK] -= 1
            if crowd.offset[buffer] + crowd.lives.size[buffer] <= capacity:
                continue
            registers[CHAIN] += 1
            registers[MOVED] = 0
            registers[LAST] = registers[STEP] + patience
            loosen(crowd, buffer)
        if not settle(crowd, capacity) and registers[STEP] >= registers[LAST]:
            registers[FAILED] += 1
            take_back(crowd)


def lowered(piece: Piece, best: Found, budget: Budget) -> Found:
    """Lower a placement little by little, as far as work allows.

    Starts from the placement or from first fit by size, whichever is lower.
    """
    best = _stacked(piece, best, budget)
    crowd = crowd_of(piece, np.array(best.placement, np.int64), best.height)
    stretch, patience = _STRETCH, _PATIENCE
    height = best.height
    while height > max(best.bound, budget.enough) and not budget.is_over():
        gap = height - max(best.bound, budget.enough)
        capacity = height - max(1, int(gap * stretch))
        if _fit_in(crowd, capacity, patience, budget):
            stretch = max(_LEAST, stretch / 2)
            patience = int(patience * _GROWTH)
        height = int((crowd.offset + crowd.lives.size).max())
    if height == best.height:
        return best
    return Found(placement_of(crowd.lives), height, best.bound)


def _stacked(piece: Piece, best: Found, budget: Budget) -> Found:
    """Return a placement or what first fit by size finds, whichever is lower."""
    lives = unplaced(lives_of(piece, np.array(best.placement, np.int64)))
    order = np.argsort(-lives.size, kind="stable")
    turn = 0
    while turn < len(order) and not budget.is_enough(best):
        allowed = min(_SLICE, budget.work - budget.spent)
        lives.registers[LOOKS] = allowed
        turn = stack(lives, order, turn, best.height)
        budget.charge(allowed - int(lives.registers[LOOKS]))
    height = int((lives.offset + lives.size).max())
    if turn < len(order) or height >= best.height:
        return best
    return Found(placement_of(lives), height, best.bound)


def _fit_in(crowd: Crowd, capacity: int, patience: int, budget: Budget) -> bool:
    """Fit in what sticks out of ``capacity`` units; return whether some of it did not fit."""
    registers = crowd.registers
    outside = np.flatnonzero(crowd.offset + crowd.lives.size > capacity)
    outside = outside[np.argsort(-crowd.worth[outside], kind="stable")]
    registers[TURN], registers[FAILED] = 0, 0
    while registers[TURN] < len(outside) or registers[LOOSE]:
        if budget.is_over():
            if registers[LOOSE]:
                take_back(crowd)
            return True
        allowed = min(_SLICE, budget.work - budget.spent)
        registers[WORK] = allowed
        fit_in(crowd, outside, capacity, patience)
        budget.charge(allowed - int(registers[WORK]))
    return bool(registers[FAILED])


def settled(piece: Piece, best: Found, offsets: Ints, budgets: tuple[Budget, Budget]) -> Found:
    """Complete a placement of some buffers within the height aimed at, if that succeeds."""
    crowd = crowd_of(piece, offsets, best.bound)
    part, whole = budgets
    while not part.is_over():
        allowed = min(_SLICE, part.work - part.spent)
        crowd.registers[WORK] = allowed
        done = settle(crowd, best.bound)
        used = allowed - int(crowd.registers[WORK])
        part.charge(used)
        whole.charge(used)
        if done:
            placement = placement_of(crowd.lives)
            return Found(placement, height_of(piece, placement), best.bound)
    return best
