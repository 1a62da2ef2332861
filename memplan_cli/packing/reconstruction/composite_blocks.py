"""Which buffers have been joined to one box, and how does a box come apart again?

Buffers whose rectangles make up a larger rectangle are joined to a *box*, boxes to larger
ones. What a box is made of is never changed, so joining can be taken back by taking the box
out and putting its parts in.

    PARALLEL       SERIES          WHEEL   C above E above A, D above A, C above B
    +-------+      +---+-----+     +---+-----+
    |   b   |      |   |     |     | d |  c  |
    +-------+      | a |  b  |     |   +-+   |    five boxes around one, which no cut
    |   a   |      |   |     |     +---+e|---+    from side to side takes apart
    +-------+      +---+-----+     |  a  | b |
                                   +-----+---+
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_Key = TypeVar("_Key")

Hole = tuple[int, int, int]
"""Room that nobody needs: first section, end, and units."""


class Joint(Enum):
    """How the parts of a box lie to each other."""

    PARALLEL = "parallel"
    SERIES = "series"
    WHEEL = "wheel"


@dataclass(frozen=True, slots=True)
class Opening:
    """Which joints of a box are opened: those not too deep and those doubtful enough."""

    depth: int
    doubt: float
    most: int
    """Boxes looked at after which the rest stays closed."""


@dataclass(slots=True)
class Boxes:
    """Buffers, holes and the boxes made of them; those that are in no other are *loose*.

    Numbers below ``buffers`` are the piece's columns; then come holes and boxes as made.
    """

    buffers: int
    sections: int
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    parts: list[tuple[int, ...]] = field(default_factory=list)
    joint: list[Joint | None] = field(default_factory=list)
    doubt: list[float] = field(default_factory=list)
    """How doubtful the most doubtful joint in a box is."""
    loose: dict[int, None] = field(default_factory=dict)
    ending: list[dict[int, None]] = field(default_factory=list)
    """Loose boxes that end at each edge between two sections."""
    starting: list[dict[int, None]] = field(default_factory=list)
    alike: dict[tuple[int, int], dict[int, None]] = field(default_factory=dict)
    """Loose boxes of the same start and end."""
    sized: dict[tuple[int, int, bool], dict[int, None]] = field(default_factory=dict)
    """Loose boxes of the same size that start (or end: not) at the same edge."""
    _done: list[int] = field(default_factory=list)
    """Boxes as they were put in (``box``) and taken out (``~box``)."""

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
        self.doubt.append(0.0)
        return len(self.size) - 1

    def unite(self, parts: tuple[int, ...], joint: Joint, doubt: float) -> int:
        """Take loose boxes out, and return the box that they make, which is not in yet."""
        for part in parts:
            self.take(part)
        size = self.size[parts[0]]
        if joint is Joint.PARALLEL:
            size += self.size[parts[1]]
        elif joint is Joint.WHEEL:
            size += self.size[parts[3]]
        start = min(self.start[part] for part in parts)
        box = self.new((start, max(self.end[part] for part in parts), size))
        self.parts[box], self.joint[box] = parts, joint
        self.doubt[box] = max(doubt, *(self.doubt[part] for part in parts))
        return box

    def put(self, box: int) -> None:
        """Make a box loose."""
        start, end, size = self.start[box], self.end[box], self.size[box]
        self.loose[box] = None
        self.starting[start][box] = None
        self.ending[end][box] = None
        self.alike.setdefault((start, end), {})[box] = None
        self.sized.setdefault((start, size, True), {})[box] = None
        self.sized.setdefault((end, size, False), {})[box] = None
        self._done.append(box)

    def take(self, box: int) -> None:
        """Take a loose box out."""
        start, end, size = self.start[box], self.end[box], self.size[box]
        del self.loose[box]
        del self.starting[start][box]
        del self.ending[end][box]
        _drop(self.alike, (start, end), box)
        _drop(self.sized, (start, size, True), box)
        _drop(self.sized, (end, size, False), box)
        self._done.append(~box)

    def settle(self) -> None:
        """Forget how the boxes that are loose came to be: it is not taken back any more."""
        self._done.clear()

    def take_back(self) -> None:
        """Make those boxes loose that were so when it was last settled."""
        for done in reversed(self._done.copy()):
            if done < 0:
                self.put(~done)
            else:
                self.take(done)
        self._done.clear()

    def is_hole(self, box: int) -> bool:
        """Whether a box is a hole, and no more."""
        return box >= self.buffers and not self.parts[box]

    def leaves(self, box: int, opening: Opening) -> list[int]:
        """Return what a box is made of when some joints are opened, the upper ones first."""
        found: list[int] = []
        queue = [(box, opening.depth)]
        for inner, depth in queue:
            wanted = depth > 0 or self.doubt[inner] >= opening.doubt
            if self.parts[inner] and wanted and len(queue) < opening.most:
                queue += [(part, depth - 1) for part in self.parts[inner]]
            else:
                found.append(inner)
        return found

    def unfold(self, offsets: Iterable[tuple[int, int]]) -> list[int]:
        """Return the offset of each buffer, given box and offset for all loose ones."""
        found = [0] * self.buffers
        stack = list(offsets)
        while stack:
            box, offset = stack.pop()
            if self.parts[box]:
                stack.extend(self._placed(box, offset))
            elif box < self.buffers:
                found[box] = offset
        return found

    def _placed(self, box: int, offset: int) -> Sequence[tuple[int, int]]:
        parts, size = self.parts[box], self.size
        if self.joint[box] is Joint.SERIES:
            return [(part, offset) for part in parts]
        if self.joint[box] is Joint.PARALLEL:
            low, high = parts
            return ((low, offset), (high, offset + size[low]))
        a, b, c, d, e = parts
        middle = offset + size[a]
        return ((a, offset), (b, offset), (d, middle), (e, middle), (c, middle + size[e]))


def _drop(groups: dict[_Key, dict[int, None]], key: _Key, box: int) -> None:
    group = groups[key]
    del group[box]
    if not group:
        del groups[key]
