"""Repair state: the buffers placed and not placed, and an undo log of the current chain.

Those not placed wait in a heap, that of the highest priority on top. What a chain moves is
noted the first time, with the place where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.repair.interval_index import NOWHERE, IntervalIndex, intervals_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.search.board import Ints

    Floats = NDArray[np.float64]

# Registers: work left, how many are not placed, steps taken, the last step of a chain, state
# of chance, the number of the chain, how many it moved, how many of those above the capacity
# have had their turn, and how many of their chains failed.
WORK, UNPLACED, STEP, LAST, CHANCE, CHAIN, MOVED, TURN, FAILED = range(9)

_ENDLESS = 1 << 62


class RepairState(NamedTuple):
    """Buffers placed and not placed, by start, as columns."""

    intervals: IntervalIndex
    offset: Ints
    """That of `IntervalIndex`."""
    waiting: Ints
    """Those not placed, as a heap, that of the highest priority on top."""
    priority: Floats
    eviction_cost: Floats
    """Cost of the ejection of each: its priority, the more the oftener it found no gap."""
    tabu: Ints
    """The step up to which each cannot be ejected."""
    high: Ints
    """Indices in ``intervals.overlaps``, by top."""
    places: Ints
    """Offsets whose costs are compared."""
    overlap_cost: Floats
    """The eviction cost of each buffer that overlaps the one to be placed."""
    is_tabu: NDArray[np.bool_]
    """Whether each of those cannot be ejected."""
    chain: Ints
    """The last chain that moved each."""
    moved: Ints
    """Those moved by this chain, each once."""
    origin: Ints
    """Where those were."""
    registers: Ints


def state_of(piece: Piece, placement: Ints, capacity: int) -> RepairState:
    """Return the state of a piece in which what exceeds ``capacity`` units is not placed."""
    size = np.array(piece.size, np.int64)
    inside = (placement >= 0) & (placement + size <= capacity)
    intervals = intervals_of(piece, np.where(inside, placement, NOWHERE))
    # Square roots alone: they are the same to the last bit on all machines.
    weight = np.sqrt(intervals.size * np.sqrt(np.sqrt(intervals.size)))
    priority = weight * np.sqrt(intervals.end - intervals.start)
    count = len(size)
    tabu, high, chain, moved, origin, waiting = (np.zeros(count, np.int64) for _ in range(6))
    places, registers = np.zeros(count + 1, np.int64), np.zeros(9, np.int64)
    registers[LAST], registers[CHANCE] = _ENDLESS, 1
    state = RepairState(
        intervals, intervals.offset, waiting, priority, priority.copy(), tabu, high, places,
        np.zeros(count), np.zeros(count, np.bool_), chain, moved, origin, registers,
    )  # fmt: skip
    outside = np.flatnonzero(intervals.offset < 0)
    waiting[: len(outside)] = outside[np.lexsort((outside, -priority[outside]))]
    registers[UNPLACED] = len(outside)
    return state


@compiled
def random(state: RepairState, below: int) -> int:
    """Return a number from 0 up to ``below``; the sequence is always the same."""
    number = (state.registers[CHANCE] * 1103515245 + 12345) & 0x7FFFFFFF
    state.registers[CHANCE] = number
    return int((number >> 8) % below)


@compiled
def _comes_first(state: RepairState, buffer: int, other: int) -> bool:
    mine, its = state.priority[buffer], state.priority[other]
    return bool(mine > its or (mine == its and buffer < other))


@compiled
def eject(state: RepairState, buffer: int) -> None:
    """Remove a buffer from its place, to be placed anew."""
    move(state, buffer, NOWHERE)
    at = state.registers[UNPLACED]
    state.registers[UNPLACED] = at + 1
    while at > 0:
        above = (at - 1) // 2
        if not _comes_first(state, buffer, state.waiting[above]):
            break
        state.waiting[at] = state.waiting[above]
        at = above
    state.waiting[at] = buffer


@compiled
def pop_first(state: RepairState) -> int:
    """Remove and return the buffer of the highest priority among those not placed."""
    last = state.registers[UNPLACED] - 1
    state.registers[UNPLACED] = last
    chosen, moved = state.waiting[0], state.waiting[last]
    at, child = 0, 1
    while child < last:
        if child + 1 < last and _comes_first(
            state, state.waiting[child + 1], state.waiting[child]
        ):
            child += 1
        if _comes_first(state, moved, state.waiting[child]):
            break
        state.waiting[at] = state.waiting[child]
        at, child = child, 2 * child + 1
    state.waiting[at] = moved
    return int(chosen)


@compiled
def move(state: RepairState, buffer: int, place: int) -> None:
    """Put a buffer at an offset, or NOWHERE, so that it can be undone."""
    if state.chain[buffer] != state.registers[CHAIN]:
        count = state.registers[MOVED]
        state.chain[buffer] = state.registers[CHAIN]
        state.moved[count] = buffer
        state.origin[count] = state.offset[buffer]
        state.registers[MOVED] = count + 1
    state.offset[buffer] = place


@compiled
def undo_chain(state: RepairState) -> None:
    """Undo all moves of this chain."""
    registers = state.registers
    for at in range(registers[MOVED]):
        state.offset[state.moved[at]] = state.origin[at]
    registers[WORK] -= registers[MOVED]
    registers[MOVED] = 0
    registers[UNPLACED] = 0
