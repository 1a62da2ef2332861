"""State of the exact search: the board of one piece, the skyline, and the undo log.

A *board* is what never changes: the buffers of one piece, sorted by start. A *state* is the
skyline over the sections and everything needed to undo. Both are tuples of arrays, because
compiled loops read those fastest.

    room                 `floor[s]` is the lowest offset that anything still to be placed
      ^     +---+        can take in section s, `top[s]` the top of what is placed there. They
      | +---+   |   ..   differ where a hole was left on purpose (dots).
      +-+---+---+---..-> section
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.packing.compiled import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memplan_cli.packing.pieces import Piece

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

# Registers of a search, so that it can stop and go on.
TRAIL, DEPTH, OPTIONS, MODE, LEFT, RIGHT, WORK, NODES = range(8)
# Modes.
ENTER, SOLVED, NEXT, FAILED, OVERFLOWED = range(5)
# Fields of a frame: kind, first, last and next option, trail, fingerprint, section, range.
KIND, FIRST, LAST, UPCOMING, MARK, PRINT, SECTION, FROM, UNTIL = range(9)
# Kinds of frames: one of the options must work out, or all parts must.
CHOICE, PARTS = range(2)

NEVER = 1 << 60
"""Higher than any arena; a wall at the edge of what is being solved."""


class Board(NamedTuple):
    """The buffers of a piece, sorted by start: columns, and what follows from them."""

    start: Ints
    end: Ints
    size: Ints
    twin: Ints
    """The previous buffer of the same start, end and size, or -1."""
    first: Ints
    """For each section the first buffer that starts there or later."""
    load: Ints
    """Units live in each section."""


class State(NamedTuple):
    """Everything that changes while searching."""

    floor: Ints
    top: Ints
    left: Ints
    """Units of unplaced buffers in each section."""
    placed: NDArray[np.int8]
    offset: Ints
    trail: Ints
    """Undo log: (section, old floor, old top), or (-1 - buffer, its offset, 0)."""
    frames: Ints
    options: Ints
    registers: Ints
    scratch: Ints
    liking: Ints
    failed: Words
    """Hash table of states known to have no solution; it survives restarts."""
    blame: Ints
    """How often each section ended a try, plus one; it survives restarts."""


def board_of(piece: Piece) -> tuple[Board, list[int]]:
    """Return the board of a piece, and which column of the piece each of its rows is."""
    columns = sorted(
        range(len(piece.size)), key=lambda i: (piece.start[i], piece.end[i], piece.size[i], i)
    )
    start = np.array([piece.start[i] for i in columns], np.int64)
    end = np.array([piece.end[i] for i in columns], np.int64)
    size = np.array([piece.size[i] for i in columns], np.int64)
    same = (np.diff(start) == 0) & (np.diff(end) == 0) & (np.diff(size) == 0)
    twin = np.full(len(columns), -1, np.int64)
    twin[1:][same] = np.flatnonzero(same)
    sections = len(piece.loads)
    first = np.searchsorted(start, np.arange(sections + 1)).astype(np.int64)
    return Board(start, end, size, twin, first, np.array(piece.loads, np.int64)), columns


def new_state(board: Board, failed: Words, blame: Ints, room: int) -> State:
    """Return a state in which nothing is placed, with an undo log for ``room`` steps."""
    buffers, sections = len(board.size), len(board.load)
    registers = np.zeros(8, np.int64)
    registers[RIGHT] = sections
    return State(
        floor=np.zeros(sections, np.int64),
        top=np.zeros(sections, np.int64),
        left=board.load.copy(),
        placed=np.zeros(buffers, np.int8),
        offset=np.zeros(buffers, np.int64),
        trail=np.zeros((room, 3), np.int64),
        frames=np.zeros((4 * (buffers + sections) + 100, 9), np.int64),
        options=np.zeros(64 * (buffers + sections) + 1000, np.int64),
        registers=registers,
        scratch=np.zeros((10, sections + 2), np.int64),
        liking=np.zeros(buffers, np.int64),
        failed=failed,
        blame=blame,
    )


# Attributes are read once a function: each reading of an array counts a reference.


@compiled
def put(board: Board, state: State, buffer: int) -> None:
    """Place a buffer on the floor, which is level over all its sections."""
    floor, top, left, trail = state.floor, state.top, state.left, state.trail
    begin, end, size = board.start[buffer], board.end[buffer], board.size[buffer]
    offset = floor[begin]
    at = state.registers[TRAIL]
    for s in range(begin, end):
        if top[s] != offset:
            trail[at, 0], trail[at, 1], trail[at, 2] = s, offset, top[s]
            at += 1
        floor[s] = offset + size
        top[s] = offset + size
        left[s] -= size
    trail[at, 0], trail[at, 1] = -1 - buffer, offset
    state.registers[TRAIL] = at + 1
    state.offset[buffer] = offset
    state.placed[buffer] = 1


@compiled
def lift(state: State, section: int, level: int) -> None:
    """Leave a hole: nothing still to be placed in this section goes below ``level``."""
    trail, at = state.trail, state.registers[TRAIL]
    trail[at, 0], trail[at, 1], trail[at, 2] = (
        section,
        state.floor[section],
        state.top[section],
    )
    state.registers[TRAIL] = at + 1
    state.floor[section] = level


@compiled
def undo(board: Board, state: State, mark: int) -> None:
    """Take back everything after ``mark``."""
    floor, top, left, trail = state.floor, state.top, state.left, state.trail
    at = state.registers[TRAIL]
    while at > mark:
        at -= 1
        s = trail[at, 0]
        if s >= 0:
            floor[s], top[s] = trail[at, 1], trail[at, 2]
            continue
        buffer = -1 - s
        state.placed[buffer] = 0
        offset, size = trail[at, 1], board.size[buffer]
        for q in range(board.start[buffer], board.end[buffer]):
            floor[q] = offset
            top[q] = offset
            left[q] += size
    state.registers[TRAIL] = mark
