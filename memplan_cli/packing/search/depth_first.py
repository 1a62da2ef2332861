"""Depth-first branch and bound over skylines: a layout within a capacity, or proof of none.

Each step branches at the section with the fewest options (`valleys`). The options are the buffers
that can be placed on the floor there, and a hole. Parts that share no unplaced buffer are solved
one after the other; if one has no solution, the state has none.

    CHOICE frame at a section          PARTS frame
      option: place a                    part [0, 7)      all must be solved
      option: place b   one must do      part [9, 12)
      option: a hole

States without a solution are remembered by a 64-bit fingerprint of the unplaced buffers and the
room above the skyline, which holds for every capacity and every order of options. Two states may
share a fingerprint; for a hundred thousand states the chance is below one in a million.

Canonical order, section bounds and decomposition are MiniMalloc's (Moffitt, ASPLOS 2023), which
branches at the lowest buffer. Branching at the tightest section of any valley is memplan's, and is
why most hard instances need few steps.

The stack of frames replaces recursion, so that `search` can stop after some work and continue.
Its state of control is in the registers: MODE, DEPTH, OPTIONS, and the part [LEFT, RIGHT).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.search.state import (
    BEGIN,
    CHOICE,
    DEPTH,
    END,
    ENTER,
    FAILED,
    FINGERPRINT,
    FIRST,
    FROM,
    HOLE,
    KIND,
    LEFT,
    MARK,
    MODE,
    NEXT,
    OPTIONS,
    OVERFLOWED,
    PARTS,
    RIGHT,
    SECTION,
    SOLVED,
    STOP,
    TRAIL,
    UNFINISHED,
    UNTIL,
    UPCOMING,
    WORK,
    hole_level,
    hole_option,
    place_on_floor,
    raise_floor,
    undo,
)
from memplan_cli.packing.search.valleys import (
    DEAD_END,
    RAISED,
    count_inside,
    find_valleys,
    has_full_basin,
    has_trail_room,
    split,
    tightest_section,
)

if TYPE_CHECKING:
    from memplan_cli.packing.search.state import Ints, PieceArrays, SearchState


@compiled
def _mixed_bits(word: np.uint64) -> np.uint64:
    """Return a hash of 64 bits: the finalizer of splitmix64."""
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def _fingerprint(
    piece: PieceArrays, state: SearchState, left: int, right: int, capacity: int
) -> np.uint64:
    """Return a hash of all that decides whether [left, right) can be solved; never 0.

    Hashed are the unplaced buffers that start there and, for each section, the room above the floor.
    """
    # 2 ** 64 divided by the golden ratio: small numbers times it differ in all bits.
    odd = np.uint64(0x9E3779B97F4A7C15)
    word = np.uint64(1)
    is_placed, floor = state.is_placed, state.floor
    for buffer in range(piece.first[left], piece.first[right]):
        if not is_placed[buffer]:
            word += _mixed_bits(np.uint64(buffer + 1) * odd)
    for section in range(left, right):
        room = np.uint64(capacity - floor[section])
        # Mixed twice: a section with its room must not have the hash of a buffer.
        word += _mixed_bits(_mixed_bits(room + np.uint64(section) * odd) * odd)
    return word if word != np.uint64(0) else odd


@compiled
def _is_known_failure(state: SearchState, fingerprint: np.uint64) -> bool:
    """Return whether a state with this fingerprint is known to have no solution.

    A fingerprint is in the slot of its lowest bits, or in the neighboring one. It is not 0, which
    stands for an empty slot.
    """
    slot = np.int64(fingerprint & np.uint64(len(state.failed) - 1))
    return bool(state.failed[slot] == fingerprint or state.failed[slot ^ 1] == fingerprint)


@compiled
def _remember_failure(state: SearchState, fingerprint: np.uint64) -> None:
    """Add a fingerprint to ``state.failed``, in the slot of its lowest bits or the neighboring one.

    The neighbor is taken if the slot is not empty, and may hold an older fingerprint: that is lost.
    """
    slot = np.int64(fingerprint & np.uint64(len(state.failed) - 1))
    if state.failed[slot] != np.uint64(0):
        slot ^= 1
    state.failed[slot] = fingerprint


@compiled
def _list_options(
    piece: PieceArrays, state: SearchState, rank: Ints, level_bonus: int, section: int
) -> int:
    """Write the options at a section to the option stack; return the index after the last.

    An option is to place a buffer that covers the section on its floor, between the walls of its valley,
    or to leave a hole (`valleys`). Buffers come first, by falling preference. Register OPTIONS is not
    changed. `_has_room` has found room for the options.

    Args:
        piece: The buffers.
        state: The state. Its scratch rows BEGIN and STOP have the valley of each section, and HOLE the
            level up to which a hole would reach, -1 if there is no slack for one.
        rank: For each buffer its place in the order in which options are tried.
        level_bonus: Added to a buffer's preference for each wall that it touches if its top is level
            with that of the wall: the skyline gets smoother.
        section: Where to branch.
    """
    start, end, sizes, twin = piece.start, piece.end, piece.size, piece.twin
    is_placed, floor = state.is_placed, state.floor
    options, preferences = state.options, state.preference
    begin, stop = state.scratch[BEGIN, section], state.scratch[STOP, section]
    left, right = state.registers[LEFT], state.registers[RIGHT]
    base = state.registers[OPTIONS]
    last = base
    for buffer in range(piece.first[begin], piece.first[section + 1]):
        covers_section = end[buffer] > section  # it starts at the section or before
        if is_placed[buffer] or not covers_section or end[buffer] > stop:
            continue
        if twin[buffer] >= 0 and not is_placed[twin[buffer]]:
            continue  # the equal buffer before it is an option already
        top = floor[section] + sizes[buffer]
        preference = -rank[buffer]
        if start[buffer] == begin and begin > left and floor[begin - 1] == top:
            preference += level_bonus
        if end[buffer] == stop and stop < right and floor[stop] == top:
            preference += level_bonus
        preferences[buffer] = preference
        index = last
        while index > base and preferences[options[index - 1]] < preference:
            options[index] = options[index - 1]
            index -= 1
        options[index] = buffer
        last += 1
    level = state.scratch[HOLE, section]
    if level >= 0:
        options[last] = hole_option(level)
        last += 1
    return int(last)


@compiled
def _push_frame(state: SearchState, kind: int, last: int) -> None:
    """Open a frame for the options on the stack up to index ``last``; the mode becomes NEXT."""
    depth = state.registers[DEPTH]
    first = state.registers[OPTIONS]
    state.frames[depth, KIND] = kind
    state.frames[depth, FIRST] = first
    state.frames[depth, END] = last
    state.frames[depth, UPCOMING] = first
    state.registers[DEPTH] = depth + 1
    state.registers[OPTIONS] = last
    state.registers[MODE] = NEXT


@compiled
def _push_choice(state: SearchState, section: int, fingerprint: np.uint64, last: int) -> None:
    """Open a CHOICE frame for the options at a section of the part [LEFT, RIGHT); the mode becomes NEXT.

    The options are on the option stack up to index ``last``. ``fingerprint`` is that of the present
    state, to which `_try_next_placement` returns for each option.
    """
    registers = state.registers
    frame = state.frames[registers[DEPTH]]
    frame[MARK], frame[FINGERPRINT] = registers[TRAIL], np.int64(fingerprint)
    frame[SECTION], frame[FROM], frame[UNTIL] = section, registers[LEFT], registers[RIGHT]
    _push_frame(state, CHOICE, last)


@compiled
def _has_room(state: SearchState, buffers: int, sections: int) -> bool:
    """Return whether undo log and stacks have room for any step over so many buffers.

    Options are at most one for each buffer and two for each part, with a margin.
    """
    return (
        has_trail_room(state, sections)
        and state.registers[DEPTH] + 2 < len(state.frames)
        and state.registers[OPTIONS] + buffers + 2 * sections + 8 < len(state.options)
    )


@compiled
def _enter(
    piece: PieceArrays,
    state: SearchState,
    capacity: int,
    rank: Ints,
    level_bonus: int,
    weigh_failures: int,
) -> None:
    """Solve [LEFT, RIGHT) as far as nothing has to be chosen; then set the next mode.

    A single option is taken. The mode becomes

    - NEXT after a frame was opened, for several options or several parts,
    - SOLVED if all buffers are placed,
    - FAILED if there is no solution; the placed buffers stay until the frame below undoes them,
    - OVERFLOWED if the stacks or the undo log are too small.
    """
    registers = state.registers
    left, right = registers[LEFT], registers[RIGHT]
    while True:
        if not _has_room(state, piece.first[right] - piece.first[left], right - left):
            registers[MODE] = OVERFLOWED
            return
        base = registers[OPTIONS]
        parts = split(piece, state, left, right)  # two options from ``base`` on for each
        if parts == 0:
            registers[MODE] = SOLVED
            return
        if parts > 1:
            _push_frame(state, PARTS, base + 2 * parts)
            return
        left, right = state.options[base], state.options[base + 1]
        registers[LEFT], registers[RIGHT] = left, right
        find_valleys(state, left, right)
        count_inside(piece, state, left, right)
        section = tightest_section(state, left, right, capacity, weigh_failures)
        if section == RAISED:  # floors have changed, and so may have the valleys
            continue
        if section == DEAD_END or has_full_basin(piece, state, left, right, capacity):
            registers[MODE] = FAILED
            return
        options_end = _list_options(piece, state, rank, level_bonus, section)
        if options_end == base + 1:
            _take_option(piece, state, section, state.options[base])
            continue
        fingerprint = _fingerprint(piece, state, left, right, capacity)
        if _is_known_failure(state, fingerprint):
            registers[MODE] = FAILED
            return
        _push_choice(state, section, fingerprint, options_end)
        return


@compiled
def _take_option(piece: PieceArrays, state: SearchState, section: int, option: int) -> None:
    """Place a buffer on the floor of a section, or leave a hole there."""
    is_buffer = option >= 0
    if is_buffer:
        place_on_floor(piece, state, option)
    else:
        raise_floor(state, section, hole_level(option))


@compiled
def _try_next_option(piece: PieceArrays, state: SearchState) -> None:
    """Try the next option of the frame on top, or close the frame if none is left."""
    if state.frames[state.registers[DEPTH] - 1, KIND] == CHOICE:
        _try_next_placement(piece, state)
    else:
        _enter_next_part(state)


@compiled
def _try_next_placement(piece: PieceArrays, state: SearchState) -> None:
    """Undo the former option of the CHOICE frame on top, and place the next one: a buffer or a hole.

    If none is left, the frame is closed as failed, and its state is remembered.
    """
    registers = state.registers
    frame = state.frames[registers[DEPTH] - 1]
    undo(piece, state, frame[MARK])
    index = frame[UPCOMING]
    if index == frame[END]:
        _remember_failure(state, np.uint64(frame[FINGERPRINT]))
        _pop_frame(state)
        registers[MODE] = FAILED
        return
    frame[UPCOMING] = index + 1
    registers[OPTIONS] = frame[END]  # the frames above this one are closed, with their options
    registers[LEFT], registers[RIGHT] = frame[FROM], frame[UNTIL]
    registers[MODE] = ENTER
    _take_option(piece, state, frame[SECTION], state.options[index])


@compiled
def _enter_next_part(state: SearchState) -> None:
    """Continue with the next part of the PARTS frame on top; if none is left, close the frame as solved."""
    registers = state.registers
    frame = state.frames[registers[DEPTH] - 1]
    index = frame[UPCOMING]
    if index == frame[END]:
        _pop_frame(state)
        registers[MODE] = SOLVED
        return
    # A part has two entries: its first section, and that after its last.
    frame[UPCOMING] = index + 2
    registers[OPTIONS] = frame[END]  # the frames above this one are closed, with their options
    registers[LEFT], registers[RIGHT] = state.options[index], state.options[index + 1]
    registers[MODE] = ENTER


@compiled
def _pop_frame(state: SearchState) -> None:
    """Remove the frame on top, with its options."""
    state.registers[DEPTH] -= 1
    state.registers[OPTIONS] = state.frames[state.registers[DEPTH], FIRST]


@compiled
def search(
    piece: PieceArrays,
    state: SearchState,
    capacity: int,
    rank: Ints,
    level_bonus: int,
    weigh_failures: int,
) -> int:
    """Search until there is a result or register WORK is used up; changes ``state``.

    Returns SOLVED: ``state.offset`` holds a layout within ``capacity`` units. FAILED: there is none.
    OVERFLOWED: the stacks or the undo log are too small. UNFINISHED: the work is used up, and a
    further call continues the search.

    For ``rank`` and ``level_bonus`` see `_list_options`, for ``weigh_failures`` `tightest_section`.
    """
    registers = state.registers
    while registers[WORK] > 0:
        mode = registers[MODE]
        if mode == ENTER:
            _enter(piece, state, capacity, rank, level_bonus, weigh_failures)
        elif mode == NEXT:
            _try_next_option(piece, state)
        elif mode == OVERFLOWED:
            return OVERFLOWED
        else:
            # One solved option solves its choice, and one failed part fails all parts. The first frame
            # of the other kind has further parts to solve, or further options to try.
            decided = CHOICE if mode == SOLVED else PARTS
            while registers[DEPTH] > 0 and state.frames[registers[DEPTH] - 1, KIND] == decided:
                _pop_frame(state)
            if registers[DEPTH] == 0:
                return int(mode)
            registers[MODE] = NEXT
    return UNFINISHED
