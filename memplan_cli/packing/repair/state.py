"""Which buffers have a place and which have none, and how is a chain of moves taken back?

Those without a place wait in a heap, the worthiest on top. What a chain moves is noted the first
time, with the place where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.repair.fill import NOWHERE
from memplan_cli.packing.repair.interval_index import Lives, lives_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.search.board import Ints

    Floats = NDArray[np.float64]

# Registers: work left, how many have no place, steps taken, the last step of a chain, state of
# chance, the number of the chain, how many it moved, how many of those that stick out have had
# their turn, and how many of their chains failed.
WORK, LOOSE, STEP, LAST, CHANCE, CHAIN, MOVED, TURN, FAILED = range(9)

_ENDLESS = 1 << 62


class Crowd(NamedTuple):
    """Buffers with and without a place, by birth, as columns."""

    lives: Lives
    offset: Ints
    """That of `Lives`."""
    loose: Ints
    """Those not placed, as a heap, the worthiest on top."""
    worth: Floats
    price: Floats
    """What throwing each out costs: its worth, the more the oftener it found no gap."""
    banned: Ints
    """The step up to which each cannot be thrown out."""
    high: Ints
    """Places in ``lives.who``, by top."""
    places: Ints
    """Offsets that are weighed."""
    toll: Floats
    """The price of each of those met."""
    barred: NDArray[np.bool_]
    """Whether each of those met cannot be thrown out."""
    chain: Ints
    """The last chain that moved each."""
    moved: Ints
    """Those moved by this chain, each once."""
    origin: Ints
    """Where those were."""
    registers: Ints


def crowd_of(piece: Piece, placement: Ints, capacity: int) -> Crowd:
    """Return the buffers of a piece; what sticks out of ``capacity`` units has no place."""
    size = np.array(piece.size, np.int64)
    inside = (placement >= 0) & (placement + size <= capacity)
    lives = lives_of(piece, np.where(inside, placement, NOWHERE))
    # Square roots alone: they are the same to the last bit on all machines.
    weight = np.sqrt(lives.size * np.sqrt(np.sqrt(lives.size)))
    worth = weight * np.sqrt(lives.end - lives.start)
    count = len(size)
    banned, high, chain, moved, origin, loose = (np.zeros(count, np.int64) for _ in range(6))
    places, registers = np.zeros(count + 1, np.int64), np.zeros(9, np.int64)
    registers[LAST], registers[CHANCE] = _ENDLESS, 1
    crowd = Crowd(
        lives, lives.offset, loose, worth, worth.copy(), banned, high, places, np.zeros(count),
        np.zeros(count, np.bool_), chain, moved, origin, registers,
    )  # fmt: skip
    outside = np.flatnonzero(lives.offset < 0)
    loose[: len(outside)] = outside[np.lexsort((outside, -worth[outside]))]
    registers[LOOSE] = len(outside)
    return crowd


@compiled
def random(crowd: Crowd, below: int) -> int:
    """Return a number from 0 up to ``below``; the sequence is always the same."""
    state = (crowd.registers[CHANCE] * 1103515245 + 12345) & 0x7FFFFFFF
    crowd.registers[CHANCE] = state
    return int((state >> 8) % below)


@compiled
def _is_worthier(crowd: Crowd, buffer: int, other: int) -> bool:
    mine, its = crowd.worth[buffer], crowd.worth[other]
    return bool(mine > its or (mine == its and buffer < other))


@compiled
def loosen(crowd: Crowd, buffer: int) -> None:
    """Take the place of a buffer away."""
    move(crowd, buffer, NOWHERE)
    at = crowd.registers[LOOSE]
    crowd.registers[LOOSE] = at + 1
    while at > 0:
        above = (at - 1) // 2
        if not _is_worthier(crowd, buffer, crowd.loose[above]):
            break
        crowd.loose[at] = crowd.loose[above]
        at = above
    crowd.loose[at] = buffer


@compiled
def take_worthiest(crowd: Crowd) -> int:
    """Take the worthiest out of those without a place, to be placed."""
    last = crowd.registers[LOOSE] - 1
    crowd.registers[LOOSE] = last
    chosen, moved = crowd.loose[0], crowd.loose[last]
    at, child = 0, 1
    while child < last:
        if child + 1 < last and _is_worthier(
            crowd, crowd.loose[child + 1], crowd.loose[child]
        ):
            child += 1
        if _is_worthier(crowd, moved, crowd.loose[child]):
            break
        crowd.loose[at] = crowd.loose[child]
        at, child = child, 2 * child + 1
    crowd.loose[at] = moved
    return int(chosen)


@compiled
def move(crowd: Crowd, buffer: int, place: int) -> None:
    """Put a buffer at a place, or nowhere, so that it can be taken back."""
    if crowd.chain[buffer] != crowd.registers[CHAIN]:
        count = crowd.registers[MOVED]
        crowd.chain[buffer] = crowd.registers[CHAIN]
        crowd.moved[count] = buffer
        crowd.origin[count] = crowd.offset[buffer]
        crowd.registers[MOVED] = count + 1
    crowd.offset[buffer] = place


@compiled
def take_back(crowd: Crowd) -> None:
    """Put all back that this chain moved."""
    registers = crowd.registers
    for at in range(registers[MOVED]):
        crowd.offset[crowd.moved[at]] = crowd.origin[at]
    registers[WORK] -= registers[MOVED]
    registers[MOVED] = 0
    registers[LOOSE] = 0
