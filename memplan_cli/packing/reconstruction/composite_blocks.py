"""Composite blocks: rectangles joined from buffers and holes, which come apart again.

Buffers whose rectangles make up a larger rectangle are joined to a *composite block*, blocks
to larger ones. The parts of a block never change, so joining can be undone by taking the block
out and putting its parts in.

    PARALLEL       SERIES          WHEEL   C above E above A, D above A, C above B
    +-------+      +---+-----+     +---+-----+
    |   b   |      |   |     |     | d |  c  |
    +-------+      | a |  b  |     |   +-+   |    four blocks around one, which no cut
    |   a   |      |   |     |     +---+e|---+    from side to side takes apart
    +-------+      +---+-----+     |  a  | b |
                                   +-----+---+

A nearly full arena is full with its *holes*, which are guessed from its loads: where less ends
than starts, a hole of the difference closes; where more ends, one opens. Which opening belongs
to which closing is a guess: of the same size, the latest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from memplan_cli.packing.pieces import Piece

_Key = TypeVar("_Key")

Hole = tuple[int, int, int]
"""Room that nobody needs: first section, end, and units."""

_PAIRS = 500
"""Holes tried as the smaller of a pair, so that time does not grow as their square."""


class Joint(Enum):
    """How the parts of a block are arranged."""

    PARALLEL = "parallel"
    SERIES = "series"
    WHEEL = "wheel"


@dataclass(frozen=True, slots=True)
class Opening:
    """Which joints of a block are opened: those not too deep and those risky enough."""

    depth: int
    risk: float
    most: int
    """Blocks looked at after which the rest stays closed."""


@dataclass(slots=True)
class CompositeBlocks:
    """A forest of buffers, holes and blocks made of them; its *roots* are in no block.

    Numbers below ``buffers`` are the piece's columns; then come holes and blocks as made.
    """

    buffers: int
    sections: int
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    parts: list[tuple[int, ...]] = field(default_factory=list)
    joint: list[Joint | None] = field(default_factory=list)
    risk: list[float] = field(default_factory=list)
    """How risky the riskiest joint in a block is."""
    roots: dict[int, None] = field(default_factory=dict)
    ending: list[dict[int, None]] = field(default_factory=list)
    """Roots that end at each edge between two sections."""
    starting: list[dict[int, None]] = field(default_factory=list)
    alike: dict[tuple[int, int], dict[int, None]] = field(default_factory=dict)
    """Roots of the same start and end."""
    sized: dict[tuple[int, int, bool], dict[int, None]] = field(default_factory=dict)
    """Roots of the same size that start (or end: not) at the same edge."""
    _done: list[int] = field(default_factory=list)
    """Blocks as they were put in (``block``) and taken out (``~block``)."""

    def __post_init__(self) -> None:
        self.ending = [{} for _ in range(self.sections + 1)]
        self.starting = [{} for _ in range(self.sections + 1)]

    def new(self, hole: Hole) -> int:
        """Note a buffer or a hole that is not in yet, and return its number."""
        start, end, size = hole
        self.start.append(start)
        self.end.append(end)
        self.size.append(size)
        self.parts.append(())
        self.joint.append(None)
        self.risk.append(0.0)
        return len(self.size) - 1

    def unite(self, parts: tuple[int, ...], joint: Joint, risk: float) -> int:
        """Take roots out, and return the block that they make, which is not in yet."""
        for part in parts:
            self.take(part)
        size = self.size[parts[0]]
        if joint is Joint.PARALLEL:
            size += self.size[parts[1]]
        elif joint is Joint.WHEEL:
            size += self.size[parts[3]]
        start = min(self.start[part] for part in parts)
        block = self.new((start, max(self.end[part] for part in parts), size))
        self.parts[block], self.joint[block] = parts, joint
        self.risk[block] = max(risk, *(self.risk[part] for part in parts))
        return block

    def put(self, block: int) -> None:
        """Make a block a root."""
        start, end, size = self.start[block], self.end[block], self.size[block]
        self.roots[block] = None
        self.starting[start][block] = None
        self.ending[end][block] = None
        self.alike.setdefault((start, end), {})[block] = None
        self.sized.setdefault((start, size, True), {})[block] = None
        self.sized.setdefault((end, size, False), {})[block] = None
        self._done.append(block)

    def take(self, block: int) -> None:
        """Take a root out."""
        start, end, size = self.start[block], self.end[block], self.size[block]
        del self.roots[block]
        del self.starting[start][block]
        del self.ending[end][block]
        _drop(self.alike, (start, end), block)
        _drop(self.sized, (start, size, True), block)
        _drop(self.sized, (end, size, False), block)
        self._done.append(~block)

    def settle(self) -> None:
        """Clear the undo log: the roots of now stay."""
        self._done.clear()

    def take_back(self) -> None:
        """Make those blocks roots that were so when it was last settled."""
        for done in reversed(self._done.copy()):
            if done < 0:
                self.put(~done)
            else:
                self.take(done)
        self._done.clear()

    def is_hole(self, block: int) -> bool:
        """Whether a block is a hole, and no more."""
        return block >= self.buffers and not self.parts[block]

    def leaves(self, block: int, opening: Opening) -> list[int]:
        """Return the parts of a block when some joints are opened, the upper ones first."""
        found: list[int] = []
        queue = [(block, opening.depth)]
        for inner, depth in queue:
            wanted = depth > 0 or self.risk[inner] >= opening.risk
            if self.parts[inner] and wanted and len(queue) < opening.most:
                queue += [(part, depth - 1) for part in self.parts[inner]]
            else:
                found.append(inner)
        return found

    def unfold(self, offsets: Iterable[tuple[int, int]]) -> list[int]:
        """Return the offset of each buffer, given block and offset for all roots."""
        found = [0] * self.buffers
        stack = list(offsets)
        while stack:
            block, offset = stack.pop()
            if self.parts[block]:
                stack.extend(self._placed(block, offset))
            elif block < self.buffers:
                found[block] = offset
        return found

    def _placed(self, block: int, offset: int) -> Sequence[tuple[int, int]]:
        parts, size = self.parts[block], self.size
        if self.joint[block] is Joint.SERIES:
            return [(part, offset) for part in parts]
        if self.joint[block] is Joint.PARALLEL:
            low, high = parts
            return ((low, offset), (high, offset + size[low]))
        a, b, c, d, e = parts
        middle = offset + size[a]
        return ((a, offset), (b, offset), (d, middle), (e, middle), (c, middle + size[e]))


def _drop(groups: dict[_Key, dict[int, None]], key: _Key, block: int) -> None:
    group = groups[key]
    del group[block]
    if not group:
        del groups[key]


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
