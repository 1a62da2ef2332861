"""Can a full arena be put together from its buffers, as a puzzle from its pieces?

Where the load is the same in all sections, nothing may be wasted, and most neighbours can
be told from the numbers alone: if one buffer dies at an edge between two sections and one is
born, they are as large and lie side by side; two of the same start and end can lie one on
the other. Such pairs are joined to boxes, boxes to larger ones, until one is left: the
layout.

Buffers are the edges of a network and sizes the currents in it (Brooks, Smith, Stone and
Tutte 1940); joining is the reduction of series-parallel networks, and of bridges.

Where edges coincide, who belongs together is a guess, the least doubtful first. If boxes
are left over, some neighbours are opened again and joined in another order, which is kept
where it leaves fewer (ruin and recreate: Schrimpf et al. 2000). A nearly full arena is made
a full one by `holes`.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem
from memplan_cli.packing.reconstruction.composite_blocks import Boxes, Joint, Opening
from memplan_cli.packing.reconstruction.gaps import holes, matched_anew

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.packing.budget import Budget
    from memplan_cli.packing.pieces import Piece, Placement

FULL = 0.85
"""Share of the area below the load that buffers must take for gluing to be tried."""

_LOOK = 80
"""Work charged for a box looked at, in Python: 900 million are some ten seconds."""
_PARALLEL_DOUBT = 0.1
"""How often two boxes of the same start and end lie apart where edges coincide (fitted)."""
_WHEEL_DOUBT = 0.001
"""Four buffers around a fifth that fit by chance: two sums and two edges agree."""
_SPREAD = 1.5
"""Standard deviation of the logarithm of the factor that doubts are blurred with."""
_REACHES = (4, 8, 16, 32, 64)
_DEPTHS = (1, 2, 3, 4, 6, 9, 14, 20)
_CERTAIN = 1e9
"""A doubt that none reaches."""
_DIGITS = 2.5
"""Half of the openings follow doubts above a limit, down to ten to the minus this."""
_MOST = 300
"""Boxes that are opened at a time."""
_BUSY = 40
"""Boxes at an edge up to which all are looked at again whenever one of them changes."""
_WHEELS = 500
"""Boxes at an edge up to which wheels are guessed there; it takes time as their square."""
_ALIKE = 8
"""Partners of one size that are noted for a box."""
_TRIAL = 100
"""Openings after which is judged whether it can come to an end."""
_HOPE = 0.75
"""Share of the boxes that may be left by then, if they are many."""
MANY = 200
"""Boxes left over that are too many to be searched."""
_PATIENCE = 400
"""Openings without any gain after which the rest is left to others."""


def is_nearly_full(piece: Piece) -> bool:
    """Whether gluing has a chance."""
    return sum(piece.loads) >= FULL * piece.load * len(piece.loads)


class Gluer:
    """Boxes, the edges that have to be looked at, and the guesses that could be made."""

    def __init__(self, piece: Piece) -> None:
        self.boxes = Boxes(len(piece.size), len(piece.loads))
        self._chance = Random(1)  # noqa: S311 - no secret: chance that can be repeated
        self._spread = 0.0
        self._edges: dict[int, None] = {}
        self._seen: dict[int, int] = {}
        self._stale: dict[int, None] = {}
        self._keys: list[tuple[int, int]] = []
        self._guesses: list[tuple[float, tuple[int, ...], Joint]] = []
        self._work = 0
        for buffer in zip(piece.start, piece.end, piece.size, strict=True):
            self._add(self.boxes.new(buffer))
        for hole in holes(piece):
            self._add(self.boxes.new(hole))

    def glue(self, budget: Budget) -> None:
        """Join boxes until one is left, patience is lost or the work is used up."""
        self._join(budget)
        self._spread = _SPREAD
        idle = openings = 0
        hoped = len(self.boxes.loose)
        while len(self.boxes.loose) > 1 and idle < _PATIENCE and not budget.is_over():
            before = len(self.boxes.loose)
            openings += 1
            if openings % _TRIAL == 0:
                if before > max(MANY, _HOPE * hoped):
                    return
                hoped = before
            self._reopen()
            self._join(budget)
            after = len(self.boxes.loose)
            idle = 0 if after < before else idle + 1
            if after > before:
                self.boxes.take_back()
                self._forget()

    def rest(self) -> Problem:
        """Return the boxes left over, in units, as a problem with their numbers as ids."""
        boxes = self.boxes
        return Problem(
            tuple(
                Buffer(
                    BufferId(str(box)),
                    boxes.size[box],
                    LiveRange(boxes.start[box], boxes.end[box]),
                )
                for box in boxes.loose
                if not boxes.is_hole(box)
            )
        )

    def placement(self, offsets: Mapping[BufferId, int]) -> Placement:
        """Return the buffers' offsets, given those of the boxes left over."""
        return tuple(self.boxes.unfold((int(box), at) for box, at in offsets.items()))

    def _forget(self) -> None:
        self._edges.clear()
        self._keys.clear()
        self._guesses.clear()
        self._stale.clear()

    def _add(self, box: int) -> None:
        boxes = self.boxes
        boxes.put(box)
        key = boxes.start[box], boxes.end[box]
        self._edges.update(dict.fromkeys(key))
        if len(boxes.alike[key]) > 1:
            self._keys.append(key)
        for edge in key:
            if edge in self._seen and self._busy(edge) > _BUSY:
                self._match_one(box, edge)

    def _busy(self, edge: int) -> int:
        return len(self.boxes.ending[edge]) + len(self.boxes.starting[edge])

    def _pay(self, budget: Budget) -> None:
        budget.charge(self._work)
        self._work = 0

    def _match_one(self, box: int, edge: int) -> None:
        """Note who could lie beside a new box, at an edge too busy to be looked at again."""
        boxes = self.boxes
        starts = boxes.start[box] == edge
        pairs = len(boxes.ending[edge]) * len(boxes.starting[edge])
        others = boxes.sized.get((edge, boxes.size[box], not starts), {})
        for other in islice(others, _ALIKE):
            self._series(*((other, box) if starts else (box, other)), pairs)

    def _join(self, budget: Budget) -> None:
        """Join what is certain, then what is least doubtful, until there is no more."""
        while not budget.is_over():
            if self._keys:
                self._stack(self._keys.pop())
            elif self._edges:
                self._look(self._edges.popitem()[0])
            elif not self._guess():
                if not self._stale:
                    break
                self._seen.clear()
                self._edges.update(self._stale)
                self._stale.clear()
            self._pay(budget)
        self._pay(budget)

    def _guess(self) -> bool:
        loose = self.boxes.loose
        while self._guesses:
            doubt, parts, joint = heappop(self._guesses)
            if all(part in loose for part in parts):
                self._unite(parts, joint, doubt)
                return True
        return False

    def _unite(self, parts: tuple[int, ...], joint: Joint, doubt: float = 0.0) -> None:
        boxes = self.boxes
        box = boxes.unite(parts, joint, doubt)
        for part in parts:
            self._edges[boxes.start[part]] = self._edges[boxes.end[part]] = None
        self._add(box)

    def _doubt(self, doubt: float, parts: tuple[int, ...], joint: Joint) -> None:
        if self._spread:
            doubt *= self._chance.lognormvariate(0.0, self._spread)
        heappush(self._guesses, (doubt, parts, joint))

    def _is_whole(self, edge: int) -> bool:
        """Whether all that ends and starts at an edge is in one stretch."""
        boxes = self.boxes
        at_the_side = edge in {0, boxes.sections}
        return at_the_side or min(len(boxes.ending[edge]), len(boxes.starting[edge])) < 2

    def _look(self, edge: int) -> None:
        """Join what is certain at an edge, and note what could be."""
        boxes = self.boxes
        ending, starting = boxes.ending[edge], boxes.starting[edge]
        self._work += 10 * _LOOK
        if not 0 < edge < boxes.sections:
            return
        busy = len(ending) + len(starting)
        if busy > _BUSY:
            if 4 * busy > 3 * self._seen.get(edge, 2 * busy):
                self._stale[edge] = None
                return
            self._seen[edge] = busy
        self._work += _LOOK * busy
        keys = [(boxes.start[box], edge) for box in ending]
        keys += [(edge, boxes.end[box]) for box in starting]
        stacked = [self._stack(key) for key in dict.fromkeys(keys)]
        if any(stacked):
            return
        if len(ending) == len(starting) == 1:
            (before,), (after,) = ending, starting
            if boxes.size[before] == boxes.size[after]:
                self._unite((before, after), Joint.SERIES)
        elif ending and starting:
            self._match(ending, starting)
            if busy <= _WHEELS:
                for hub in (*ending, *starting):
                    self._turn(hub)

    def _stack(self, key: tuple[int, int]) -> bool:
        """Join two boxes of the same start and end if they must touch, else note a guess."""
        alike = self.boxes.alike.get(key, {})
        if len(alike) < 2:
            return False
        doubts = sum(not self._is_whole(edge) for edge in key)
        one, other = islice(alike, 2)
        if not doubts:
            self._unite((one, other), Joint.PARALLEL)
            return True
        self._doubt(_PARALLEL_DOUBT * doubts, (one, other), Joint.PARALLEL)
        return False

    def _match(self, ending: Collection[int], starting: Collection[int]) -> None:
        """Note who could lie side by side: the larger they are, the less by accident."""
        boxes = self.boxes
        by_size: dict[int, list[int]] = defaultdict(list)
        for box in starting:
            by_size[boxes.size[box]].append(box)
        for one in ending:
            for other in by_size.get(boxes.size[one], ())[:_ALIKE]:
                self._series(one, other, len(ending) * len(starting))

    def _series(self, one: int, other: int, pairs: int) -> None:
        boxes = self.boxes
        doubt = pairs / boxes.size[one] / 2
        if (boxes.start[one], boxes.end[other]) in boxes.alike:
            doubt *= 0.1
        self._doubt(doubt, (one, other), Joint.SERIES)

    def _turn(self, e: int) -> None:
        """Note the wheels that a box could be the hub of, seen from its less busy edge."""
        boxes, size = self.boxes, self.boxes.size
        left, right = boxes.start[e], boxes.end[e]
        if left == 0 or right == boxes.sections:
            return
        before, under = boxes.ending[left], boxes.ending[right]
        self._work += _LOOK // 2 + 10 * min(len(before), len(under))
        if len(before) <= len(under):
            for d in before:
                for c in boxes.sized.get((left, size[d] - size[e], True), ()):
                    if c != e:
                        self._close_right(d, e, c)
        else:
            for a in under:
                for b in boxes.sized.get((right, size[a] + size[e], True), ()):
                    if a != e:
                        self._close_left(a, e, b)

    def _close_right(self, d: int, e: int, c: int) -> None:
        boxes, size, right = self.boxes, self.boxes.size, self.boxes.end[e]
        for a in boxes.alike.get((boxes.start[d], right), ()):
            for b in boxes.alike.get((right, boxes.end[c]), ()):
                if a != e and size[b] == size[a] + size[e]:
                    self._doubt(_WHEEL_DOUBT, (a, b, c, d, e), Joint.WHEEL)

    def _close_left(self, a: int, e: int, b: int) -> None:
        boxes, size, left = self.boxes, self.boxes.size, self.boxes.start[e]
        for d in boxes.alike.get((boxes.start[a], left), ()):
            for c in boxes.alike.get((left, boxes.end[b]), ()):
                if c != e and size[d] == size[c] + size[e]:
                    self._doubt(_WHEEL_DOUBT, (a, b, c, d, e), Joint.WHEEL)

    def _reopen(self) -> None:
        """Open some boxes that lie near each other, and perhaps think holes elsewhere."""
        boxes, chance = self.boxes, self._chance
        boxes.settle()
        self._seen.clear()
        loose = list(boxes.loose)
        near = self._neighbours(chance.choice(loose), chance.choice(_REACHES))
        depth, doubt = chance.choice(_DEPTHS), _CERTAIN
        if chance.random() < 0.5:
            depth, doubt = 1, 10.0 ** -chance.uniform(0.0, _DIGITS)
        opening = Opening(depth, doubt, max(4, _MOST // len(near)))
        for box in near:
            boxes.take(box)
        leaves = [leaf for box in near for leaf in boxes.leaves(box, opening)]
        if chance.random() < 0.6:
            empty = [leaf for leaf in leaves if boxes.is_hole(leaf)]
            leaves = [leaf for leaf in leaves if not boxes.is_hole(leaf)]
            given = [(boxes.start[box], boxes.end[box], boxes.size[box]) for box in empty]
            leaves += [boxes.new(hole) for hole in matched_anew(given, chance)]
        for leaf in leaves:
            self._add(leaf)
        self._work += _LOOK * (len(loose) // 8 + 8 * len(leaves))

    def _neighbours(self, box: int, reach: int) -> list[int]:
        """Return up to ``reach`` loose boxes that share edges with this one or each other."""
        boxes = self.boxes
        found = {box: None}
        queue = [box]
        for one in queue:
            for edge in (boxes.start[one], boxes.end[one]):
                if len(found) < reach and 0 < edge < boxes.sections:
                    new = [b for b in (*boxes.ending[edge], *boxes.starting[edge])
                           if b not in found]  # fmt: skip
                    found.update(dict.fromkeys(new))
                    queue += new
        return list(found)[:reach]
