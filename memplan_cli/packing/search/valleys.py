"""Valleys of a skyline: where to branch, and bounds that prune.

A *valley* is an interval of sections with level floor that has a higher floor, or the edge of
the piece, on both sides. (Sections whose buffers are all placed have an infinite floor.) Take any section of a valley, and a layout in which no
buffer can be moved down. There, either a buffer that covers the section and fits between the
walls is on the floor, or a hole is left. This holds for every section of every valley, so the
search may branch at the section with the fewest options.

    offset
      ^      wall               cap     the lower of the two walls
      |    +------+       +---  inside  unplaced buffers that fit between the walls
      |    |      |  cap  |     slack   capacity - floor - unplaced units: what a section may waste
      |    |      +-------+
      |    |        floor |     An unplaced buffer that covers a section but is not inside reaches
      +----+--------------+->   over a wall, so it goes to ``cap`` or higher.
               section

`find_valleys` and `count_inside` fill scratch rows of `SearchState` for `tightest_section`, which
leaves the levels of holes for `depth_first`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.search.state import (
    BEGIN,
    CAP,
    CHANGE,
    HOLE,
    INFINITE,
    INSIDE_COUNT,
    INSIDE_UNITS,
    SMALLEST_LEFT,
    SMALLEST_RIGHT,
    STACK_BEGIN,
    STACK_LEVEL,
    STOP,
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
def find_valleys(state: SearchState, left: int, right: int) -> None:
    """Find the valleys among the sections [left, right). Outside of these, the floor counts as infinite.

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
    """Count the inside buffers of all valleys of [left, right), section by section.

    A buffer is inside if it is unplaced and lies between the walls of a valley. `find_valleys` has
    written for each section CAP, which is negative outside of valleys, and STOP, the end of its valley.
    Fills four scratch rows for each section:

    - INSIDE_UNITS: the units of the inside buffers that cover it,
    - INSIDE_COUNT: their number, equal ones counted once,
    - SMALLEST_LEFT and SMALLEST_RIGHT: the size of the smallest inside buffer of its valley that ends
      before it, and of the smallest that starts after it; INFINITE if there is none.
    """
    scratch, is_placed = state.scratch, state.is_placed
    start, end, sizes, twin = piece.start, piece.end, piece.size, piece.twin
    scratch[INSIDE_UNITS, left : right + 1] = 0
    scratch[INSIDE_COUNT, left : right + 1] = 0
    scratch[SMALLEST_LEFT, left : right + 1] = INFINITE
    scratch[SMALLEST_RIGHT, left : right + 1] = INFINITE
    # First the rows have entries where a buffer begins and stops, changes in the case of INSIDE_UNITS
    # and INSIDE_COUNT. `_accumulate_inside` turns them into the values of each section.
    for buffer in range(piece.first[left], piece.first[right]):
        begin, stop, size = start[buffer], end[buffer], sizes[buffer]
        is_between_walls = scratch[CAP, begin] >= 0 and stop <= scratch[STOP, begin]
        if is_placed[buffer] or not is_between_walls:
            continue
        scratch[INSIDE_UNITS, begin] += size
        scratch[INSIDE_UNITS, stop] -= size
        # Of equal buffers the first unplaced one counts as an option, because the others give the same
        # layouts. All have to be placed, so all count as units.
        if twin[buffer] < 0 or is_placed[twin[buffer]]:
            scratch[INSIDE_COUNT, begin] += 1
            scratch[INSIDE_COUNT, stop] -= 1
        scratch[SMALLEST_LEFT, stop] = min(scratch[SMALLEST_LEFT, stop], size)
        scratch[SMALLEST_RIGHT, begin] = min(scratch[SMALLEST_RIGHT, begin], size)
    _accumulate_inside(state, left, right)


@compiled
def _accumulate_inside(state: SearchState, left: int, right: int) -> None:
    """Turn the entries of `count_inside`, where buffers begin and stop, into values of each section.

    Before, an entry is about the buffers that begin or stop at its section alone. INSIDE_UNITS and INSIDE_COUNT
    are summed up from left to right. A buffer that stops at a section or earlier, in the same valley, ends
    before that section: SMALLEST_LEFT becomes the smallest of these entries. SMALLEST_RIGHT becomes the
    smallest of the entries after the section, whose buffers begin after it.
    """
    scratch = state.scratch
    units, count, smallest = 0, 0, INFINITE
    for section in range(left, right):
        units += scratch[INSIDE_UNITS, section]
        count += scratch[INSIDE_COUNT, section]
        scratch[INSIDE_UNITS, section], scratch[INSIDE_COUNT, section] = units, count
        is_first_of_valley = scratch[BEGIN, section] == section
        if is_first_of_valley:
            smallest = INFINITE
        else:
            smallest = min(smallest, scratch[SMALLEST_LEFT, section])
        scratch[SMALLEST_LEFT, section] = smallest
    for section in range(right - 1, left - 1, -1):
        is_last_of_valley = scratch[STOP, section] == section + 1
        if is_last_of_valley:
            smallest = INFINITE
        beginning_here = scratch[SMALLEST_RIGHT, section]
        scratch[SMALLEST_RIGHT, section] = smallest
        smallest = min(smallest, beginning_here)


@compiled
def tightest_section(
    state: SearchState, left: int, right: int, capacity: int, weigh_failures: int
) -> int:
    """Return the section of the valleys of [left, right) with the lowest score, DEAD_END or RAISED.

    The score of a section is its number of options: to place one of the unplaced buffers that cover it and fit
    between the walls of its valley, or to leave a hole. If ``weigh_failures`` is 1, it is divided by the
    failures of the section: those that often failed come first (dom/wdeg, Boussemart et al., ECAI 2004).

    DEAD_END: in some section the buffers must exceed the capacity. Its failure is counted.
    RAISED: in some sections no buffer fits between the walls. Their floor was raised to the cap, the lower
    wall of the valley, so that the valleys have to be found again.

    `find_valleys` and `count_inside` have filled their scratch rows. Fills the row HOLE: the level up to which a
    hole in the section reaches, or -1 if the buffers above the hole would exceed the capacity.
    """
    scratch, floor, unplaced = state.scratch, state.floor, state.unplaced
    # A section is always found: the sections with the lowest floor of all are a valley.
    tightest, least_score = DEAD_END, INFINITE
    is_raised = False
    for section in range(left, right):
        cap = scratch[CAP, section]
        is_in_valley = cap >= 0
        if not is_in_valley:
            continue
        inside = scratch[INSIDE_UNITS, section]
        # Units of buffers that go to the cap or higher.
        over_walls = unplaced[section] - inside
        if over_walls > 0 and cap + over_walls > capacity:
            state.failures[section] += 1
            return DEAD_END
        if inside == 0:
            raise_floor(state, section, cap)
            is_raised = True
            continue
        # A hole reaches up to the lowest buffer above it, which cannot be moved down: it rests on the cap,
        # or on an inside buffer beside the section. The smallest of these makes the smallest hole.
        beside = min(scratch[SMALLEST_LEFT, section], scratch[SMALLEST_RIGHT, section])
        hole = min(cap, floor[section] + beside)
        is_hole_allowed = hole + unplaced[section] <= capacity
        scratch[HOLE, section] = hole if is_hole_allowed else -1
        # At least one, because a buffer is inside.
        options = scratch[INSIDE_COUNT, section] + (1 if is_hole_allowed else 0)
        score = options
        if weigh_failures and options > 1:
            # Failures are counted from 1 on. A section with one option still comes first.
            score = 1 + (options << FAILURE_BITS) // state.failures[section]
        if score < least_score:
            least_score, tightest = score, section
    return RAISED if is_raised else tightest


@compiled
def has_full_basin(
    piece: PieceArrays, state: SearchState, left: int, right: int, capacity: int
) -> bool:
    """Return whether, in a section of a basin of [left, right), the buffers must exceed the capacity.

    A basin is an interval of sections between two walls, with any lower floors between them:

        |               |   <- cap: the lower wall
        |       +-+     |
        |   +---+ +-+   |
        +---+       +---+

    Basins are found with a stack of falling levels, as the rectangles in a histogram are. Each entry stands
    for the sections from its begin to the present one, whose floors are at most its level. Counts the failure
    of the section. Fills the scratch rows STACK_BEGIN and STACK_LEVEL, and as `_must_exceed_capacity`.
    """
    stack_begin, stack_level = state.scratch[STACK_BEGIN], state.scratch[STACK_LEVEL]
    floor, depth = state.floor, 0  # ``depth`` is the number of entries on the stack
    for section in range(left, right + 1):
        level = floor[section] if section < right else INFINITE
        begin = section
        # The floor here is the right wall of the basins of lower entries, which end before this section. The
        # left wall is the entry below.
        while depth > 0 and stack_level[depth - 1] < level:
            depth -= 1
            begin = stack_begin[depth]
            left_wall = stack_level[depth - 1] if depth > 0 else INFINITE
            cap = min(left_wall, level)
            # With one level, it is a valley, of which `tightest_section` has made the test.
            has_one_level = state.scratch[STOP, begin] >= section
            if has_one_level or cap == INFINITE:
                continue
            if _must_exceed_capacity(piece, state, begin, section, cap, capacity):
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

    All floors of the basin are below ``cap``, the lower of the two walls beside it. An unplaced buffer that
    reaches over a wall goes to ``cap`` or higher; the other ones, inside the basin, count nothing.

    Counts the failure of the section in ``state.failures``, spends work, and fills the scratch row CHANGE.
    """
    start, end, sizes = piece.start, piece.end, piece.size
    change, is_placed, unplaced = state.scratch[CHANGE], state.is_placed, state.unplaced
    change[begin : stop + 1] = 0
    # The buffers that start in the basin: others reach over the left wall.
    first_buffer, stop_buffer = piece.first[begin], piece.first[stop]
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
