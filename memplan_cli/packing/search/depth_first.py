"""Depth-first branch and bound over skylines: a layout within a capacity, or proof of none.

Each step branches at the section with the fewest options (`valleys`). The options are the buffers
that can be placed on the floor there, and a hole. If there are several, they are put on the stack
of options, and a *frame* on the stack of frames says which of them belong to the step:

    frames                    options
    at section 4              place a, place b, a hole
    at section 9 (on top)     place c, place d

States without a solution are remembered by a 64-bit fingerprint of the unplaced buffers and the
room above the skyline, which holds for every capacity and every order of options. Two states may
share a fingerprint; for a hundred thousand states the chance is below one in a million.

Canonical order and section bounds are MiniMalloc's (Moffitt, ASPLOS 2023), which branches at the
lowest buffer. Branching at the tightest section of any valley is memplan's, and is why most hard
instances need few steps.

The stacks replace recursion, so that `search` can stop after some work and continue. The heights of
the stacks and the next step are in the registers DEPTH, OPTIONS and MODE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.search.state import (
    DEPTH,
    END,
    ENTER,
    FAILED,
    FINGERPRINT,
    FIRST,
    HOLE,
    INFINITE,
    MARK,
    MODE,
    NEXT,
    OPTIONS,
    OVERFLOWED,
    SECTION,
    SOLVED,
    STRETCH_BEGIN,
    STRETCH_STOP,
    TRAIL,
    UNFINISHED,
    UPCOMING,
    WORK,
    hole_level,
    hole_option,
    place_on_floor,
    raise_floor,
    undo,
)
from memplan_cli.packing.search.valleys import (
    count_inside,
    find_valleys,
    has_full_basin,
    has_full_valley,
    raise_unusable,
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
    """Return a hash of a state, that is of all that decides whether it has a solution; never 0.

    Hashed are the unplaced buffers, and the room between floor and capacity in each section. Sections before
    ``left`` and from ``right`` on are left out: all of their buffers are placed.
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
    """Write the options at a section above the option stack; return the index after the last.

    First come the buffers that can be placed on the floor, by falling preference: unplaced, over the section,
    and between the walls of its valley. The last option is a hole, if there is slack for one. Register
    OPTIONS, the height of the stack, is not changed. `_has_room` has found room for the options.

    Args:
        piece: The buffers.
        state: The state. Its scratch rows STRETCH_BEGIN and STRETCH_STOP have the valley of each section,
            and HOLE the level up to which a hole would reach, -1 if there is no slack for one.
        rank: For each buffer its place in the order in which options are tried.
        level_bonus: Added to a buffer's preference for each wall that it touches if its top is level
            with that of the wall: the skyline gets smoother.
        section: Where to branch.
    """
    start, end, sizes, twin = piece.start, piece.end, piece.size, piece.twin
    is_placed, floor, options = state.is_placed, state.floor, state.options
    begin = state.scratch[STRETCH_BEGIN, section]
    stop = state.scratch[STRETCH_STOP, section]
    first_option = state.registers[OPTIONS]
    options_end = first_option
    for buffer in range(piece.first[begin], piece.first[section + 1]):
        covers_section = end[buffer] > section  # it starts at the section or before
        if is_placed[buffer] or not covers_section or end[buffer] > stop:
            continue
        if twin[buffer] >= 0 and not is_placed[twin[buffer]]:
            continue  # the equal buffer before it is an option already
        top = floor[section] + sizes[buffer]
        preference = -rank[buffer]
        if start[buffer] == begin and begin > 0 and floor[begin - 1] == top:
            preference += level_bonus
        if end[buffer] == stop and stop < len(floor) and floor[stop] == top:
            preference += level_bonus
        state.preference[buffer] = preference
        _insert_sorted(options, state.preference, first_option, options_end, buffer)
        options_end += 1
    level = state.scratch[HOLE, section]
    if level >= 0:
        options[options_end] = hole_option(level)
        options_end += 1
    return int(options_end)


@compiled
def _insert_sorted(
    options: Ints, preferences: Ints, first: int, end: int, buffer: int
) -> None:
    """Insert a buffer into ``options[first:end]``, which is sorted by falling preference of the buffers.

    Changes ``options``: those of lower preference move up by one.
    """
    index = end
    while index > first and preferences[options[index - 1]] < preferences[buffer]:
        options[index] = options[index - 1]
        index -= 1
    options[index] = buffer


@compiled
def _push_frame(
    state: SearchState, section: int, fingerprint: np.uint64, options_end: int
) -> None:
    """Push a frame, the choice among several options at a section, onto the stack of frames.

    `_list_options` has written the options above the top of the stack of options, and before index
    ``options_end``. They are pushed here, too. ``fingerprint`` is that of the present state.
    """
    registers = state.registers
    first_option = registers[OPTIONS]  # the top of the stack of options
    frame = state.frames[registers[DEPTH]]
    frame[FIRST] = first_option
    frame[END] = options_end
    frame[UPCOMING] = first_option  # the option to try next
    frame[MARK] = registers[TRAIL]  # later steps are undone before the next option
    frame[FINGERPRINT] = np.int64(fingerprint)
    frame[SECTION] = section
    # The new tops of both stacks.
    registers[DEPTH] += 1
    registers[OPTIONS] = options_end


@compiled
def _has_room(state: SearchState) -> bool:
    """Return whether undo log and stacks have room for any step.

    A step logs at most one entry for each section and a buffer; its options are at most all buffers and a hole.
    """
    buffers, sections = len(state.is_placed), len(state.floor)
    return bool(
        state.registers[TRAIL] + sections + 1 < len(state.trail)
        and state.registers[DEPTH] < len(state.frames)
        and state.registers[OPTIONS] + buffers + 1 < len(state.options)
    )


@compiled
def _advance(
    piece: PieceArrays,
    state: SearchState,
    capacity: int,
    rank: Ints,
    level_bonus: int,
    weigh_failures: int,
) -> int:
    """Take steps while a section has a single option, then open a frame; return the next mode.

    A step places a buffer on the floor of a section, or leaves a hole there. The mode is

    - SOLVED if all buffers are placed,
    - OVERFLOWED if the stacks or the undo log are too small,
    - else NEXT: the frame on top of the stack tries its next option. That is the new frame, or an older one if
      the state is found to have no solution.

    Changes ``state`` and spends its work. ``rank`` and ``level_bonus`` decide the order of options. With
    ``weigh_failures`` 1 instead of 0, sections that often were dead ends come first.
    """
    floor, sections = state.floor, len(state.floor)
    left, right = 0, sections
    while True:
        if not _has_room(state):
            return OVERFLOWED
        # Sections whose buffers are all placed have an infinite floor. Those at both ends are left out.
        while left < right and floor[left] == INFINITE:
            left += 1
        while left < right and floor[right - 1] == INFINITE:
            right -= 1
        if left == right:
            return SOLVED
        # The work of the functions below: two passes over the buffers and four over the sections.
        buffers = piece.first[right] - piece.first[left]
        state.registers[WORK] -= 2 * buffers + 4 * (right - left)
        # Valleys are intervals of level floor between higher walls; a basin has any floors between its walls.
        find_valleys(state, left, right)
        count_inside(piece, state, left, right)
        if has_full_valley(state, left, right, capacity):
            return NEXT
        if raise_unusable(state, left, right):  # then valleys have changed
            continue
        if has_full_basin(piece, state, left, right, capacity):
            return NEXT
        section = tightest_section(state, left, right, capacity, weigh_failures)
        # Options are written above the top of their stack, and stay there only if a frame is pushed. There is
        # one at least: some unplaced buffer fits into the valley over the section.
        first_option = state.registers[OPTIONS]
        options_end = _list_options(piece, state, rank, level_bonus, section)
        if options_end == first_option + 1:
            _take_option(piece, state, section, state.options[first_option])
            continue
        fingerprint = _fingerprint(piece, state, left, right, capacity)
        if not _is_known_failure(state, fingerprint):
            _push_frame(state, section, fingerprint, options_end)
        return NEXT


@compiled
def _take_option(piece: PieceArrays, state: SearchState, section: int, option: int) -> None:
    """Place the buffer with the index ``option`` on the floor; if ``option`` is negative, leave a hole there."""
    if option >= 0:
        place_on_floor(piece, state, option)  # ``section`` is one of the buffer's sections
    else:
        raise_floor(state, section, hole_level(option))


@compiled
def _try_next_option(piece: PieceArrays, state: SearchState) -> int:
    """Undo the former option of the frame on top, and take the next one; return the next mode.

    The mode is ENTER if an option is left: the search goes on from the new state. Else the state of the frame
    has no solution, which is remembered, and the mode is NEXT: the frame below tries its next option.
    """
    registers = state.registers
    frame = state.frames[registers[DEPTH] - 1]
    undo(piece, state, frame[MARK])
    # The options of the frame are on top of the stack of options, with the indices from FIRST to END.
    upcoming = frame[UPCOMING]
    if upcoming < frame[END]:
        frame[UPCOMING] += 1
        _take_option(piece, state, frame[SECTION], state.options[upcoming])
        return ENTER
    _remember_failure(state, np.uint64(frame[FINGERPRINT]))
    registers[DEPTH] -= 1  # pops the frame
    registers[OPTIONS] = frame[FIRST]  # pops its options
    return NEXT


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

    Returns SOLVED: ``state.offset`` holds a layout within ``capacity`` units. FAILED: there is none. OVERFLOWED:
    the stacks or the undo log are too small. UNFINISHED: the work is used up; a further call continues.

    ``rank`` and ``level_bonus`` decide the order of options at a section, and ``weigh_failures`` the section.
    """
    registers = state.registers
    while True:
        mode = registers[MODE]
        if mode in (SOLVED, OVERFLOWED):
            return int(mode)
        if mode == NEXT and registers[DEPTH] == 0:  # no option is left
            return FAILED
        if registers[WORK] <= 0:  # `_advance` spends it
            return UNFINISHED
        if mode == NEXT:
            registers[MODE] = _try_next_option(piece, state)
        else:  # ENTER
            registers[MODE] = _advance(
                piece, state, capacity, rank, level_bonus, weigh_failures
            )
