"""Skyline allocation: the lowest valley is filled first.

It is filled with the buffer between its walls that starts first, the longest (or largest) of
those that start together. When none fits, the floor of the valley is lifted to the lower wall.
Nothing is ever moved again.

          +----+                   the lowest valley: between its walls, the buffer that is
    +-----+    |                   starts first goes to its floor
    |     +----+    +-----
    |          |____|              Seen in a mirror, time runs backwards: another layout.

Valleys wait in a heap; a tree over the buffers by start, with the earliest end below each
node, finds the buffer in log n steps. Networks, even of a hundred thousand
ops, mostly need nothing else. The skyline heuristic is that of strip packing (Burke et al.
2004, "best fit"); here time is given and only the height is free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.packing.pieces import height_of, layout_of, reduce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.problem import Layout, Problem
    from memplan_cli.packing.pieces import Piece, Placement

_NEVER = 1 << 200
"""Later than any section, higher than any arena."""


class _BuffersByStart:
    """Unplaced buffers by start: finds the first to start that ends by some section."""

    def __init__(self, start: Sequence[int], end: Sequence[int], order: Sequence[int]) -> None:
        self.order = order
        self.leaves = 1 << len(order).bit_length()
        ends = [end[i] for i in order]
        tree = [_NEVER] * self.leaves + ends + [_NEVER] * (self.leaves - len(ends))
        for node in range(self.leaves - 1, 0, -1):
            tree[node] = min(tree[2 * node], tree[2 * node + 1])
        self.tree = tree
        self.first = [0] * (max(ends) + 1)
        for i in order:
            self.first[start[i] + 1] += 1
        for section in range(1, len(self.first)):
            self.first[section] += self.first[section - 1]

    def take(self, begin: int, stop: int) -> int:
        """Remove and return the first buffer from ``begin`` on that ends by ``stop``.

        Returns -1 when there is none.
        """
        tree, node = self.tree, self.first[begin] + self.leaves
        while tree[node] > stop:
            # Up while we come from the right, then to the next subtree.
            while node % 2:
                node //= 2
            if not node:
                return -1
            node += 1
        while node < self.leaves:
            node *= 2
            if tree[node] > stop:
                node += 1
        leaf = node - self.leaves
        tree[node] = _NEVER
        while node > 1:
            node //= 2
            least = min(tree[2 * node], tree[2 * node + 1])
            if tree[node] == least:  # all above it stay as well
                break
            tree[node] = least
        return self.order[leaf]


@dataclass(slots=True)
class _Skyline:
    """Segments of level floor, as a linked list keyed by their first section."""

    sections: int
    level: dict[int, int] = field(default_factory=dict)
    stop: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    queue: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, begin: int, stop: int, level: int, before: int) -> None:
        """Put a segment in after the one that begins at ``before`` (-1: at the edge)."""
        self.level[begin], self.stop[begin], self.before[begin] = level, stop, before
        if stop < self.sections:
            self.before[stop] = begin
        heappush(self.queue, (level, begin, stop))

    def lowest(self) -> tuple[int, int, int]:
        """Take out the lowest segment: its level, first section and end."""
        while True:
            level, begin, stop = heappop(self.queue)
            if self.level.get(begin) == level and self.stop[begin] == stop:
                del self.level[begin]
                return level, begin, stop

    def wall(self, begin: int, stop: int) -> int:
        """Return the lower of the floors on both sides."""
        left = self.level[self.before[begin]] if begin else _NEVER
        right = self.level[stop] if stop < self.sections else _NEVER
        return min(left, right)

    def merge(self, begin: int, stop: int, level: int, before: int) -> None:
        """Put a segment in, as one with neighbours that are level with it."""
        if begin and self.level[before] == level:
            del self.level[before]
            begin, before = before, self.before[before]
        if stop < self.sections and self.level[stop] == level:
            del self.level[stop]
            stop = self.stop[stop]
        self.add(begin, stop, level, before)


def fill_valleys(
    start: Sequence[int], end: Sequence[int], size: Sequence[int], order: Sequence[int]
) -> Placement:
    """Place all buffers; ``order`` sorts them by start and says who goes first of equals."""
    sections = max(end)
    unplaced, skyline = _BuffersByStart(start, end, order), _Skyline(sections)
    skyline.add(0, sections, 0, -1)
    offsets = [0] * len(order)
    left = len(order)
    while left:
        floor, begin, stop = skyline.lowest()
        before = skyline.before[begin]
        chosen = unplaced.take(begin, stop)
        if chosen < 0:
            skyline.merge(begin, stop, skyline.wall(begin, stop), before)
            continue
        left -= 1
        offsets[chosen] = floor
        low, high = start[chosen], end[chosen]
        if begin < low:
            skyline.add(begin, low, floor, before)
            before = begin
        if high < stop:
            skyline.add(high, stop, floor, low)
        skyline.merge(low, high, floor + size[chosen], before)
    return tuple(offsets)


def longest_first(piece: Piece) -> Placement:
    """Fill valleys with the longest of those that start together."""
    return fill_valleys(piece.start, piece.end, piece.size, _order(piece, _by_length))


def largest_first(piece: Piece) -> Placement:
    """Fill valleys with the largest of those that start together."""
    return fill_valleys(piece.start, piece.end, piece.size, _order(piece, _by_size))


def mirrored_longest_first(piece: Piece) -> Placement:
    """Fill valleys, time running backwards, with the longest of those that end together."""
    mirror = _mirror(piece)
    return fill_valleys(mirror.start, mirror.end, mirror.size, _order(mirror, _by_length))


def mirrored_largest_first(piece: Piece) -> Placement:
    """Fill valleys, time running backwards, with the largest of those that end together."""
    mirror = _mirror(piece)
    return fill_valleys(mirror.start, mirror.end, mirror.size, _order(mirror, _by_size))


def _mirror(piece: Piece) -> Piece:
    sections = len(piece.loads)
    start = tuple(sections - end for end in piece.end)
    end = tuple(sections - start for start in piece.start)
    return replace(piece, start=start, end=end, loads=piece.loads[::-1])


def _by_length(piece: Piece, index: int) -> tuple[int, int, int, int]:
    return piece.start[index], -piece.end[index], -piece.size[index], index


def _by_size(piece: Piece, index: int) -> tuple[int, int, int, int]:
    return piece.start[index], -piece.size[index], -piece.end[index], index


def _order(piece: Piece, key: Callable[[Piece, int], tuple[int, int, int, int]]) -> list[int]:
    return sorted(range(len(piece.size)), key=lambda index: key(piece, index))


SWEEPS: Mapping[str, Callable[[Piece], Placement]] = {
    "longest": longest_first,
    "largest": largest_first,
    "mirrored longest": mirrored_longest_first,
    "mirrored largest": mirrored_largest_first,
}


def best_sweep(piece: Piece, goal: int) -> Placement:
    """Return the lowest result of the sweeps, or the first that reaches ``goal`` units."""
    best: Placement = ()
    for sweep in SWEEPS.values():
        found = sweep(piece)
        if not best or height_of(piece, found) < height_of(piece, best):
            best = found
        if height_of(piece, best) <= goal:
            break
    return best


def skyline(problem: Problem) -> Layout:
    """Place a whole problem by the best of four skyline sweeps."""
    reduction = reduce(problem)
    return layout_of(reduction, [best_sweep(p, reduction.load) for p in reduction.pieces])
