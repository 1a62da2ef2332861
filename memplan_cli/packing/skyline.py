"""Skyline allocation: always fill the lowest valley.

A *valley* is an interval of sections in which the tops of the placed buffers are level, between
higher walls. On its floor goes the unplaced buffer between the walls that starts first, and of
several the longest or the largest. If none fits, the floor is raised to the lower wall. Nothing is
moved again.

    offset
      ^       +----+
      |  +----+    |       +---     1. The lowest level of the skyline is the floor of a valley.
      |  |    |    |---+   |        2. ``b`` starts first of the buffers that fit between the
      |  |    |    | b |   |           walls, and is placed.
      +--+----+----+---+---+--->    3. Without such a buffer, the floor is raised to the lower
                        section        wall, here the right one.

A second pair of sweeps runs in a mirror, from the last section to the first.

The lowest valley comes from a heap. A segment tree over the buffers by start, with the earliest
end below each node, finds a buffer in O(log n). Networks, even of a hundred thousand ops, mostly
need nothing else. The method is the best-fit skyline heuristic of strip packing (Burke, Kendall
and Whitwell, 2004), with the horizontal positions fixed.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.packing.pieces import height_of, layout_of, reduce_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.problem import Layout, Problem
    from memplan_cli.packing.pieces import Piece, Placement

_INFINITE = 1 << 200
"""Later than any section, higher than any arena."""


class _UnplacedBuffers:
    """Unplaced buffers sorted by start, as a segment tree of their ends.

    Attributes:
        order: The buffers as sorted; leaf ``i`` of the tree stands for ``order[i]``.
        least_end: The tree: the least end of the unplaced buffers below each node. The root is node 1,
            the children of node n are 2n and 2n + 1. A leaf of no unplaced buffer has _INFINITE.
        leaves: Number of leaves, a power of two, which is also the index of the first leaf.
        first: For each section, the index in ``order`` of the first buffer that starts there or later.
    """

    def __init__(self, start: Sequence[int], end: Sequence[int], order: Sequence[int]) -> None:
        """Build the tree of one or more buffers. ``order`` has their indices, sorted by ``start``.

        ``start`` and ``end`` are the first section of each buffer, and the section after its last.
        """
        self.order = order
        # More leaves than buffers: a search that begins after the last buffer begins at a free leaf.
        self.leaves = 1 << len(order).bit_length()
        ends = [end[i] for i in order]
        free_leaves = self.leaves - len(ends)
        # First the inner nodes, which are filled from the bottom to the root, then the leaves.
        least_end = [_INFINITE] * self.leaves + ends + [_INFINITE] * free_leaves
        for node in range(self.leaves - 1, 0, -1):
            least_end[node] = min(least_end[2 * node], least_end[2 * node + 1])
        self.least_end = least_end
        # For each section, the position in ``order`` of the first buffer that starts there or later.
        starts = [start[i] for i in order]
        self.first = [bisect_left(starts, section) for section in range(max(ends))]

    def take(self, begin: int, stop: int) -> int:
        """Remove and return the first buffer that starts at ``begin`` or later and ends by ``stop``.

        "First" is by start, as the leaves are sorted. Returns -1 if there is none.
        """
        # The leaf of the first buffer with such a start; a free leaf, at infinity, if no buffer starts so late.
        least_end, node = self.least_end, self.first[begin] + self.leaves
        # Right, to the first subtree that has an end by ``stop``.
        while least_end[node] > stop:
            # To the next subtree on the right: up from right children, which are odd, then to the sibling.
            while node % 2:
                node //= 2
            if not node:  # above the root, node 1: nothing is on the right
                return -1
            node += 1
        # Down, to the first leaf in it with such an end: to the left child if it has one, else to the right.
        while node < self.leaves:
            node *= 2
            if least_end[node] > stop:
                node += 1
        leaf = node - self.leaves
        # Remove the leaf, and update the nodes above it.
        least_end[node] = _INFINITE
        while node > 1:
            node //= 2
            new_end = min(least_end[2 * node], least_end[2 * node + 1])
            if least_end[node] == new_end:  # then the nodes above are unchanged too
                break
            least_end[node] = new_end
        return self.order[leaf]


@dataclass(slots=True)
class _Skyline:
    """The skyline, that is the top of the placed buffers in each section, as a row of level segments.

    A segment is known by its first section.

    Attributes:
        sections: Number of sections of the piece.
        level: Level in units of each segment.
        stop_of: Section after the last of each segment. The next segment begins there.
        left_of: The segment on the left of each segment; -1 for the first one.
        queue: Heap of (level, first section, stop); entries of merged segments stay in it.
    """

    sections: int
    level: dict[int, int] = field(default_factory=dict)
    stop_of: dict[int, int] = field(default_factory=dict)
    left_of: dict[int, int] = field(default_factory=dict)
    queue: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, begin: int, stop: int, level: int, left: int) -> None:
        """Add the segment [begin, stop), in which there is none now, and link it with both neighbors.

        ``left`` is the segment on its left, -1 if there is none.
        """
        self.level[begin], self.stop_of[begin], self.left_of[begin] = level, stop, left
        if stop < self.sections:
            self.left_of[stop] = begin
        heappush(self.queue, (level, begin, stop))

    def pop_lowest(self) -> tuple[int, int, int]:
        """Remove the lowest segment; return its level, first section and stop."""
        while True:
            level, begin, stop = heappop(self.queue)
            # Else the entry is of a segment that was joined with others since.
            if self.level.get(begin) == level and self.stop_of[begin] == stop:
                del self.level[begin]
                return level, begin, stop

    def lower_wall(self, begin: int, stop: int) -> int:
        """Return the lower of the levels on both sides of [begin, stop)."""
        left_wall = self.level[self.left_of[begin]] if begin else _INFINITE
        right_wall = self.level[stop] if stop < self.sections else _INFINITE
        return min(left_wall, right_wall)

    def add_merged(self, begin: int, stop: int, level: int, left: int) -> None:
        """Add the segment [begin, stop), joined with a neighbor on either side that has the same level.

        A segment is an interval of sections in which the skyline is level, and is known by its first section.
        ``left`` is the segment on the left, -1 if there is none. The segment on the right begins at ``stop``.
        """
        # A segment exists only if ``level`` has it: its entries in the other tables may stay.
        if left >= 0 and self.level[left] == level:
            del self.level[left]
            begin, left = left, self.left_of[left]
        if stop < self.sections and self.level[stop] == level:
            del self.level[stop]
            stop = self.stop_of[stop]
        self.add(begin, stop, level, left)

    def raise_part(
        self, valley: tuple[int, int, int], start: int, end: int, level: int
    ) -> None:
        """Add a valley again that `pop_lowest` has removed, raised to ``level`` in [start, end).

        The sections before ``start`` and from ``end`` on, if any, become segments at the level of the valley::

            valley    begin                        stop     at the level ``floor``
            becomes   begin     start     end      stop     three segments, the middle one raised
        """
        floor, begin, stop = valley
        left_of_raised = self.left_of[begin]  # the segment on the left of the valley
        if begin < start:
            self.add(begin, start, floor, left_of_raised)
            left_of_raised = begin
        if end < stop:
            self.add(end, stop, floor, left=start)
        # Last, because `add_merged` compares the raised segment with both neighbors.
        self.add_merged(start, end, level, left_of_raised)


def fill_valleys(piece: Piece, order: Sequence[int]) -> Placement:
    """Place all buffers of a piece by filling valleys, and return their offsets.

    A valley is an interval of sections in which the skyline is level, between higher walls. On the floor of
    the lowest valley goes the first buffer in ``order`` that fits between its walls. If none fits, the floor
    is raised to the lower wall. ``order`` sorts the buffers by start.
    """
    sections = len(piece.loads)
    unplaced, skyline = _UnplacedBuffers(piece.start, piece.end, order), _Skyline(sections)
    skyline.add(0, sections, level=0, left=-1)  # one segment, with no segment on its left
    offsets = [0] * len(order)
    remaining = len(order)
    while remaining:
        valley = floor, begin, stop = skyline.pop_lowest()
        buffer = unplaced.take(begin, stop)
        if buffer < 0:  # none fits
            skyline.raise_part(valley, begin, stop, skyline.lower_wall(begin, stop))
            continue
        remaining -= 1
        offsets[buffer] = floor
        top = floor + piece.size[buffer]
        skyline.raise_part(valley, piece.start[buffer], piece.end[buffer], top)
    return tuple(offsets)


def longest_first(piece: Piece) -> Placement:
    """Fill valleys; of the buffers that start together, the longest goes first."""

    def key(buffer: int) -> tuple[int, int, int, int]:
        return piece.start[buffer], -piece.end[buffer], -piece.size[buffer], buffer

    return fill_valleys(piece, sorted(range(len(piece.size)), key=key))


def largest_first(piece: Piece) -> Placement:
    """Fill valleys; of the buffers that start together, the largest goes first."""

    def key(buffer: int) -> tuple[int, int, int, int]:
        return piece.start[buffer], -piece.size[buffer], -piece.end[buffer], buffer

    return fill_valleys(piece, sorted(range(len(piece.size)), key=key))


def mirrored(piece: Piece) -> Piece:
    """Return a piece with time running backwards. Its placements are placements of the piece."""
    sections = len(piece.loads)
    start = tuple(sections - end for end in piece.end)
    end = tuple(sections - start for start in piece.start)
    return replace(piece, start=start, end=end, loads=piece.loads[::-1])


SWEEPS: Mapping[str, Callable[[Piece], Placement]] = {
    "longest": longest_first,
    "largest": largest_first,
    "mirrored longest": lambda piece: longest_first(mirrored(piece)),
    "mirrored largest": lambda piece: largest_first(mirrored(piece)),
}
"""The sweeps, in the order in which they are tried."""


def best_sweep(piece: Piece, goal: int) -> Placement:
    """Return the lowest placement of the sweeps, or the first within ``goal`` units."""
    best: Placement = ()
    for sweep in SWEEPS.values():
        placement = sweep(piece)
        if not best or height_of(piece, placement) < height_of(piece, best):
            best = placement
        if height_of(piece, best) <= goal:
            break
    return best


def skyline(problem: Problem) -> Layout:
    """Return the layout of the best of four skyline sweeps of each piece."""
    reduction = reduce_problem(problem)
    return layout_of(reduction, [best_sweep(p, reduction.load) for p in reduction.pieces])
