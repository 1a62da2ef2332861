"""Valleys of a skyline: where to branch, and bounds that prune.

A *valley* is an interval of sections with level floor that has a higher floor, or the edge of
the part being solved, on both sides. Take any section of a valley, and a layout in which no
buffer can be moved down. There, either a buffer that covers the section and fits between the
walls is on the floor, or a hole is left. This holds for every section of every valley, so the
search may branch at the section with the fewest options.

    offset
      ^      wall               cap     the lower of the two walls
      |    +------+       +---  inside  unplaced buffers that fit between the walls
      |    |      |  cap  |     slack   capacity - floor - unplaced units: what a section may waste
      |    |      +-------+
      |    |        floor |     An unplaced buffer that covers a section but is not inside goes
      +----+--------------+->   to ``cap`` or higher. Where there is one, the units from the
               section          floor to ``cap`` that inside buffers cannot fill are wasted.

`find_valleys` and `count_inside` fill scratch rows of `SearchState` for `tightest_section`, which
leaves the levels of holes for `depth_first`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.search.state import (
    BEGIN,
    CAP,
    CROSSING,
    ENDED,
    HOLE,
    INFINITE,
    OPTIONS,
    SMALLEST_ENDING,
    SMALLEST_RIGHT,
    SMALLEST_STARTING,
    STARTED,
    STOP,
    TRAIL,
    UNITS_IN,
    UNITS_OUT,
    WORK,
    raise_floor,
)

if TYPE_CHECKING:
    from memplan_cli.packing.search.state import PieceArrays, SearchState

# Results of `tightest_section` that are no section.
DEAD_END = -1
RAISED = -2

FAILURE_BITS = 20
"""Options divided by failures are fractions of so many bits."""


@compiled
def split(piece: PieceArrays, state: SearchState, left: int, right: int) -> int:
    """Push the parts of [left, right) that share no unplaced buffer; return their number.

    Each part is pushed on the option stack as its first section and the section after its last,
    the part with the fewest buffers first. Register OPTIONS is not changed.
    """
    first, start, end = piece.first, piece.start, piece.end
    is_placed, unplaced, options = state.is_placed, state.unplaced, state.options
    crossing = state.scratch[CROSSING]
    crossing[left:right] = 0
    first_buffer, stop_buffer = first[left], first[right]
    state.registers[WORK] -= 2 * (stop_buffer - first_buffer) + 4 * (right - left)
    for buffer in range(first_buffer, stop_buffer):
        if not is_placed[buffer]:
            crossing[start[buffer]] += 1
            crossing[end[buffer] - 1] -= 1
    base = state.registers[OPTIONS]
    stop = base
    begin, continuing = -1, 0  # first section of the present part, -1 between parts
    for section in range(left, right):
        continuing += crossing[section]
        if begin < 0 and unplaced[section] > 0:
            begin = section
        if begin >= 0 and continuing == 0:
            # Sorted insertion by number of buffers: a small part fails or succeeds soonest.
            buffers = first[section + 1] - first[begin]
            index = stop
            while index > base and (
                first[options[index - 1]] - first[options[index - 2]] > buffers
            ):
                options[index] = options[index - 2]
                options[index + 1] = options[index - 1]
                index -= 2
            options[index] = begin
            options[index + 1] = section + 1
            stop += 2
            begin = -1
    return int((stop - base) // 2)


@compiled
def find_valleys(state: SearchState, left: int, right: int) -> None:
    """Find the valleys among the sections [left, right), whose ends are walls of any height.

    Fills three scratch rows for each section: BEGIN and STOP, the first section of its interval of equal
    floor and the section after its last; and CAP, the lower of both walls, or -1 if the interval is no
    valley, because the floor on one side is lower.
    """
    scratch, floor = state.scratch, state.floor
    begin = left
    while begin < right:
        level = floor[begin]
        stop = begin + 1
        while stop < right and floor[stop] == level:
            stop += 1
        left_wall = floor[begin - 1] if begin > left else INFINITE
        right_wall = floor[stop] if stop < right else INFINITE
        is_valley = left_wall > level and right_wall > level
        scratch[BEGIN, begin:stop] = begin
        scratch[STOP, begin:stop] = stop
        scratch[CAP, begin:stop] = min(left_wall, right_wall) if is_valley else -1
        begin = stop


@compiled
def count_inside(piece: PieceArrays, state: SearchState, left: int, right: int) -> None:
    """Count the inside buffers of all valleys of [left, right) by their first and last section.

    A buffer is inside if it is unplaced and lies between the walls of a valley. `find_valleys` has
    written for each section CAP, which is negative outside of valleys, and STOP, the end of its valley.
    Fills the scratch rows STARTED, ENDED, UNITS_IN, UNITS_OUT, SMALLEST_STARTING and SMALLEST_ENDING.
    """
    scratch, is_placed = state.scratch, state.is_placed
    start, end, sizes, twin = piece.start, piece.end, piece.size, piece.twin
    for row in (STARTED, ENDED, UNITS_IN, UNITS_OUT):
        scratch[row, left:right] = 0
    for row in (SMALLEST_STARTING, SMALLEST_ENDING):
        scratch[row, left:right] = INFINITE
    for buffer in range(piece.first[left], piece.first[right]):
        begin, last, size = start[buffer], end[buffer] - 1, sizes[buffer]
        is_between_walls = scratch[CAP, begin] >= 0 and last < scratch[STOP, begin]
        if is_placed[buffer] or not is_between_walls:
            continue
        scratch[UNITS_IN, begin] += size
        scratch[UNITS_OUT, last] += size
        # Of equal buffers only the first is an option: the others give the same layouts. But all of
        # them have to be placed, so all count as units.
        if twin[buffer] < 0 or is_placed[twin[buffer]]:
            scratch[STARTED, begin] += 1
            scratch[ENDED, last] += 1
        scratch[SMALLEST_STARTING, begin] = min(scratch[SMALLEST_STARTING, begin], size)
        scratch[SMALLEST_ENDING, last] = min(scratch[SMALLEST_ENDING, last], size)


@compiled
def tightest_section(
    state: SearchState, left: int, right: int, capacity: int, weigh_failures: int
) -> int:
    """Return the section of [left, right) with the fewest options, DEAD_END or RAISED.

    Inside buffers are unplaced and fit between the walls of a valley. The options at a section are to
    place one of them on the floor, or to leave a hole.

    DEAD_END: a section must waste more than its slack. Its failure is counted, as are those of
    sections without any option, which are returned as sections with 0 options.
    RAISED: in some sections no buffer fits between the walls. Their floor was raised to the cap,
    so that the valleys have to be found again.

    If ``weigh_failures`` is 1, numbers of options above 1 are divided by the failures of the
    section: sections that often failed come first (dom/wdeg, Boussemart et al., ECAI 2004).

    `find_valleys` and `count_inside` have filled their scratch rows for [left, right). Fills the rows
    SMALLEST_RIGHT and HOLE for the sections with options.
    """
    scratch, floor, unplaced = state.scratch, state.floor, state.unplaced
    fewest = INFINITE
    tightest = DEAD_END  # to be replaced: the lowest floor of all is that of a valley
    is_raised = False
    begin = left
    while begin < right:
        # The valley [begin, stop) has one floor. ``cap`` is the lower of its walls, negative if the
        # sections are no valley.
        stop, cap, level = scratch[STOP, begin], scratch[CAP, begin], floor[begin]
        if cap < 0:
            begin = stop
            continue
        _fill_smallest_right(state, begin, stop)
        # Units and number of the inside buffers at the section, size of the smallest on its left.
        inside, count, smallest_left = 0, 0, INFINITE
        for section in range(begin, stop):
            inside += scratch[UNITS_IN, section]
            count += scratch[STARTED, section]
            slack = capacity - level - unplaced[section]  # units that may stay empty here
            is_crossed = unplaced[section] > inside  # by a buffer that is not inside
            # That buffer goes to the cap or higher, so below the cap only inside buffers fill units.
            empty_below_cap = cap - level - inside
            if is_crossed and empty_below_cap > slack:
                state.failures[section] += 1
                return DEAD_END
            if inside == 0:
                raise_floor(state, section, cap)
                is_raised = True
            else:
                # What is above a hole rests on the cap or on an inside buffer beside the section.
                beside = level + min(smallest_left, scratch[SMALLEST_RIGHT, section])
                hole = min(cap, beside)
                is_hole_allowed = hole - level <= slack
                scratch[HOLE, section] = hole if is_hole_allowed else -1
                options = count + 1 if is_hole_allowed else count
                if options == 0:
                    state.failures[section] += 1
                if weigh_failures and options > 1:
                    options = 1 + (options << FAILURE_BITS) // state.failures[section]
                if options < fewest:
                    fewest, tightest = options, section
            smallest_left = min(smallest_left, scratch[SMALLEST_ENDING, section])
            inside -= scratch[UNITS_OUT, section]
            count -= scratch[ENDED, section]
        begin = stop
    return RAISED if is_raised else tightest


@compiled
def _fill_smallest_right(state: SearchState, begin: int, stop: int) -> None:
    """Fill the scratch row SMALLEST_RIGHT of the valley [begin, stop)."""
    smallest_right = INFINITE
    for section in range(stop - 1, begin - 1, -1):
        state.scratch[SMALLEST_RIGHT, section] = smallest_right
        smallest_right = min(smallest_right, state.scratch[SMALLEST_STARTING, section])


@compiled
def has_full_basin(
    piece: PieceArrays, state: SearchState, left: int, right: int, capacity: int
) -> bool:
    """Return whether, in a section of a basin of [left, right), the buffers must exceed the capacity.

    A basin is an interval of sections between two walls, with any floors below these:

        |               |   <- cap: the lower wall
        |       +-+     |
        |   +---+ +-+   |
        +---+       +---+

    Such a section has no solution, as in a valley (see the module). Its failure is counted in
    ``state.failures``.

    Basins are found with a stack of falling levels, as the rectangles in a histogram are. Each entry
    stands for the sections from its begin to the present one, whose floors are at most its level. The
    stack is in the scratch rows CROSSING and STARTED, and `_must_exceed_capacity` uses UNITS_IN: the
    counts of `count_inside` are lost.
    """
    stack_begin, stack_level = state.scratch[CROSSING], state.scratch[STARTED]
    floor, depth = state.floor, 0  # ``depth`` is the number of entries on the stack
    for section in range(left, right + 1):
        level = floor[section] if section < right else INFINITE
        begin = section
        # The floor here is a wall of the basins of lower entries, which end before this section.
        while depth > 0 and stack_level[depth - 1] < level:
            depth -= 1
            begin = stack_begin[depth]
            cap = min(level, stack_level[depth - 1] if depth > 0 else INFINITE)
            if cap < INFINITE and _must_exceed_capacity(
                piece, state, begin, section, cap, capacity
            ):
                return True
        # If the top entry has the same level, it stands for these sections too.
        if depth == 0 or stack_level[depth - 1] > level:
            stack_begin[depth] = begin
            stack_level[depth] = level
            depth += 1
    return False


@compiled
def _must_exceed_capacity(
    piece: PieceArrays, state: SearchState, begin: int, stop: int, cap: int, capacity: int
) -> bool:
    """Return whether, in a section of the basin [begin, stop), the buffers must exceed the capacity.

    A basin is an interval of sections whose floors are all below ``cap``, the lower of the two walls
    beside it. An unplaced buffer that reaches over a wall goes to ``cap`` or higher.

    Counts the failure of that section in ``state.failures``, and the work in ``state.registers``. Changes
    the scratch row UNITS_IN: there, units of buffers between the walls are added where they start and
    subtracted where they end.
    """
    is_valley = state.scratch[STOP, begin] >= stop  # the first section's floor reaches so far
    if is_valley:  # `tightest_section` has made the same test
        return False
    first, start, end, sizes = piece.first, piece.start, piece.end, piece.size
    change, is_placed, unplaced = state.scratch[UNITS_IN], state.is_placed, state.unplaced
    change[begin : stop + 1] = 0
    first_buffer, stop_buffer = first[begin], first[stop]
    state.registers[WORK] -= stop_buffer - first_buffer + 2 * (stop - begin)
    for buffer in range(first_buffer, stop_buffer):
        if not is_placed[buffer] and end[buffer] <= stop:
            change[start[buffer]] += sizes[buffer]
            change[end[buffer]] -= sizes[buffer]
    inside = 0
    for section in range(begin, stop):
        inside += change[section]
        over_walls = unplaced[section] - inside  # units of buffers that reach over a wall
        if over_walls > 0 and cap + over_walls > capacity:
            state.failures[section] += 1
            return True
    return False


@compiled
def has_trail_room(state: SearchState, sections: int) -> bool:
    """Return whether the undo log has room for a step over so many sections, with a margin."""
    return bool(state.registers[TRAIL] + 4 * sections + 8 < len(state.trail))
