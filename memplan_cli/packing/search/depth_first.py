"""Depth-first branch and bound over skylines: a layout of a given height, or proof of none.

Each step asks `valleys` for the section with the fewest options and tries them: one of the
buffers that could be placed on the floor there, or a hole. What has become independent is
solved separately, all parts or none. States found to have no solution are remembered by a
64-bit fingerprint of what is unplaced and how much room is above the skyline, so the memory
holds for every capacity and every order of trying; that two states share one is possible, with
a chance below one in a million for a hundred thousand states.

Canonical order, section bounds, dominance and decomposition are MiniMalloc's (Moffitt,
ASPLOS 2023); asking at the tightest section of any valley instead of the lowest buffer is
ours, and is why most hard instances need few steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.search.board import (
    CHOICE,
    DEPTH,
    ENTER,
    FAILED,
    FIRST,
    FROM,
    KIND,
    LAST,
    LEFT,
    MARK,
    MODE,
    NEXT,
    NODES,
    OPTIONS,
    OVERFLOWED,
    PARTS,
    PRINT,
    RIGHT,
    SECTION,
    SOLVED,
    TRAIL,
    UNTIL,
    UPCOMING,
    WORK,
    lift,
    put,
    undo,
)
from memplan_cli.packing.search.valleys import (
    BEGIN,
    DEAD_END,
    LIFTED,
    SMALL_RIGHT,
    STOP,
    basin_overflows,
    could_drop,
    count_inside,
    find_valleys,
    room_in_trail,
    split,
    tightest_section,
)

if TYPE_CHECKING:
    from memplan_cli.packing.search.board import Board, Ints, State


@compiled
def _mixed(word: np.uint64) -> np.uint64:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def _fingerprint(
    board: Board, state: State, left: int, right: int, capacity: int
) -> np.uint64:
    """Hash what decides whether [left, right) can be solved; never 0."""
    odd = np.uint64(0x9E3779B97F4A7C15)
    word = np.uint64(1)
    placed, floor, top = state.placed, state.floor, state.top
    for i in range(board.first[left], board.first[right]):
        if not placed[i]:
            word += _mixed(np.uint64(2 * i + 1) * odd)
    for s in range(left, right):
        room, hole = np.uint64(capacity - floor[s]), np.uint64(floor[s] - top[s])
        word += _mixed((_mixed(room + np.uint64(s) * odd) + hole) * odd)
    return word if word != np.uint64(0) else odd


@compiled
def _is_failed(state: State, word: np.uint64) -> bool:
    slot = np.int64(word & np.uint64(len(state.failed) - 1))
    return bool(state.failed[slot] == word or state.failed[slot ^ 1] == word)


@compiled
def _remember_failed(state: State, word: np.uint64) -> None:
    slot = np.int64(word & np.uint64(len(state.failed) - 1))
    if state.failed[slot] != np.uint64(0):
        slot ^= 1
    state.failed[slot] = word


@compiled
def _list_options(board: Board, state: State, rank: Ints, touch: int, section: int) -> int:
    """Push the options at a section, the best liked first and a hole last; return the end.

    ``touch`` is added to the liking of a buffer for each wall that it touches and ends
    level with: the skyline gets smoother.
    """
    start, end, sizes, twin = board.start, board.end, board.size, board.twin
    placed, floor, options, likings = state.placed, state.floor, state.options, state.liking
    begin, stop = state.scratch[BEGIN, section], state.scratch[STOP, section]
    left, right = state.registers[LEFT], state.registers[RIGHT]
    level = floor[section]
    base = state.registers[OPTIONS]
    at = base
    for i in range(board.first[begin], board.first[section + 1]):
        if placed[i] or end[i] <= section or end[i] > stop:
            continue
        if twin[i] >= 0 and not placed[twin[i]]:
            continue
        top = level + sizes[i]
        liking = -rank[i]
        if start[i] == begin and begin > left and floor[begin - 1] == top:
            liking += touch
        if end[i] == stop and stop < right and floor[stop] == top:
            liking += touch
        likings[i] = liking
        j = at
        while j > base and likings[options[j - 1]] < liking:
            options[j] = options[j - 1]
            j -= 1
        options[j] = i
        at += 1
    hole = state.scratch[SMALL_RIGHT, section]
    if hole >= 0:
        options[at] = -1 - hole
        at += 1
    return int(at)


@compiled
def _push(state: State, kind: int, last: int) -> None:
    """Open a frame over the options from the top of their stack to ``last``."""
    depth = state.registers[DEPTH]
    first = state.registers[OPTIONS]
    state.frames[depth, KIND] = kind
    state.frames[depth, FIRST] = first
    state.frames[depth, LAST] = last
    state.frames[depth, UPCOMING] = first
    state.registers[DEPTH] = depth + 1
    state.registers[OPTIONS] = last
    state.registers[MODE] = NEXT


@compiled
def _has_room(state: State, buffers: int, sections: int) -> bool:
    """Whether the stacks can take another step of the worst kind."""
    return (
        room_in_trail(state, sections)
        and state.registers[DEPTH] + 2 < len(state.frames)
        and state.registers[OPTIONS] + buffers + 2 * sections + 8 < len(state.options)
    )


@compiled
def _enter(
    board: Board, state: State, capacity: int, rank: Ints, touch: int, blaming: int
) -> None:
    """Work on [LEFT, RIGHT) until there is a choice to make, or none is left."""
    registers = state.registers
    left, right = registers[LEFT], registers[RIGHT]
    while True:
        if not _has_room(state, board.first[right] - board.first[left], right - left):
            registers[MODE] = OVERFLOWED
            return
        registers[NODES] += 1
        parts = split(board, state, left, right)
        if parts == 0:
            registers[MODE] = SOLVED
            return
        base = registers[OPTIONS]
        if parts > 1:
            _push(state, PARTS, base + 2 * parts)
            return
        left, right = state.options[base], state.options[base + 1]
        registers[LEFT], registers[RIGHT] = left, right
        find_valleys(state, left, right)
        count_inside(board, state, left, right)
        section = tightest_section(state, left, right, capacity, blaming)
        if section == LIFTED:
            continue
        if section == DEAD_END or basin_overflows(board, state, left, right, capacity):
            registers[MODE] = FAILED
            return
        last = _list_options(board, state, rank, touch, section)
        if last == base + 1 and state.options[base] >= 0:
            put(board, state, state.options[base])
            continue
        word = _fingerprint(board, state, left, right, capacity)
        if _is_failed(state, word):
            registers[MODE] = FAILED
            return
        frame = state.frames[registers[DEPTH]]
        frame[MARK], frame[PRINT] = registers[TRAIL], np.int64(word)
        frame[SECTION], frame[FROM], frame[UNTIL] = section, left, right
        _push(state, CHOICE, last)
        return


@compiled
def _next(board: Board, state: State) -> None:
    """Try the next option of the frame on top, or close it."""
    registers = state.registers
    frame = state.frames[registers[DEPTH] - 1]
    registers[OPTIONS] = frame[LAST]
    option = frame[UPCOMING]
    done = option == frame[LAST]
    if frame[KIND] == PARTS:
        registers[MODE] = SOLVED if done else ENTER
        if not done:
            registers[LEFT], registers[RIGHT] = (
                state.options[option],
                state.options[option + 1],
            )
            frame[UPCOMING] = option + 2
    else:
        undo(board, state, frame[MARK])
        registers[MODE] = FAILED if done else ENTER
        if not done:
            left, right = frame[FROM], frame[UNTIL]
            registers[LEFT], registers[RIGHT] = left, right
            frame[UPCOMING] = option + 1
            chosen = state.options[option]
            if chosen >= 0:
                put(board, state, chosen)
            else:
                lift(state, frame[SECTION], -1 - chosen)
                if could_drop(board, state, frame[SECTION], left):
                    registers[MODE] = NEXT
        else:
            _remember_failed(state, np.uint64(frame[PRINT]))
    if done:
        registers[OPTIONS] = frame[FIRST]
        registers[DEPTH] -= 1


@compiled
def _settle(state: State, kind: int) -> None:
    """Pass success or failure on: a frame of ``kind`` shares it, any other one goes on."""
    registers = state.registers
    while registers[DEPTH] > 0:
        frame = state.frames[registers[DEPTH] - 1]
        if frame[KIND] != kind:
            registers[MODE] = NEXT
            return
        registers[OPTIONS] = frame[FIRST]
        registers[DEPTH] -= 1


@compiled
def search(
    board: Board, state: State, capacity: int, rank: Ints, touch: int, blaming: int
) -> int:
    """Search until WORK is used up; return the mode, SOLVED or FAILED when it has ended.

    ``touch`` is what `_list_options` adds, ``blaming`` what `tightest_section` is asked for.
    """
    registers = state.registers
    while registers[WORK] > 0:
        mode = registers[MODE]
        if mode == ENTER:
            _enter(board, state, capacity, rank, touch, blaming)
        elif mode == NEXT:
            _next(board, state)
        elif mode == OVERFLOWED:
            return int(mode)
        else:
            _settle(state, CHOICE if mode == SOLVED else PARTS)
            if registers[DEPTH] == 0:
                return int(mode)
    return ENTER
