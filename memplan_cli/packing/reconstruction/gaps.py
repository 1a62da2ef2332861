"""Holes that fill up a nearly full arena, guessed from its loads.

Where less ends than starts, a hole of the difference closes; where more ends, one opens.
Which opening belongs to which closing is a guess: of the same size, the latest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from memplan_cli.packing.pieces import Piece
    from memplan_cli.packing.reconstruction.composite_blocks import Hole

_PAIRS = 500
"""Holes tried as the smaller of a pair, so that time does not grow as their square."""


@dataclass(slots=True)
class _Open:
    """Holes that are open: sections in which they opened, by size."""

    by_size: dict[int, list[int]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def add(self, size: int, since: int) -> None:
        if size in self.by_size:
            self.by_size[size].append(since)
        else:
            self.by_size[size] = [since]
            insort(self.sizes, size)

    def take(self, size: int) -> int:
        """Remove the latest hole of this size, and return where it opened."""
        since = self.by_size[size].pop()
        if not self.by_size[size]:
            del self.by_size[size]
            self.sizes.pop(bisect_left(self.sizes, size))
        return since

    def pair(self, total: int) -> tuple[int, int] | None:
        """Return the sizes of two holes that are ``total`` together, if there are."""
        for small in islice(self.sizes, _PAIRS):
            large = total - small
            if small > large:
                return None
            if large in self.by_size and (small != large or len(self.by_size[small]) > 1):
                return small, large
        return None


def holes(piece: Piece) -> list[Hole]:
    """Return holes that make the load of a piece the same in all sections."""
    loads, top = piece.loads, piece.load
    found: list[Hole] = []
    unsaid = top - loads[0]  # open from the start, in sizes that nobody knows yet
    opened = _Open()
    for at in range(1, len(loads)):
        closing = loads[at] - loads[at - 1]
        if closing < 0:
            opened.add(-closing, at)
        elif closing > 0:
            for size in _closed(opened, closing):
                found.append((opened.take(size), at, size))
                closing -= size
            if 0 < closing <= unsaid:
                found.append((0, at, closing))
                unsaid -= closing
                closing = 0
            unsaid -= _split(opened, closing, at, found)
    last = len(loads)
    found += [(since, last, size) for size in opened.sizes for since in opened.by_size[size]]
    if unsaid:
        found.append((0, last, unsaid))
    return found


def _closed(opened: _Open, total: int) -> tuple[int, ...]:
    """Return the sizes of open holes that close as they are."""
    if total in opened.by_size:
        return (total,)
    return opened.pair(total) or ()


def _split(opened: _Open, total: int, at: int, found: list[Hole]) -> int:
    """Close parts of open holes; return what only those open from the start can give."""
    while total and opened.sizes:
        index = min(bisect_left(opened.sizes, total), len(opened.sizes) - 1)
        size = opened.sizes[index]
        since = opened.take(size)
        closed = min(size, total)
        found.append((since, at, closed))
        if size > closed:
            opened.add(size - closed, since)
        total -= closed
    if total:
        found.append((0, at, total))
    return total


def matched_anew(given: Iterable[Hole], chance: Random) -> list[Hole]:
    """Return other holes that open and close as much in the same places."""
    events: list[tuple[int, int, int]] = []
    for start, end, size in given:
        events += [(start, 1, size), (end, 0, size)]
    if chance.random() < 0.5:
        sums: dict[tuple[int, int], int] = {}
        for at, kind, size in events:
            sums[at, kind] = sums.get((at, kind), 0) + size
        events = [(at, kind, size) for (at, kind), size in sums.items()]
    opened: list[tuple[int, int]] = []
    found: list[Hole] = []
    for at, opens, size in sorted(events):
        if opens:
            opened.append((at, size))
            continue
        left = size
        while left:
            same = [entry for entry in opened if entry[1] == left]
            since, room = chance.choice(same if same and chance.random() < 0.8 else opened)
            opened.remove((since, room))
            closed = min(left, room)
            found.append((since, at, closed))
            if room > closed:
                opened.append((since, room - closed))
            left -= closed
    return found
