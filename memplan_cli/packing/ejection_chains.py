"""Local search by ejection chains: lower a layout by moving the buffers that exceed a capacity.

The capacity is a little below the present height. A buffer that exceeds it is removed and
placed again: in the tightest gap below the capacity or, where no gap is large enough, at the
place where the overlapping buffers are cheapest to evict. Those buffers are ejected and placed
again in turn, in order of priority. Such a sequence of moves is an *ejection chain*. A chain
that does not end within some steps is undone.

Whenever a buffer finds no gap, its eviction cost rises, so that two buffers do not eject each
other for ever, and the buffer is tabu for some steps: it cannot be ejected.

The penalties are those of guided ejection search (Nagata and Bräysy 2009, for vehicle
routing). Gaps, eviction costs and the priority by size and length are specific to layouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.packing.budget import BestPlacement
from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.pieces import NOWHERE, height_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memplan_cli.packing.budget import Budget
    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.search.board import Ints

    Floats = NDArray[np.float64]

_STEP_WORK = 40
"""Units of work of one step, besides the buffers looked at."""
_OVERLAP_WORK = 5
"""Units of work for sorting and weighing one overlapping buffer."""
_COST_TOLERANCE = 1e-9
"""Relative difference below which two sums of costs count as equal: they were added in
different orders."""
_TABU_STEPS = 3
"""Steps for which a buffer that found no gap cannot be ejected, at least; at most twice that."""
_SLICE = 20_000_000
"""Units of work between two looks at the clock."""
_FIRST_LOWERING = 0.3
"""Share of the gap between height and bound by which the capacity is lowered at first."""
_LEAST_LOWERING = 0.01
"""Least such share; it is halved after chains failed."""
_FIRST_PATIENCE = 100
"""Steps that a chain may take, at first."""
_PATIENCE_GROWTH = 1.2
"""Factor of those steps after chains failed."""
_NO_LIMIT = 1 << 62

# Indices of `RepairState.registers`:
# work left; number of buffers that wait; number of the present step; last step of the present
# chain; state of the random generator; number of the present chain; number of buffers that it
# moved; position in the list of buffers above the capacity; number of chains that failed.
WORK, WAITING, STEP, LAST, RANDOM, CHAIN, MOVED, POSITION, FAILED = range(9)


class RepairState(NamedTuple):
    """A partial placement of the buffers of one piece, and the memory of the search.

    Buffers are numbered by start. Fields without a description have one entry for each.
    """

    column: Ints
    """Index of each buffer in the columns of the piece."""
    start: Ints
    end: Ints
    size: Ints
    offset: Ints
    """Units below each buffer; NOWHERE if it is not placed."""
    first_live: Ints
    """For each section, the first buffer that is live in it."""
    first_start: Ints
    """For each section, the first buffer that starts in it or later."""

    overlaps: Ints
    """The placed buffers that overlap the buffer to be placed in time, in no special order.
    The columns below, up to ``is_tabu``, describe them in the same order."""
    floor: Ints
    top: Ints
    overlap_cost: Floats
    is_tabu: NDArray[np.bool_]
    by_floor: Ints
    """Indices in ``overlaps``, sorted by ``floor``."""
    by_top: Ints
    """Indices in ``overlaps``, sorted by ``top``."""
    places: Ints
    """Offsets whose costs are compared."""

    waiting: Ints
    """The buffers that are not placed: a heap with the highest priority on top."""
    priority: Floats
    eviction_cost: Floats
    """Cost of ejecting each buffer: its priority, times how often it found no gap."""
    tabu_until: Ints
    """The step up to which each buffer cannot be ejected."""

    chain: Ints
    """Number of the last chain that moved each buffer."""
    moved: Ints
    """The buffers moved by the present chain, each once."""
    origin: Ints
    """Their offsets before the chain."""

    registers: Ints


def new_state(piece: Piece, placement: Ints, capacity: int) -> RepairState:
    """Return the state in which all buffers above ``capacity`` units wait to be placed.

    Buffers of ``placement`` that are NOWHERE wait too.
    """
    start = np.array(piece.start, np.int64)
    column = np.argsort(start, kind="stable")
    start, end = start[column], np.array(piece.end, np.int64)[column]
    size = np.array(piece.size, np.int64)[column]
    offset = np.array(placement, np.int64)[column]
    offset[offset + size > capacity] = NOWHERE
    # Square roots alone: they are the same to the last bit on all machines.
    priority = np.sqrt(size * np.sqrt(np.sqrt(size))) * np.sqrt(end - start)
    count, sections = len(column), len(piece.loads)
    outside = np.flatnonzero(offset < 0)
    waiting = np.zeros(count, np.int64)
    waiting[: len(outside)] = outside[np.lexsort((outside, -priority[outside]))]
    registers = np.zeros(9, np.int64)
    registers[WAITING], registers[LAST], registers[RANDOM] = len(outside), _NO_LIMIT, 1

    def integers() -> Ints:
        return np.zeros(count, np.int64)

    return RepairState(
        column=column,
        start=start,
        end=end,
        size=size,
        offset=offset,
        first_live=np.searchsorted(np.maximum.accumulate(end), np.arange(sections), "right"),
        first_start=np.searchsorted(start, np.arange(sections + 1)),
        overlaps=integers(),
        floor=integers(),
        top=integers(),
        overlap_cost=np.zeros(count),
        is_tabu=np.zeros(count, np.bool_),
        by_floor=integers(),
        by_top=integers(),
        places=np.zeros(count + 1, np.int64),
        waiting=waiting,
        priority=priority,
        eviction_cost=priority.copy(),
        tabu_until=integers(),
        chain=integers(),
        moved=integers(),
        origin=integers(),
        registers=registers,
    )


def placement_of(state: RepairState) -> tuple[int, ...]:
    """Return the offsets in the order of the piece's columns."""
    placement = np.empty_like(state.offset)
    placement[state.column] = state.offset
    return tuple(placement.tolist())


@compiled
def _random(state: RepairState, below: int) -> int:
    """Return a pseudo-random number from 0 to ``below - 1``; the sequence never differs."""
    number = (state.registers[RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF
    state.registers[RANDOM] = number
    return int((number >> 8) % below)


@compiled
def _has_priority(state: RepairState, buffer: int, other: int) -> bool:
    one, two = state.priority[buffer], state.priority[other]
    return bool(one > two or (one == two and buffer < other))


@compiled
def eject(state: RepairState, buffer: int) -> None:
    """Remove a buffer from its place and let it wait."""
    _move(state, buffer, NOWHERE)
    at = state.registers[WAITING]
    state.registers[WAITING] = at + 1
    while at > 0:
        above = (at - 1) // 2
        if not _has_priority(state, buffer, state.waiting[above]):
            break
        state.waiting[at] = state.waiting[above]
        at = above
    state.waiting[at] = buffer


@compiled
def pop_first(state: RepairState) -> int:
    """Remove and return the waiting buffer of the highest priority."""
    last = state.registers[WAITING] - 1
    state.registers[WAITING] = last
    first, moved = state.waiting[0], state.waiting[last]
    at, child = 0, 1
    while child < last:
        if child + 1 < last and _has_priority(
            state, state.waiting[child + 1], state.waiting[child]
        ):
            child += 1
        if _has_priority(state, moved, state.waiting[child]):
            break
        state.waiting[at] = state.waiting[child]
        at, child = child, 2 * child + 1
    state.waiting[at] = moved
    return int(first)


@compiled
def _move(state: RepairState, buffer: int, place: int) -> None:
    """Set a buffer's offset, or NOWHERE; note the former one if this chain first moves it."""
    if state.chain[buffer] != state.registers[CHAIN]:
        count = state.registers[MOVED]
        state.chain[buffer] = state.registers[CHAIN]
        state.moved[count] = buffer
        state.origin[count] = state.offset[buffer]
        state.registers[MOVED] = count + 1
    state.offset[buffer] = place


@compiled
def undo_chain(state: RepairState) -> None:
    """Put all buffers back to the offsets they had before the present chain."""
    registers = state.registers
    for at in range(registers[MOVED]):
        state.offset[state.moved[at]] = state.origin[at]
    registers[WORK] -= registers[MOVED]
    registers[MOVED] = 0
    registers[WAITING] = 0


@compiled
def _find_overlaps(state: RepairState, buffer: int) -> int:
    """List the placed buffers that share a section with a buffer; return their number.

    Fills ``overlaps``, ``floor``, ``top`` and the two orders.
    """
    first = state.first_live[state.start[buffer]]
    stop = state.first_start[state.end[buffer]]
    count = 0
    for other in range(first, stop):
        floor = state.offset[other]
        if floor >= 0 and state.end[other] > state.start[buffer]:
            state.overlaps[count] = other
            state.floor[count] = floor
            state.top[count] = floor + state.size[other]
            count += 1
    state.by_floor[:count] = np.argsort(state.floor[:count])
    state.registers[WORK] -= stop - first + _OVERLAP_WORK * count
    return int(count)


@compiled
def _tightest_gap(state: RepairState, buffer: int, count: int, capacity: int) -> int:
    """Return the offset of the smallest gap that is large enough, or NOWHERE."""
    units = state.size[buffer]
    floor, place, tightest = 0, NOWHERE, capacity + 1
    for at in range(count):
        other = state.by_floor[at]
        gap = min(capacity, state.floor[other]) - floor
        if units <= gap < tightest:
            place, tightest = floor, gap
        floor = max(floor, state.top[other])
    if units <= capacity - floor < tightest:
        place = floor
    return int(place)


@compiled
def _cheapest_of_places(
    state: RepairState, units: int, count: int, places: int
) -> tuple[int, int, float]:
    """Return the cheapest of the first ``places`` of ``state.places``, and its cost.

    The cost is the number of tabu buffers that overlap there, then the sum of the eviction
    costs of the others. Places are in rising order. A buffer overlaps if it begins below the
    top and does not end at or below the floor, so that two running sums are enough.
    """
    begun = ended = ties = tabu = 0
    cost, least, fewest, chosen = 0.0, 0.0, count + 1, NOWHERE
    for at in range(places):
        place = state.places[at]
        while begun < count and state.floor[state.by_floor[begun]] < place + units:
            cost += state.overlap_cost[state.by_floor[begun]]
            tabu += state.is_tabu[state.by_floor[begun]]
            begun += 1
        while ended < count and state.top[state.by_top[ended]] <= place:
            cost -= state.overlap_cost[state.by_top[ended]]
            tabu -= state.is_tabu[state.by_top[ended]]
            ended += 1
        if tabu > fewest:
            continue
        if tabu < fewest or cost < least * (1 - _COST_TOLERANCE):
            least, fewest, chosen, ties = cost, tabu, place, 1
        elif cost <= least * (1 + _COST_TOLERANCE):
            ties += 1
            if _random(state, ties) == 0:
                chosen = place
    return chosen, fewest, least


@compiled
def _cheapest_place(state: RepairState, buffer: int, count: int, capacity: int) -> int:
    """Return the offset at which the overlapping buffers are cheapest to evict.

    Buffers above the capacity cost nothing. ProbeResult are the bottom and the top of each
    overlapping buffer, then the places just below each.
    """
    units = state.size[buffer]
    for at in range(count):
        other = state.overlaps[at]
        inside = state.top[at] <= capacity
        state.is_tabu[at] = inside and state.tabu_until[other] > state.registers[STEP]
        state.overlap_cost[at] = state.eviction_cost[other] if inside else 0.0
    state.by_top[:count] = np.argsort(state.top[:count])
    state.registers[WORK] -= _OVERLAP_WORK * count
    state.places[0] = 0
    places = 1
    for at in range(count):
        place = state.top[state.by_top[at]]
        if place + units > capacity:
            break
        state.places[places] = place
        places += 1
    above, tabu_above, cost_above = _cheapest_of_places(state, units, count, places)
    places = 0
    for at in range(count):
        place = state.floor[state.by_floor[at]] - units
        if 0 <= place <= capacity - units:
            state.places[places] = place
            places += 1
    below, tabu_below, cost_below = _cheapest_of_places(state, units, count, places)
    if tabu_below < tabu_above or (
        tabu_below == tabu_above and cost_below < cost_above * (1 - _COST_TOLERANCE)
    ):
        return int(below)
    return int(above)


@compiled
def _eject_conflicting(state: RepairState, buffer: int, count: int, place: int) -> None:
    """Eject the buffers that overlap a buffer at an offset, of those that overlap it in time."""
    top = place + state.size[buffer]
    for at in range(count):
        if state.floor[at] < top and state.top[at] > place:
            eject(state, state.overlaps[at])


@compiled
def place_waiting(state: RepairState, capacity: int) -> bool:
    """Place waiting buffers below ``capacity`` units; return whether none is left.

    Stops when WORK is used up or LAST is reached.
    """
    registers = state.registers
    while registers[WAITING] > 0 and registers[WORK] > 0 and registers[STEP] < registers[LAST]:
        registers[STEP] += 1
        registers[WORK] -= _STEP_WORK
        buffer = pop_first(state)
        count = _find_overlaps(state, buffer)
        place = _tightest_gap(state, buffer, count, capacity)
        if place < 0:
            state.eviction_cost[buffer] += state.priority[buffer]
            place = _cheapest_place(state, buffer, count, capacity)
            _eject_conflicting(state, buffer, count, place)
            wait = 1 + _TABU_STEPS + _random(state, _TABU_STEPS)
            state.tabu_until[buffer] = registers[STEP] + wait
        _move(state, buffer, place)
    return bool(registers[WAITING] == 0)


@compiled
def _move_below(state: RepairState, outside: Ints, capacity: int, patience: int) -> None:
    """Start or continue a chain for each buffer in ``outside``, until WORK is used up."""
    registers = state.registers
    while registers[WORK] > 0:
        if registers[WAITING] == 0:
            if registers[POSITION] == len(outside):
                return
            buffer = outside[registers[POSITION]]
            registers[POSITION] += 1
            registers[WORK] -= 1
            if state.offset[buffer] + state.size[buffer] <= capacity:
                continue
            registers[CHAIN] += 1
            registers[MOVED] = 0
            registers[LAST] = registers[STEP] + patience
            eject(state, buffer)
        if not place_waiting(state, capacity) and registers[STEP] >= registers[LAST]:
            registers[FAILED] += 1
            undo_chain(state)


def lowered_by_chains(piece: Piece, best: BestPlacement, budget: Budget) -> BestPlacement:
    """Lower a placement in small steps of capacity, until its bound or the end of the work."""
    state = new_state(piece, np.array(best.placement, np.int64), best.height)
    share, patience = _FIRST_LOWERING, _FIRST_PATIENCE
    height = best.height
    while height > max(best.bound, budget.enough) and not budget.is_over():
        gap = height - max(best.bound, budget.enough)
        capacity = height - max(1, int(gap * share))
        if not _all_moved_below(state, capacity, patience, budget):
            share = max(_LEAST_LOWERING, share / 2)
            patience = int(patience * _PATIENCE_GROWTH)
        height = int((state.offset + state.size).max())
    if height == best.height:
        return best
    return BestPlacement(placement_of(state), height, best.bound)


def _all_moved_below(state: RepairState, capacity: int, patience: int, budget: Budget) -> bool:
    """Move the buffers above ``capacity`` units below it; return whether all were moved."""
    registers = state.registers
    outside = np.flatnonzero(state.offset + state.size > capacity)
    outside = outside[np.argsort(-state.priority[outside], kind="stable")]
    registers[POSITION], registers[FAILED] = 0, 0
    while registers[POSITION] < len(outside) or registers[WAITING]:
        if budget.is_over():
            if registers[WAITING]:
                undo_chain(state)
            return False
        allowed = min(_SLICE, budget.work - budget.spent)
        registers[WORK] = allowed
        _move_below(state, outside, capacity, patience)
        budget.charge(allowed - int(registers[WORK]))
    return not registers[FAILED]


def completed_at_bound(
    piece: Piece, best: BestPlacement, offsets: Ints, budget: Budget
) -> BestPlacement:
    """Return a placement as tall as ``best.bound`` that completes a partial one, else ``best``.

    Args:
        piece: The buffers.
        best: The placement so far.
        offsets: The partial placement; the offset of a buffer not placed is NOWHERE. Placed
            buffers may be moved.
        budget: Charged with the work done.
    """
    state = new_state(piece, offsets, best.bound)
    while not budget.is_over():
        allowed = min(_SLICE, budget.work - budget.spent)
        state.registers[WORK] = allowed
        complete = place_waiting(state, best.bound)
        budget.charge(allowed - int(state.registers[WORK]))
        if complete:
            placement = placement_of(state)
            return BestPlacement(placement, height_of(piece, placement), best.bound)
    return best
