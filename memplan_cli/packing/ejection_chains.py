"""Local search by ejection chains: lower a layout by moving the buffers that exceed a capacity.

The capacity is a little below the present height. A buffer that exceeds it is removed and placed
again: in the smallest gap below the capacity or, if no gap is large enough, where the buffers that
overlap it are cheapest to evict. Those are ejected, and placed again in turn, by priority. Such a
sequence of moves is an *ejection chain*. A chain that does not end within some steps is undone.

        before          a is ejected      b is ejected in turn     done
    ------+---+------ capacity -------------------------------------------
          | a |
      +---+---+           +---+  |          +---+                +---+---+
      | b | c |           | b | a?          | a | c |  b?        | a | c |
      |   +---+           |   +---+         |   +---+        +---+   +---+
      +---+               +---+ c           +---+            | b +---+

Whenever a buffer finds no gap, its eviction cost rises, so that two buffers do not eject each
other for ever, and the buffer is tabu for some steps: it cannot be ejected.

The rising costs are those of guided ejection search (Nagata and Bräysy, "A powerful route
minimization heuristic", 2009, for vehicle routing), the tabu steps those of tabu search (Glover,
1989).
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
    from memplan_cli.packing.pieces import Piece, Placement
    from memplan_cli.packing.search.state import Ints

    Floats = NDArray[np.float64]

_STEP_WORK = 40
"""Units of work of one step, besides the buffers examined."""
_OVERLAP_WORK = 5
"""Units of work for sorting and weighing one overlapping buffer."""
_COST_TOLERANCE = 1e-9
"""Relative difference below which two sums of costs count as equal: they were added in
different orders."""
_TABU_STEPS = 3
"""Steps for which a buffer that found no gap cannot be ejected, at least; less than twice that."""
_SLICE_WORK = 20_000_000
"""Units of work between two checks of the deadline."""
_FIRST_LOWERING = 0.3
"""Share of the gap between height and bound by which the capacity is lowered at first."""
_LEAST_LOWERING = 0.01
"""Least such share; it is halved after chains failed."""
_FIRST_CHAIN_STEPS = 100
"""Steps that a chain may take, at first."""
_CHAIN_STEPS_GROWTH = 1.2
"""Factor of those steps after chains failed."""
_NO_LIMIT = 1 << 62

# Indices of `RepairState.registers`, the scalars that compiled loops change.
WORK = 0
"""Units of work that may still be spent."""
WAITING = 1
"""Number of buffers that wait to be placed."""
STEP = 2
"""Number of the present step."""
LAST_STEP = 3
"""Step at which the present chain is given up."""
RANDOM = 4
"""State of the random generator."""
CHAIN = 5
"""Number of the present chain."""
MOVED = 6
"""Number of buffers that the present chain has moved."""
POSITION = 7
"""Index of the next buffer in the list of buffers above the capacity."""
FAILED_CHAINS = 8
"""Number of chains that were undone."""


class RepairState(NamedTuple):
    """A partial placement of the buffers of one piece, and the memory of the search.

    Buffers are numbered by start. Arrays have an entry for each buffer unless said otherwise.
    """

    column: Ints
    """Index of each buffer in the columns of the piece."""
    start: Ints
    end: Ints
    size: Ints
    offset: Ints
    """Units below each buffer; NOWHERE if it is not placed."""
    first_live: Ints
    """For each section, the first buffer that is live in it or later."""
    first_start: Ints
    """For each section, the first buffer that starts in it or later."""

    # Temporary: the placed buffers that overlap the buffer to be placed in time, in no special
    # order. `_find_overlaps` returns their number.
    overlaps: Ints
    """The overlapping buffers."""
    floor: Ints
    """Offset of each overlapping buffer."""
    top: Ints
    """Offset plus size of each overlapping buffer."""
    by_floor: Ints
    """Indices in ``overlaps``, sorted by ``floor``."""
    by_top: Ints
    """Indices in ``overlaps``, sorted by ``top``."""
    overlap_cost: Floats
    """Eviction cost of each overlapping buffer; 0 if it exceeds the capacity."""
    is_tabu: NDArray[np.bool_]
    """Whether each overlapping buffer cannot be ejected now."""
    places: Ints
    """Offsets whose eviction costs are compared, in rising order."""

    waiting: Ints
    """The buffers that are not placed: a binary heap with the highest priority on top."""
    priority: Floats
    """Buffers of higher priority are placed first: size ** 0.625 times sections ** 0.5."""
    eviction_cost: Floats
    """Cost of ejecting each buffer: its priority, times one more than how often it found no gap."""
    tabu_until: Ints
    """The step up to which each buffer cannot be ejected."""

    chain: Ints
    """Number of the last chain that moved each buffer."""
    moved: Ints
    """The buffers moved by the present chain, each once."""
    origin: Ints
    """Offset before the present chain of each buffer in ``moved``."""

    registers: Ints
    """The scalars of the search, by the indices above (WORK, WAITING, ...)."""


def new_state(piece: Piece, placement: Ints, capacity: int) -> RepairState:
    """Return a state with a placement of a piece, in which some buffers wait to be placed.

    These are the buffers that exceed ``capacity`` units, and those whose offset is NOWHERE.
    """
    start = np.array(piece.start, np.int64)
    column = np.argsort(start, kind="stable")
    start, end = start[column], np.array(piece.end, np.int64)[column]
    size = np.array(piece.size, np.int64)[column]
    offset = np.array(placement, np.int64)[column]
    offset[offset + size > capacity] = NOWHERE
    # Powers by square roots alone, which are the same to the last bit on all machines.
    priority = np.sqrt(size * np.sqrt(np.sqrt(size))) * np.sqrt(end - start)
    count, sections = len(column), len(piece.loads)
    # Before the first buffer whose end, or that of a buffer before it, is later, all have ended.
    first_live = np.searchsorted(np.maximum.accumulate(end), np.arange(sections), "right")
    # Sorted by priority, which is a valid heap.
    waiting = np.flatnonzero(offset < 0)
    waiting_heap = np.zeros(count, np.int64)
    waiting_heap[: len(waiting)] = waiting[np.lexsort((waiting, -priority[waiting]))]
    registers = np.zeros(9, np.int64)
    registers[WAITING], registers[LAST_STEP], registers[RANDOM] = len(waiting), _NO_LIMIT, 1

    def integers() -> Ints:
        return np.zeros(count, np.int64)

    return RepairState(
        column=column,
        start=start,
        end=end,
        size=size,
        offset=offset,
        first_live=first_live,
        first_start=np.searchsorted(start, np.arange(sections + 1)),
        overlaps=integers(),
        floor=integers(),
        top=integers(),
        by_floor=integers(),
        by_top=integers(),
        overlap_cost=np.zeros(count),
        is_tabu=np.zeros(count, np.bool_),
        places=np.zeros(count + 1, np.int64),
        waiting=waiting_heap,
        priority=priority,
        eviction_cost=priority.copy(),
        tabu_until=integers(),
        chain=integers(),
        moved=integers(),
        origin=integers(),
        registers=registers,
    )


def placement_of(state: RepairState) -> Placement:
    """Return the offsets in the order of the piece's columns."""
    placement = np.empty_like(state.offset)
    placement[state.column] = state.offset
    return tuple(placement.tolist())


@compiled
def _random(state: RepairState, below: int) -> int:
    """Return a pseudo-random number from 0 to ``below - 1``, and advance register RANDOM.

    The sequence is the same in every run. It is a linear congruential generator with the
    constants of ANSI C; its lowest bits are dropped, as they hardly vary.
    """
    number = (state.registers[RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF
    state.registers[RANDOM] = number
    return int((number >> 8) % below)


@compiled
def _has_priority(state: RepairState, buffer: int, other: int) -> bool:
    """Return whether a buffer is placed before another one, the first by start if they are equal."""
    priority, other_priority = state.priority[buffer], state.priority[other]
    return bool(priority > other_priority or (priority == other_priority and buffer < other))


@compiled
def eject(state: RepairState, buffer: int) -> None:
    """Remove a buffer from its place and add it to the heap of waiting buffers."""
    _move(state, buffer, NOWHERE)
    index = state.registers[WAITING]
    state.registers[WAITING] = index + 1
    while index > 0:
        parent = (index - 1) // 2
        if not _has_priority(state, buffer, state.waiting[parent]):
            break
        state.waiting[index] = state.waiting[parent]
        index = parent
    state.waiting[index] = buffer


@compiled
def pop_first(state: RepairState) -> int:
    """Remove the waiting buffer of the highest priority from the heap and return it."""
    last = state.registers[WAITING] - 1
    state.registers[WAITING] = last
    first, sifted = state.waiting[0], state.waiting[last]
    index, child = 0, 1
    while child < last:
        if child + 1 < last and _has_priority(
            state, state.waiting[child + 1], state.waiting[child]
        ):
            child += 1
        if _has_priority(state, sifted, state.waiting[child]):
            break
        state.waiting[index] = state.waiting[child]
        index, child = child, 2 * child + 1
    state.waiting[index] = sifted
    return int(first)


@compiled
def _move(state: RepairState, buffer: int, place: int) -> None:
    """Set the offset of a buffer to ``place``, or to NOWHERE.

    The first time that the present chain moves the buffer, its former offset is noted for undo.
    """
    if state.chain[buffer] != state.registers[CHAIN]:
        count = state.registers[MOVED]
        state.chain[buffer] = state.registers[CHAIN]
        state.moved[count] = buffer
        state.origin[count] = state.offset[buffer]
        state.registers[MOVED] = count + 1
    state.offset[buffer] = place


@compiled
def undo_chain(state: RepairState) -> None:
    """Set all buffers back to their offsets before the present chain; no buffer waits then.

    Eviction costs and tabu steps stay as the chain has left them.
    """
    registers = state.registers
    for index in range(registers[MOVED]):
        state.offset[state.moved[index]] = state.origin[index]
    registers[WORK] -= registers[MOVED]
    registers[MOVED] = 0
    registers[WAITING] = 0


@compiled
def _find_overlaps(state: RepairState, buffer: int) -> int:
    """Fill ``overlaps``, ``floor``, ``top`` and ``by_floor``; return the number of overlaps.

    Overlaps are the placed buffers that share a section with ``buffer``.
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
def _smallest_gap(state: RepairState, buffer: int, count: int, capacity: int) -> int:
    """Return the offset of the smallest gap below the capacity that holds a buffer, or NOWHERE.

    ``count`` is the number of overlaps, which `_find_overlaps` has listed.
    """
    units = state.size[buffer]
    floor, place, smallest = 0, NOWHERE, capacity + 1
    for index in range(count):
        overlap = state.by_floor[index]
        gap = min(capacity, state.floor[overlap]) - floor
        if units <= gap < smallest:
            place, smallest = floor, gap
        floor = max(floor, state.top[overlap])
    # The gap above all overlaps.
    if units <= capacity - floor < smallest:
        place = floor
    return int(place)


@compiled
def _cheapest_of_places(
    state: RepairState, units: int, count: int, places: int
) -> tuple[int, int, float]:
    """Return the cheapest of the first ``places`` offsets in ``state.places``.

    Returns the offset, the number of tabu buffers among the overlaps there, and the sum of the
    eviction costs of these overlaps. Fewer tabu buffers come first, then lower costs; ties are
    decided at random.

    Places are in rising order. An overlap at a place begins below the top of the ``units`` and
    does not end at or below their offset, so that two running indices over ``by_floor`` and
    ``by_top`` keep the sums. ``count`` is the number of overlaps of the buffer in time.
    """
    begun = ended = ties = tabu = 0
    cost, least_cost, fewest_tabu, cheapest = 0.0, 0.0, count + 1, NOWHERE
    for index in range(places):
        place = state.places[index]
        while begun < count and state.floor[state.by_floor[begun]] < place + units:
            cost += state.overlap_cost[state.by_floor[begun]]
            tabu += state.is_tabu[state.by_floor[begun]]
            begun += 1
        while ended < count and state.top[state.by_top[ended]] <= place:
            cost -= state.overlap_cost[state.by_top[ended]]
            tabu -= state.is_tabu[state.by_top[ended]]
            ended += 1
        if tabu > fewest_tabu:
            continue
        if tabu < fewest_tabu or cost < least_cost * (1 - _COST_TOLERANCE):
            least_cost, fewest_tabu, cheapest, ties = cost, tabu, place, 1
        elif cost <= least_cost * (1 + _COST_TOLERANCE):
            ties += 1
            if _random(state, ties) == 0:
                cheapest = place
    return cheapest, fewest_tabu, least_cost


@compiled
def _cheapest_place(state: RepairState, buffer: int, count: int, capacity: int) -> int:
    """Return the offset below the capacity at which the overlaps are cheapest to evict.

    Compared are offset 0, the tops of the overlaps, and the offsets just below each overlap. An
    overlap that exceeds the capacity has to move in any case: it costs nothing and is not tabu.
    Fills ``is_tabu``, ``overlap_cost``, ``by_top`` and ``places``.
    """
    units = state.size[buffer]
    for index in range(count):
        overlap = state.overlaps[index]
        is_inside = state.top[index] <= capacity
        state.is_tabu[index] = is_inside and state.tabu_until[overlap] > state.registers[STEP]
        state.overlap_cost[index] = state.eviction_cost[overlap] if is_inside else 0.0
    state.by_top[:count] = np.argsort(state.top[:count])
    state.registers[WORK] -= _OVERLAP_WORK * count
    # Offset 0 and the tops of the overlaps, in rising order.
    state.places[0] = 0
    places = 1
    for index in range(count):
        place = state.top[state.by_top[index]]
        if place + units > capacity:
            break
        state.places[places] = place
        places += 1
    above, tabu_above, cost_above = _cheapest_of_places(state, units, count, places)
    # The offsets just below each overlap.
    places = 0
    for index in range(count):
        place = state.floor[state.by_floor[index]] - units
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
    """Eject those of the ``count`` overlaps that overlap a buffer at offset ``place``."""
    top = place + state.size[buffer]
    for index in range(count):
        if state.floor[index] < top and state.top[index] > place:
            eject(state, state.overlaps[index])


@compiled
def place_waiting(state: RepairState, capacity: int) -> bool:
    """Place waiting buffers below ``capacity`` units, ejecting others; return whether all are.

    Stops early, with buffers that wait, if WORK is used up or step LAST_STEP is reached. A buffer
    that finds no gap becomes dearer to evict, and tabu for some steps.
    """
    registers = state.registers
    while (
        registers[WAITING] > 0
        and registers[WORK] > 0
        and registers[STEP] < registers[LAST_STEP]
    ):
        registers[STEP] += 1
        registers[WORK] -= _STEP_WORK
        buffer = pop_first(state)
        count = _find_overlaps(state, buffer)
        place = _smallest_gap(state, buffer, count, capacity)
        if place < 0:
            state.eviction_cost[buffer] += state.priority[buffer]
            place = _cheapest_place(state, buffer, count, capacity)
            _eject_conflicting(state, buffer, count, place)
            # A random number, so that chains do not fall into a cycle.
            tabu_steps = 1 + _TABU_STEPS + _random(state, _TABU_STEPS)
            state.tabu_until[buffer] = registers[STEP] + tabu_steps
        _move(state, buffer, place)
    return bool(registers[WAITING] == 0)


@compiled
def _move_below(state: RepairState, exceeding: Ints, capacity: int, chain_steps: int) -> None:
    """Run an ejection chain for each buffer that exceeds the capacity, until WORK is used up.

    A chain ejects one such buffer, and places it and the buffers that this ejects in turn. A chain
    that has not ended after ``chain_steps`` steps is undone and counted in FAILED_CHAINS. A
    further call continues at the same chain.

    Args:
        state: The placement, which is changed.
        exceeding: The buffers that exceeded the capacity; those that no longer do are skipped.
        capacity: Units below which they are moved.
        chain_steps: Steps that a chain may take.
    """
    registers = state.registers
    while registers[WORK] > 0:
        if registers[WAITING] == 0:
            if registers[POSITION] == len(exceeding):
                return
            buffer = exceeding[registers[POSITION]]
            registers[POSITION] += 1
            registers[WORK] -= 1
            if state.offset[buffer] + state.size[buffer] <= capacity:
                continue
            registers[CHAIN] += 1
            registers[MOVED] = 0
            registers[LAST_STEP] = registers[STEP] + chain_steps
            eject(state, buffer)
        # If WORK is used up instead, the chain is kept open for a further call.
        if not place_waiting(state, capacity) and registers[STEP] >= registers[LAST_STEP]:
            registers[FAILED_CHAINS] += 1
            undo_chain(state)


def lowered_by_chains(piece: Piece, best: BestPlacement, budget: Budget) -> BestPlacement:
    """Return the placement lowered in small steps of capacity, until its bound or out of budget.

    Each step tries to move all buffers below a capacity that is somewhat lower than the height,
    one ejection chain for each buffer that exceeds it. A step that fails keeps the chains that
    ended well, so all buffers are placed and the height has not risen. It is followed by a
    smaller step with longer chains. ``best`` is not changed; the budget is charged.
    """
    state = new_state(piece, np.array(best.placement, np.int64), best.height)
    share, chain_steps = _FIRST_LOWERING, _FIRST_CHAIN_STEPS
    height = best.height
    while height > max(best.bound, budget.target_height) and not budget.is_over():
        gap = height - max(best.bound, budget.target_height)
        capacity = height - max(1, int(gap * share))
        if not _all_moved_below(state, capacity, chain_steps, budget):
            share = max(_LEAST_LOWERING, share / 2)
            chain_steps = int(chain_steps * _CHAIN_STEPS_GROWTH)
        # Also lower after a failed step, if its other chains have moved the highest buffers.
        height = int((state.offset + state.size).max())
    if height == best.height:
        return best
    return BestPlacement(placement_of(state), height, best.bound)


def _all_moved_below(
    state: RepairState, capacity: int, chain_steps: int, budget: Budget
) -> bool:
    """Move the buffers that exceed ``capacity`` units below it; return whether all were moved.

    Each is moved by a chain: it is removed and placed below, and so are the buffers that this
    ejects in turn. Not all are moved if a chain fails or the budget is over. Such a chain is
    undone, others are kept: all buffers of ``state`` are placed before and after. The budget is
    charged.
    """
    registers = state.registers
    exceeding = np.flatnonzero(state.offset + state.size > capacity)
    exceeding = exceeding[np.argsort(-state.priority[exceeding], kind="stable")]
    registers[POSITION], registers[FAILED_CHAINS] = 0, 0
    while registers[POSITION] < len(exceeding) or registers[WAITING]:
        if budget.is_over():
            if registers[WAITING]:
                undo_chain(state)
            return False
        allowed = min(_SLICE_WORK, budget.work - budget.spent)
        registers[WORK] = allowed
        # Lowers WORK to what is left. It returns when that is none, even within a chain, or when
        # all are tried; the next call goes on at POSITION, or with the buffers that are WAITING.
        _move_below(state, exceeding, capacity, chain_steps)
        budget.charge(allowed - int(registers[WORK]))
    return not registers[FAILED_CHAINS]


def completed_at_bound(
    piece: Piece, best: BestPlacement, offsets: Ints, budget: Budget
) -> BestPlacement:
    """Return a placement within ``best.bound`` that completes a partial one, else ``best``.

    Args:
        piece: The buffers.
        best: The best placement so far.
        offsets: The partial placement; the offset of a buffer not placed is NOWHERE. Placed
            buffers may be moved.
        budget: The work allowed, which is charged.
    """
    state = new_state(piece, offsets, best.bound)
    while not budget.is_over():
        allowed = min(_SLICE_WORK, budget.work - budget.spent)
        state.registers[WORK] = allowed
        is_complete = place_waiting(state, best.bound)
        budget.charge(allowed - int(state.registers[WORK]))
        if is_complete:
            placement = placement_of(state)
            return BestPlacement(placement, height_of(piece, placement), best.bound)
    return best
