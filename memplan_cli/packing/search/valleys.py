"""Valleys of a skyline: the branching decision with the fewest options, and pruning bounds.

A *valley* is an interval of level floor with higher floor, or the edge of the part being
solved, on both sides. Take any section of a valley. In a layout where nothing can be moved
down, either some unplaced buffer that covers the section and fits between the walls is placed
on the floor, or a hole is left there. Since this holds for every section of every valley, the
search is free to ask where the fewest answers are possible.

            wall                 cap: the lower of the two walls
      +------+         +------   inside: unplaced buffers that fit between the walls
      |      |         |
      |      +---------+         whatever sticks out goes to `cap` or higher; so a section
      |       floor    |         that has some of both wastes what `inside` cannot fill

Only holes use up *slack*, the units a section can waste at this capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.search.board import NEVER, OPTIONS, TRAIL, WORK, lift

if TYPE_CHECKING:
    from memplan_cli.packing.search.board import Board, State

# Rows of the scratch table.
CROSSING, BEGIN, STOP, CAP, STARTED, ENDED, UNITS_IN, UNITS_OUT, SMALL_RIGHT, SMALL_LEFT = (
    range(10)
)
# Answers of `tightest_section` that are no section.
DEAD_END, LIFTED = -1, -2

BLAME_BITS = 20
"""Options are divided by blame as fractions of so many bits."""


@compiled
def split(board: Board, state: State, left: int, right: int) -> int:
    """Write the parts of [left, right) that share no unplaced buffer as (from, until) pairs.

    They go on the option stack, the smallest part on top of the order. Returns how many.
    """
    first, start, end = board.first, board.start, board.end
    crossing, placed, units, options = (
        state.scratch[CROSSING],
        state.placed,
        state.left,
        state.options,
    )
    crossing[left : right + 1] = 0
    lo, hi = first[left], first[right]
    state.registers[WORK] -= 2 * (hi - lo) + 4 * (right - left)
    for i in range(lo, hi):
        if not placed[i]:
            crossing[start[i]] += 1
            crossing[end[i] - 1] -= 1
    base = state.registers[OPTIONS]
    at = base
    begin, across = -1, 0
    for s in range(left, right):
        across += crossing[s]
        if begin < 0 and units[s] > 0:
            begin = s
        if begin >= 0 and across == 0:
            # Insertion by number of buffers: a small part fails or succeeds soonest.
            weight = first[s + 1] - first[begin]
            j = at
            while j > base and (first[options[j - 1]] - first[options[j - 2]] > weight):
                options[j] = options[j - 2]
                options[j + 1] = options[j - 1]
                j -= 2
            options[j] = begin
            options[j + 1] = s + 1
            at += 2
            begin = -1
    return int((at - base) // 2)


@compiled
def find_valleys(state: State, left: int, right: int) -> None:
    """Fill BEGIN, STOP and CAP (-1 on floor that is no valley) and clear the counters."""
    table, floor = state.scratch, state.floor
    s = left
    while s < right:
        level = floor[s]
        stop = s + 1
        while stop < right and floor[stop] == level:
            stop += 1
        before = floor[s - 1] if s > left else NEVER
        after = floor[stop] if stop < right else NEVER
        cap = min(before, after) if before > level and after > level else -1
        table[BEGIN, s:stop] = s
        table[STOP, s:stop] = stop
        table[CAP, s:stop] = cap
        s = stop
    table[STARTED : UNITS_OUT + 1, left:right] = 0
    table[SMALL_RIGHT : SMALL_LEFT + 1, left:right] = NEVER


@compiled
def count_inside(board: Board, state: State, left: int, right: int) -> None:
    """Note where buffers inside valleys begin and end, as differences along time."""
    table, placed = state.scratch, state.placed
    start, end, sizes, twin = board.start, board.end, board.size, board.twin
    for i in range(board.first[left], board.first[right]):
        s, last, size = start[i], end[i] - 1, sizes[i]
        if placed[i] or table[CAP, s] < 0 or last >= table[STOP, s]:
            continue
        table[UNITS_IN, s] += size
        table[UNITS_OUT, last] += size
        # Of equal buffers only the first is offered: the others would change nothing.
        if twin[i] < 0 or placed[twin[i]]:
            table[STARTED, s] += 1
            table[ENDED, last] += 1
        table[SMALL_RIGHT, s] = min(table[SMALL_RIGHT, s], size)
        table[SMALL_LEFT, last] = min(table[SMALL_LEFT, last], size)


@compiled
def tightest_section(state: State, left: int, right: int, capacity: int, blaming: int) -> int:
    """Return the section with the fewest options, or DEAD_END, or LIFTED.

    With ``blaming`` those where there is a choice are weighed by how often they ended a try:
    what has gone wrong is decided first (dom/wdeg, Boussemart et al., ECAI 2004).

    LIFTED: in some sections nothing fits between the walls, so their floor was raised to
    the cap and the valleys have changed. For the section returned, SMALL_RIGHT holds the
    floor that a hole would leave, or -1 if there is no slack for one.
    """
    table, floor, units = state.scratch, state.floor, state.left
    fewest, chosen = NEVER, DEAD_END
    lifted = False
    s = left
    while s < right:
        stop, cap, level = table[STOP, s], table[CAP, s], floor[s]
        if cap < 0:
            s = stop
            continue
        smallest = NEVER
        for q in range(stop - 1, s - 1, -1):
            here = table[SMALL_RIGHT, q]
            table[SMALL_RIGHT, q] = smallest
            smallest = min(smallest, here)
        inside, count, smallest = 0, 0, NEVER
        for q in range(s, stop):
            inside += table[UNITS_IN, q]
            count += table[STARTED, q]
            slack = capacity - level - units[q]
            sticks_out = units[q] > inside
            if sticks_out and cap - level - inside > slack:
                state.blame[q] += 1
                return DEAD_END
            if inside == 0:
                lift(state, q, cap)
                lifted = True
            else:
                # The next buffer here is on one that does not cover the section, or
                # beyond a wall.
                beside = level + min(smallest, table[SMALL_RIGHT, q])
                hole = min(cap, beside)
                fits = hole - level <= slack
                table[SMALL_RIGHT, q] = hole if fits else -1
                options = count + 1 if fits else count
                if options == 0:
                    state.blame[q] += 1
                if blaming and options > 1:
                    options = 1 + (options << BLAME_BITS) // state.blame[q]
                if options < fewest:
                    fewest, chosen = options, q
            smallest = min(smallest, table[SMALL_LEFT, q])
            inside -= table[UNITS_OUT, q]
            count -= table[ENDED, q]
        s = stop
    return LIFTED if lifted else chosen


@compiled
def basin_overflows(board: Board, state: State, left: int, right: int, capacity: int) -> bool:
    """Whether some basin, a valley with valleys in it, must waste more than its slack.

    The bound is the valley's, with every level of the skyline as the cap in turn. Basins
    are found with a stack of ever lower levels, as in the largest rectangle of a histogram.
    """
    stack_at, stack_level, floor = state.scratch[CROSSING], state.scratch[STARTED], state.floor
    height = 0
    for s in range(left, right + 1):
        level = floor[s] if s < right else NEVER
        begin = s
        while height > 0 and stack_level[height - 1] < level:
            height -= 1
            begin = stack_at[height]
            cap = min(level, stack_level[height - 1] if height > 0 else NEVER)
            if cap < NEVER and _basin_overflows(board, state, begin, s, cap, capacity):
                return True
        if height == 0 or stack_level[height - 1] > level:
            stack_at[height] = begin
            stack_level[height] = level
            height += 1
    return False


@compiled
def _basin_overflows(
    board: Board, state: State, begin: int, stop: int, cap: int, capacity: int
) -> bool:
    if state.scratch[STOP, begin] >= stop:
        return False  # a plain valley: `tightest_section` has looked
    first, start, end, sizes = board.first, board.start, board.end, board.size
    change, placed, units = state.scratch[UNITS_IN], state.placed, state.left
    change[begin : stop + 1] = 0
    lo, hi = first[begin], first[stop]
    state.registers[WORK] -= hi - lo + 2 * (stop - begin)
    for i in range(lo, hi):
        if not placed[i] and end[i] <= stop:
            change[start[i]] += sizes[i]
            change[end[i]] -= sizes[i]
    inside = 0
    for s in range(begin, stop):
        inside += change[s]
        # Wasted: cap - floor - inside; allowed: capacity - floor - units.
        if units[s] > inside and cap - inside > capacity - units[s]:
            state.blame[s] += 1
            return True
    return False


@compiled
def could_drop(board: Board, state: State, section: int, left: int) -> bool:
    """Whether a buffer fits into the hole just left, below everything still to come.

    Such a layout is dominated by one in which that buffer is there, and that one is looked at
    elsewhere.
    """
    start, end, sizes = board.start, board.end, board.size
    placed, floor, top = state.placed, state.floor, state.top
    for i in range(board.first[left], board.first[section + 1]):
        if placed[i] or end[i] <= section:
            continue
        support, ceiling = 0, NEVER
        for s in range(start[i], end[i]):
            support = max(support, top[s])
            ceiling = min(ceiling, floor[s])
            if ceiling - support < sizes[i]:
                break
        if ceiling - support >= sizes[i]:
            return True
    return False


@compiled
def room_in_trail(state: State, sections: int) -> bool:
    """Whether the undo log can take another step."""
    return bool(state.registers[TRAIL] + 4 * sections + 8 < len(state.trail))
