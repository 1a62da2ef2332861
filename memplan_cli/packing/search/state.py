"""State of the exact search: the buffers of one piece as arrays, the skyline, and the undo log.

`PieceArrays` never changes during a search. `SearchState` is the skyline over the sections, the
stacks of the depth-first search, and all that is needed to take a step back. Both are tuples of
arrays, because numba compiles access to those into plain loads.

    offset
      ^                          ``floor[s]``: lowest offset that an unplaced buffer may get in
      |     +---+                section s. It is the top of the buffers placed in the section, or
      | +---+   |....            higher where a hole was left on purpose (dots).
      | |       |
      +-+-------+----+-> section
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

# Indices of `SearchState.registers`. The registers hold the scalars of a search, so that a
# compiled loop can stop after some work and continue later.
TRAIL = 0
"""Number of entries in the undo log."""
DEPTH = 1
"""Number of open frames."""
OPTIONS = 2
"""Number of entries on the option stack."""
MODE = 3
"""What to do next: one of the modes below."""
WORK = 4
"""Units of work that may still be spent."""
_REGISTERS = 5

# Modes: the values of ``registers[MODE]``.
ENTER = 0
"""Take steps from the present state on."""
NEXT = 1
"""Try the next option of the frame on top; without a frame, there is no solution."""
SOLVED = 2
"""All buffers are placed."""
OVERFLOWED = 3
"""The undo log or a stack has no room for another step."""

# Results of a search, besides SOLVED and OVERFLOWED.
FAILED = 4
"""There is no solution."""
UNFINISHED = 5
"""The work is used up."""

# Columns of `SearchState.frames`.
FIRST = 0
"""Index of the frame's first option on the option stack."""
END = 1
"""Index after its last option."""
UPCOMING = 2
"""Index of the option that is tried next."""
MARK = 3
"""Length of the undo log when the frame was opened."""
FINGERPRINT = 4
"""Fingerprint of the state when the frame was opened."""
SECTION = 5
"""The section at which the options are."""
_FRAME_COLUMNS = 6

# Rows of `SearchState.scratch`, with one entry for each section. For valleys and inside buffers see
# `valleys`.
STRETCH_BEGIN = 0
"""First section of the stretch of equal floors that holds the section."""
STRETCH_STOP = 1
"""Section after the last of that stretch."""
CAP = 2
"""Lower wall of the valley that holds the section, in units; -1 if the stretch is no valley."""
INSIDE_UNITS = 3
"""Units of the inside buffers that cover the section."""
INSIDE_COUNT = 4
"""Number of the inside buffers that cover the section, equal buffers counted once."""
SMALLEST_LEFT = 5
"""Size of the smallest inside buffer of the valley that ends before the section, or INFINITE."""
SMALLEST_RIGHT = 6
"""Size of the smallest inside buffer of the valley that starts after the section, or INFINITE."""
HOLE = 7
"""Level up to which a hole at the section reaches, or -1 if there is no slack for a hole."""
STACK_BEGIN = 8
"""In `has_full_basin`: first section of each entry of a stack."""
STACK_LEVEL = 9
"""In `has_full_basin`: level of each entry of that stack."""
CHANGE = 10
"""In `has_full_basin`: change in the units of the buffers of a basin at the section."""
_SCRATCH_ROWS = 11

INFINITE = 1 << 60
"""Higher than any arena: the height of the walls at the edges of a piece."""


class PieceArrays(NamedTuple):
    """The buffers of one piece as arrays, sorted by start, end and size."""

    start: Ints
    """First section of each buffer."""
    end: Ints
    """Section after the last of each buffer."""
    size: Ints
    """Units of each buffer."""
    twin: Ints
    """The previous buffer with the same start, end and size, or -1."""
    first: Ints
    """For each section, and for the end, the first buffer that starts there or later."""
    load: Ints
    """Units live in each section."""


class SearchState(NamedTuple):
    """Everything that changes during a search."""

    floor: Ints
    """For each section the lowest offset that an unplaced buffer may get there; INFINITE if all of its
    buffers are placed."""
    unplaced: Ints
    """For each section the units of the buffers that are live there and not placed."""
    is_placed: NDArray[np.int8]
    """1 for each buffer that is placed, else 0."""
    offset: Ints
    """Units below each placed buffer; meaningless for the others."""
    trail: Ints
    """Undo log, one row for each change: (section, former floor) for a hole, (-1 - buffer, offset) for
    a placed buffer."""
    frames: Ints
    """Stack of decisions, one row each, with the columns FIRST to SECTION."""
    options: Ints
    """Stack of options: a buffer to place, or a hole as `hole_option`."""
    registers: Ints
    """The scalars of the search, at the indices TRAIL to WORK."""
    scratch: Ints
    """Temporary rows with one entry for each section and one for their end, at the indices
    STRETCH_BEGIN to CHANGE."""
    preference: Ints
    """Temporary: of each buffer, the preference with which it is sorted among the options."""
    failed: Words
    """Hash table with the fingerprints of states without a solution, 0 in empty slots; its length is
    a power of two. Kept over restarts."""
    failures: Ints
    """One more than how often each section was the reason for a dead end; kept over restarts."""


def piece_arrays(piece: Piece) -> tuple[PieceArrays, list[int]]:
    """Return the sorted arrays of a piece, and for each entry its index in the piece's columns."""
    columns = sorted(
        range(len(piece.size)), key=lambda i: (piece.start[i], piece.end[i], piece.size[i], i)
    )
    start = np.array([piece.start[i] for i in columns], np.int64)
    end = np.array([piece.end[i] for i in columns], np.int64)
    size = np.array([piece.size[i] for i in columns], np.int64)
    # For each entry but the first: whether it is equal to the one before, which is its twin then.
    is_equal = (np.diff(start) == 0) & (np.diff(end) == 0) & (np.diff(size) == 0)
    twin = np.full(len(columns), -1, np.int64)
    twin[1:] = np.where(is_equal, np.arange(len(columns) - 1), -1)
    # For each section, and for the end: the first entry that starts there or later.
    first = np.searchsorted(start, np.arange(len(piece.loads) + 1)).astype(np.int64)
    load = np.array(piece.loads, np.int64)
    return PieceArrays(start, end, size, twin, first, load), columns


def new_state(piece: PieceArrays, failed: Words, failures: Ints) -> SearchState:
    """Return the state of a depth-first search in which no buffer is placed.

    Shared with earlier searches of the piece: the hash table ``failed`` of states without a solution, and
    ``failures``, how often each section was a dead end.
    """
    buffers, sections = len(piece.size), len(piece.load)
    # Placing a buffer takes one log entry and at most one open decision: the factors below leave room to spare.
    # Any factors are correct: a search without room for the next step ends with OVERFLOWED, without an answer.
    size = buffers + sections
    return SearchState(
        # The packing so far.
        floor=np.zeros(sections, np.int64),
        unplaced=piece.load.copy(),
        is_placed=np.zeros(buffers, np.int8),
        offset=np.zeros(buffers, np.int64),
        # The undo log, the stack of open decisions, and the stack of their options.
        trail=np.zeros((256 * size + 1000, 2), np.int64),
        frames=np.zeros((4 * size + 100, _FRAME_COLUMNS), np.int64),
        options=np.zeros(64 * size + 1000, np.int64),
        registers=np.zeros(_REGISTERS, np.int64),  # empty stacks, and the mode ENTER
        # Temporary values. A row of ``scratch`` has one entry more than there are sections: in the row CHANGE, a
        # buffer adds its size at its first section and takes it away at the section after its last.
        scratch=np.zeros((_SCRATCH_ROWS, sections + 1), np.int64),
        preference=np.zeros(buffers, np.int64),
        # Known dead ends.
        failed=failed,
        failures=failures,
    )


@compiled
def hole_option(level: int) -> int:
    """Return the option of a hole up to a level. It is negative; buffers are options from 0 on."""
    return -1 - level


@compiled
def hole_level(option: int) -> int:
    """Return the level up to which the hole of a negative option reaches."""
    return -1 - option


# The loops below read each array once into a local: every access to a tuple's array counts a
# reference.


@compiled
def place_on_floor(piece: PieceArrays, state: SearchState, buffer: int) -> None:
    """Place a buffer on the floor, which must be level over all its sections.

    Raises the floor to the top of the buffer, to INFINITE where it is the last one. Lowers ``unplaced``, and
    logs the step in the undo log ``trail``.
    """
    floor, unplaced, trail = state.floor, state.unplaced, state.trail
    begin, end, size = piece.start[buffer], piece.end[buffer], piece.size[buffer]
    offset = floor[begin]
    for section in range(begin, end):
        unplaced[section] -= size
        floor[section] = offset + size if unplaced[section] > 0 else INFINITE
    length = state.registers[TRAIL]
    # Negative for a buffer: in the entry of a hole, this is a section.
    trail[length, 0], trail[length, 1] = -1 - buffer, offset
    state.registers[TRAIL] = length + 1
    state.offset[buffer] = offset
    state.is_placed[buffer] = 1


@compiled
def raise_floor(state: SearchState, section: int, level: int) -> None:
    """Raise the floor of one section to ``level`` units, which leaves a hole; log it for undo."""
    trail, length = state.trail, state.registers[TRAIL]
    trail[length, 0] = section
    trail[length, 1] = state.floor[section]
    state.registers[TRAIL] = length + 1
    state.floor[section] = level


@compiled
def undo(piece: PieceArrays, state: SearchState, mark: int) -> None:
    """Take back all steps of the undo log from entry ``mark`` on, the last first.

    An entry is (section, former floor) for a hole, or (-1 - buffer, its offset) for a placed buffer, whose
    offset was the floor of all of its sections.
    """
    floor, unplaced, trail = state.floor, state.unplaced, state.trail
    length = state.registers[TRAIL]
    while length > mark:
        length -= 1
        changed = trail[length, 0]
        is_section = changed >= 0
        if is_section:
            floor[changed] = trail[length, 1]
            continue
        buffer = -1 - changed
        state.is_placed[buffer] = 0
        offset, size = trail[length, 1], piece.size[buffer]
        for section in range(piece.start[buffer], piece.end[buffer]):
            floor[section] = offset
            unplaced[section] += size
    state.registers[TRAIL] = mark
