"""Local search by ejection chains, which move the buffers that exceed a capacity.

A buffer that exceeds a capacity a little below the present height is removed and placed anew:
in the tightest gap, or, where there is none, where the buffers that overlap it cost least to
evict. Those are ejected and placed anew after it, in order of priority, and so on. That is an
*ejection chain*; one that does not end within some steps is undone. So one section that is
hard to pack does not spoil what is found in others, and the work goes where the layout is
tallest.

Each time a buffer finds no gap, its eviction cost rises, so that two buffers do not eject each
other for ever, and for some steps it is tabu: it cannot be ejected again.

The penalties are those of guided ejection search (Nagata and Bräysy 2009, for vehicle
routing); gaps, eviction costs and priority by size and length are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.packing.budget import Found
from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.pieces import height_of
from memplan_cli.packing.repair.interval_index import (
    NEAR,
    NOWHERE,
    find_overlaps,
    intervals_of,
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
    MOVED,
    STEP,
    TURN,
    UNPLACED,
    WORK,
    eject,
    move,
    pop_first,
    random,
    state_of,
    undo_chain,
)

if TYPE_CHECKING:
    from memplan_cli.packing.budget import Budget
    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.repair.state import RepairState
    from memplan_cli.packing.search.board import Ints

_STEP = 40
"""Units of work of a step, beside those for finding overlaps."""
_WEIGH = 2
"""Units of work for summing up the cost of one buffer that overlaps."""
_SAME = 1e-9
"""Share by which two costs may differ that were summed up in another order."""
_TABU = 3
"""Steps for which a buffer that found no gap cannot be ejected; chance doubles them."""
_SLICE = 20_000_000
"""Work between two looks at the clock."""
_SHARE = 0.3
"""Share of the gap above the bound by which the capacity is lowered at once, at first."""
_LEAST = 0.01
"""The least such share; it is halved where chains failed."""
_PATIENCE = 100
"""Steps of a chain, at first."""
_GROWTH = 1.2
"""How much longer chains may be after some have failed."""


@compiled
def _tightest_gap(state: RepairState, buffer: int, capacity: int) -> int:
    """Return the offset of the tightest gap, or NOWHERE; note what the buffer overlaps."""
    intervals, units = state.intervals, state.intervals.size[buffer]
    floor, found, tightest = 0, NOWHERE, capacity + 1
    near = find_overlaps(intervals, buffer)
    sort(intervals, intervals.floor, intervals.low, capacity)
    for at in range(near):
        other = intervals.low[at]
        gap = min(capacity, intervals.floor[other]) - floor
        if units <= gap < tightest:
            found, tightest = floor, gap
        floor = max(floor, intervals.top[other])
    if units <= capacity - floor < tightest:
        found = floor
    return int(found)


@compiled
def _weigh(state: RepairState, units: int, count: int) -> tuple[int, int, float]:
    """Return the cheapest of the places noted, which rise, and its cost.

    The cost: how many buffers are tabu, and the eviction costs of the others. A buffer
    overlaps if it begins below the top and does not end at the floor: both are counted along.
    """
    floor = state.intervals.floor
    top = state.intervals.top
    low = state.intervals.low
    high = state.high
    near = state.intervals.registers[NEAR]
    begun = ended = ties = bars = 0
    cost, best, fewest, found = 0.0, 0.0, near + 1, NOWHERE
    for at in range(count):
        place = state.places[at]
        while begun < near and floor[low[begun]] < place + units:
            cost += state.overlap_cost[low[begun]]
            bars += state.is_tabu[low[begun]]
            begun += 1
        while ended < near and top[high[ended]] <= place:
            cost -= state.overlap_cost[high[ended]]
            bars -= state.is_tabu[high[ended]]
            ended += 1
        if bars > fewest:
            continue
        if bars < fewest or cost < best * (1 - _SAME):
            best, fewest, found, ties = cost, bars, place, 1
        elif cost <= best * (1 + _SAME):
            ties += 1
            if random(state, ties) == 0:
                found = place
    return found, fewest, best


@compiled
def _cheapest_place(state: RepairState, buffer: int, capacity: int) -> int:
    """Return the place with the least eviction cost; what exceeds the capacity costs nothing.

    Tries the top of each overlapping buffer and the bottom, then just below each.
    """
    intervals = state.intervals
    near, units = intervals.registers[NEAR], intervals.size[buffer]
    for at in range(near):
        other = intervals.overlaps[at]
        inside = intervals.top[at] <= capacity
        state.is_tabu[at] = inside and state.tabu[other] > state.registers[STEP]
        state.overlap_cost[at] = state.eviction_cost[other] if inside else 0.0
    sort(intervals, intervals.top, state.high, capacity)
    intervals.registers[LOOKS] -= _WEIGH * near
    state.places[0] = 0
    count = 1
    for at in range(near):
        place = intervals.top[state.high[at]]
        if place + units > capacity:
            break
        state.places[count] = place
        count += 1
    above, bars, cost = _weigh(state, units, count)
    count = 0
    for at in range(near):
        place = intervals.floor[intervals.low[at]] - units
        if 0 <= place <= capacity - units:
            state.places[count] = place
            count += 1
    below, fewer, less = _weigh(state, units, count)
    if fewer < bars or (fewer == bars and less < cost * (1 - _SAME)):
        return int(below)
    return int(above)


@compiled
def _eject_conflicting(state: RepairState, buffer: int, place: int) -> None:
    """Eject all that overlaps a buffer at a place."""
    intervals, top = state.intervals, place + state.intervals.size[buffer]
    for at in range(intervals.registers[NEAR]):
        if intervals.floor[at] < top and intervals.top[at] > place:
            eject(state, intervals.overlaps[at])


@compiled
def settle(state: RepairState, capacity: int) -> bool:
    """Place buffers until all are placed, WORK is used up or LAST is over.

    Returns whether all are.
    """
    registers, looks = state.registers, state.intervals.registers
    looks[LOOKS] = registers[WORK]
    while registers[UNPLACED] > 0 and looks[LOOKS] > 0 and registers[STEP] < registers[LAST]:
        registers[STEP] += 1
        looks[LOOKS] -= _STEP
        buffer = pop_first(state)
        place = _tightest_gap(state, buffer, capacity)
        if place < 0:
            state.eviction_cost[buffer] += state.priority[buffer]
            place = _cheapest_place(state, buffer, capacity)
            _eject_conflicting(state, buffer, place)
            state.tabu[buffer] = registers[STEP] + 1 + _TABU + random(state, _TABU)
        move(state, buffer, place)
    registers[WORK] = looks[LOOKS]
    return bool(registers[UNPLACED] == 0)


@compiled
def fit_in(state: RepairState, outside: Ints, capacity: int, patience: int) -> None:
    """Continue the chains of what exceeds the capacity, in turn, until WORK is used up."""
    registers = state.registers
    while registers[WORK] > 0:
        if registers[UNPLACED] == 0:
            if registers[TURN] == len(outside):
                return
            buffer = outside[registers[TURN]]
            registers[TURN] += 1
            registers[WORK] -= 1
            if state.offset[buffer] + state.intervals.size[buffer] <= capacity:
                continue
            registers[CHAIN] += 1
            registers[MOVED] = 0
            registers[LAST] = registers[STEP] + patience
            eject(state, buffer)
        if not settle(state, capacity) and registers[STEP] >= registers[LAST]:
            registers[FAILED] += 1
            undo_chain(state)


def lowered(piece: Piece, best: Found, budget: Budget) -> Found:
    """Lower a placement little by little, as far as work allows.

    Starts from the placement or from first fit by size, whichever is lower.
    """
    best = _stacked(piece, best, budget)
    state = state_of(piece, np.array(best.placement, np.int64), best.height)
    share, patience = _SHARE, _PATIENCE
    height = best.height
    while height > max(best.bound, budget.enough) and not budget.is_over():
        gap = height - max(best.bound, budget.enough)
        capacity = height - max(1, int(gap * share))
        if _fit_in(state, capacity, patience, budget):
            share = max(_LEAST, share / 2)
            patience = int(patience * _GROWTH)
        height = int((state.offset + state.intervals.size).max())
    if height == best.height:
        return best
    return Found(placement_of(state.intervals), height, best.bound)


def _stacked(piece: Piece, best: Found, budget: Budget) -> Found:
    """Return a placement or what first fit by size finds, whichever is lower."""
    intervals = unplaced(intervals_of(piece, np.array(best.placement, np.int64)))
    order = np.argsort(-intervals.size, kind="stable")
    turn = 0
    while turn < len(order) and not budget.is_enough(best):
        allowed = min(_SLICE, budget.work - budget.spent)
        intervals.registers[LOOKS] = allowed
        turn = stack(intervals, order, turn, best.height)
        budget.charge(allowed - int(intervals.registers[LOOKS]))
    height = int((intervals.offset + intervals.size).max())
    if turn < len(order) or height >= best.height:
        return best
    return Found(placement_of(intervals), height, best.bound)


def _fit_in(state: RepairState, capacity: int, patience: int, budget: Budget) -> bool:
    """Move what exceeds ``capacity`` units below it; return whether some of it did not fit."""
    registers = state.registers
    outside = np.flatnonzero(state.offset + state.intervals.size > capacity)
    outside = outside[np.argsort(-state.priority[outside], kind="stable")]
    registers[TURN], registers[FAILED] = 0, 0
    while registers[TURN] < len(outside) or registers[UNPLACED]:
        if budget.is_over():
            if registers[UNPLACED]:
                undo_chain(state)
            return True
        allowed = min(_SLICE, budget.work - budget.spent)
        registers[WORK] = allowed
        fit_in(state, outside, capacity, patience)
        budget.charge(allowed - int(registers[WORK]))
    return bool(registers[FAILED])


def settled(piece: Piece, best: Found, offsets: Ints, budgets: tuple[Budget, Budget]) -> Found:
    """Complete a placement of some buffers within the height aimed at, if that succeeds."""
    state = state_of(piece, offsets, best.bound)
    part, whole = budgets
    while not part.is_over():
        allowed = min(_SLICE, part.work - part.spent)
        state.registers[WORK] = allowed
        done = settle(state, best.bound)
        used = allowed - int(state.registers[WORK])
        part.charge(used)
        whole.charge(used)
        if done:
            placement = placement_of(state.intervals)
            return Found(placement, height_of(piece, placement), best.bound)
    return best
