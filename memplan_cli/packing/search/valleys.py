"""Valleys of a skyline: where to branch, and bounds that prune.

A *stretch* is an interval of sections with equal floors, as long as possible. It is a *valley* if the
floor is higher, or the piece ends, on both sides. (Sections whose buffers are all placed have an
infinite floor.) Take any section of a valley, and a layout in which no buffer can be moved down.
There, either a buffer that covers the section and fits between the walls is on the floor, or a hole
is left. This holds for every section of every valley, so the search may branch at the section with
the fewest options.

    offset
      ^      wall               cap     the lower of the two walls
      |    +------+       +---  inside  unplaced buffers that fit between the walls
      |    |      |  cap  |     slack   capacity - floor - unplaced units: what a section may waste
      |    |      +-------+
      |    |        floor |     An unplaced buffer that covers a section but is not inside reaches
      +----+--------------+->   over a wall, so it goes to ``cap`` or higher.
               section

`find_valleys` and `count_inside` fill scratch rows of `SearchState`, one entry for each section. The
other functions read these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.search.state import (
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
    STRETCH_BEGIN,
    STRETCH_STOP,
    WORK,
    raise_floor,
)

if TYPE_CHECKING:
    from memplan_cli.packing.search.state import Ints, PieceArrays, SearchState

FAILURE_BITS = 20
"""Options divided by failures are fractions of so many bits."""


@compiled
def find_valleys(state: SearchState, left: int, right: int) -> None:
    """Find the valleys among the sections [left, right). Outside of these, the floor counts as infinite.

    Fills three scratch rows. For each section, STRETCH_BEGIN and STRETCH_STOP are the first section of its
    stretch of equal floors and the section after the last. CAP is the lower of the two walls beside the
    stretch; -1 if the stretch is no valley, because the floor on one side is lower.
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
        scratch[STRETCH_BEGIN, begin:stop] = begin
        scratch[STRETCH_STOP, begin:stop] = stop
        scratch[CAP, begin:stop] = min(left_wall, right_wall) if is_valley else -1
        begin = stop


@compiled
def count_inside(piece: PieceArrays, state: SearchState, left: int, right: int) -> None:
    """Count the inside buffers at each section of [left, right): fills four scratch rows.

    An *inside* buffer is unplaced and lies between the walls of a valley. The rows for a valley of four
    sections with the inside buffers a, of 5 units, and b, of 3 units, where ``-`` is INFINITE::

        section          0   1   2   3
        buffers          aaaaa   bbbbb
        INSIDE_UNITS     5   5   3   3    units of the inside buffers that cover the section
        INSIDE_COUNT     1   1   1   1    their number, equal ones counted once
        SMALLEST_LEFT    -   -   5   5    size of the smallest one that ends before the section
        SMALLEST_RIGHT   3   3   -   -    size of the smallest one that starts after the section
    """
    starts, stops, sizes, is_placed = piece.start, piece.end, piece.size, state.is_placed
    equal_before = piece.twin  # for each buffer the equal one before it, or -1
    # Rows of `find_valleys`. A *stretch* is an interval of equal floors: a valley, or its cap is -1.
    cap, stretch_stop = state.scratch[CAP], state.scratch[STRETCH_STOP]
    inside_units, inside_count = state.scratch[INSIDE_UNITS], state.scratch[INSIDE_COUNT]
    smallest_left = state.scratch[SMALLEST_LEFT]
    smallest_right = state.scratch[SMALLEST_RIGHT]
    inside_units[left : right + 1] = 0
    inside_count[left : right + 1] = 0
    smallest_left[left:right] = INFINITE
    smallest_right[left:right] = INFINITE
    # First each buffer is entered at its ends only: where it starts, units and count rise, and where it
    # stops they fall. Buffers are sorted by start: these are all that start in [left, right).
    for buffer in range(piece.first[left], piece.first[right]):
        if is_placed[buffer]:
            continue
        start, stop, size = starts[buffer], stops[buffer], sizes[buffer]
        is_valley, valley_stop = cap[start] >= 0, stretch_stop[start]
        if not is_valley or stop > valley_stop:
            continue
        inside_units[start] += size
        inside_units[stop] -= size
        # Equal buffers are placed in their order, since other orders give the same layouts: only the first
        # unplaced one is an option.
        if equal_before[buffer] < 0 or is_placed[equal_before[buffer]]:
            inside_count[start] += 1
            inside_count[stop] -= 1
        if stop < valley_stop:  # a section of the valley is behind the buffer
            smallest_left[stop] = min(smallest_left[stop], size)
        # Entered at the section where the buffer starts; `_spread_smallest` moves it to the sections before.
        smallest_right[start] = min(smallest_right[start], size)
    # Then sums and minima turn these entries into the values of each section. Units and count fall to 0 at the
    # end of each valley, so one sum runs over all sections.
    units, count = 0, 0
    for section in range(left, right):
        units += inside_units[section]
        count += inside_count[section]
        inside_units[section] = units
        inside_count[section] = count
    begin = left
    while begin < right:  # the minima begin anew in each stretch
        stop = stretch_stop[begin]
        _spread_smallest(smallest_left, smallest_right, begin, stop)
        begin = stop


@compiled
def _spread_smallest(ending: Ints, starting: Ints, begin: int, stop: int) -> None:
    """Turn the smallest buffers at each section into those before and after it, in a stretch [begin, stop).

    Changes both rows. Given are the sizes of the smallest buffer that ends at a section (its last section is
    the one before), and of the smallest that starts there; INFINITE if there is none::

        section      0   1   2   3             section      0   1   2   3
        ending       -   -   5   -   becomes   ending       -   -   5   5
        starting     7   -   3   -             starting     3   3   -   -
    """
    smallest_before = INFINITE  # no buffer of the stretch ends at ``begin`` or earlier
    for section in range(begin + 1, stop):
        smallest_before = min(smallest_before, ending[section])
        ending[section] = smallest_before
    smallest_after = INFINITE
    for section in range(stop - 1, begin - 1, -1):
        starting_here = starting[section]
        starting[section] = smallest_after
        smallest_after = min(smallest_after, starting_here)


@compiled
def has_full_valley(state: SearchState, left: int, right: int, capacity: int) -> bool:
    """Return whether, in a section of a valley of [left, right), the buffers must exceed the capacity.

    A valley is a level part of the skyline of placed buffers, between two higher walls. An unplaced buffer that
    reaches over a wall must lie on the lower wall or higher: if this wall is 5 units high, and such buffers of 4
    and 3 units cover a section, 12 units are needed. The section gets a failure in ``state.failures``.
    """
    lower_wall = state.scratch[CAP]  # -1 if the section is in no valley
    unplaced = state.unplaced  # units of the unplaced buffers over each section
    inside_units = state.scratch[INSIDE_UNITS]  # units of those between the walls
    for section in range(left, right):
        units_over_wall = unplaced[section] - inside_units[section]
        is_valley = lower_wall[section] >= 0
        least_height = lower_wall[section] + units_over_wall
        if is_valley and units_over_wall > 0 and least_height > capacity:
            state.failures[section] += 1
            return True
    return False


@compiled
def raise_unusable(state: SearchState, left: int, right: int) -> bool:
    """Raise the floor of the valley sections that no inside buffer covers; return whether there are any.

    An inside buffer is unplaced and lies between the walls of a valley. All other unplaced buffers reach over a
    wall, so they rest on the cap, the lower wall, or higher: the floor is raised to the cap. After that, the
    rows of `find_valleys` and `count_inside` have to be filled again.
    """
    cap, inside_units = state.scratch[CAP], state.scratch[INSIDE_UNITS]
    is_raised = False
    for section in range(left, right):
        is_valley = cap[section] >= 0
        if is_valley and inside_units[section] == 0:
            raise_floor(state, section, cap[section])
            is_raised = True
    return is_raised


@compiled
def tightest_section(
    state: SearchState, left: int, right: int, capacity: int, weigh_failures: int
) -> int:
    """Return the section with the fewest options, of those in the valleys of [left, right).

    An option is a buffer to place on the floor of the section, between the walls of the valley, or a hole to
    leave there. If ``weigh_failures`` is 1, the number of options is divided by the failures of the section
    (dom/wdeg, Boussemart et al., ECAI 2004).

    Fills the row HOLE: the level up to which a hole reaches, or -1 if the buffers above it would not fit.
    """
    lower_wall = state.scratch[CAP]  # -1 if the section is in no valley
    inside_count = state.scratch[INSIDE_COUNT]  # the options that are buffers, at least one
    hole, unplaced = state.scratch[HOLE], state.unplaced
    # A section is always found: the sections with the lowest floor of all are a valley.
    tightest, least_score = left, INFINITE
    for section in range(left, right):
        is_valley = lower_wall[section] >= 0
        if not is_valley:
            continue
        level = _lowest_hole(state, section)
        is_hole_allowed = level + unplaced[section] <= capacity
        hole[section] = level if is_hole_allowed else -1
        options = inside_count[section] + (1 if is_hole_allowed else 0)
        score = options
        if weigh_failures and options > 1:
            # One option still comes first. The quotient is an integer, so options are scaled.
            scaled_options = options << FAILURE_BITS
            score = 1 + scaled_options // state.failures[section]  # failures count from 1 on
        if score < least_score:
            least_score, tightest = score, section
    return tightest


@compiled
def _lowest_hole(state: SearchState, section: int) -> int:
    """Return the lowest level at which a buffer above a hole in a section of a valley can rest.

    A hole is empty space on the floor. The buffer ``b`` above it reaches over a wall, or rests on a buffer ``a``
    beside the section, between the walls::

        |   bbbbb       |
        | aaa ..        |    a hole (dots) under b
        +---------------+    floor
    """
    level_on_lower_wall = state.scratch[CAP, section]
    # On the floor, the smallest buffer ``a`` has the lowest top.
    smallest_left = state.scratch[SMALLEST_LEFT, section]
    smallest_right = state.scratch[SMALLEST_RIGHT, section]
    level_on_smallest = state.floor[section] + min(smallest_left, smallest_right)
    return int(min(level_on_lower_wall, level_on_smallest))


@compiled
def has_full_basin(
    piece: PieceArrays, state: SearchState, left: int, right: int, capacity: int
) -> bool:
    """Return whether, in some section of a basin of [left, right), the buffers must exceed the capacity.

    A basin is an interval of sections between two walls, with any lower floors. An unplaced buffer that reaches
    over a wall must lie on the lower wall, or above it (`_must_exceed_capacity`)::

        |                <- left_wall
        |           +-   <- level, the floor of ``section``: the right wall, here the lower one
        |   +-+     |
        +---+ +-----+
        begin       section

    Basins are found with a stack of (begin, level), as the rectangles in a histogram are. With the floors 5, 2,
    1, 4, the stack has (0, 5), (1, 2), (2, 1) before the 4, which pops two entries: a basin [2, 3) between the
    walls 2 and 4, and a basin [1, 3) between the walls 5 and 4. Counts the failure in ``state.failures``.
    """
    stack_begin, stack_level = state.scratch[STACK_BEGIN], state.scratch[STACK_LEVEL]
    level_until = state.scratch[STRETCH_STOP]  # where the equal floors of each section end
    floor, depth = state.floor, 0  # ``depth`` is the number of entries on the stack
    for section in range(left, right + 1):
        # Beyond ``left`` and ``right`` all buffers are placed: no unplaced buffer reaches over these borders.
        level = floor[section] if section < right else INFINITE
        begin = section
        # The floor here is the right wall of the basins that begin at lower entries. The left wall of each is
        # the entry below on the stack.
        while depth > 0 and stack_level[depth - 1] < level:
            depth -= 1
            begin = stack_begin[depth]
            left_wall = stack_level[depth - 1] if depth > 0 else INFINITE
            lower_wall = min(left_wall, level)
            if level_until[begin] == section or lower_wall == INFINITE:
                continue  # the floor is level, which `has_full_valley` covers; or no buffer reaches over a wall
            if _must_exceed_capacity(piece, state, begin, section, lower_wall, capacity):
                return True
        # An entry of the same level, which begins earlier, stands for this section too.
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
