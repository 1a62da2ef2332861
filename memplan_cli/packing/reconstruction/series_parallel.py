"""Series-parallel reconstruction of a full arena from its buffers.

Where the load is the same in all sections, nothing may be wasted, and most neighbours follow
from the numbers alone: if one buffer ends at an edge between two sections and one starts, they
are as large and side by side; two of the same start and end can be one on the other. Such
pairs are joined to composite blocks, those to larger ones, until one is left: the layout.

Buffers are the edges of a network and sizes the currents in it (Brooks, Smith, Stone and
Tutte 1940); joining is the reduction of series-parallel networks, and of bridges.

Where edges coincide, what belongs together is a guess, the least risky first. If blocks
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
from memplan_cli.packing.reconstruction.composite_blocks import (
    CompositeBlocks,
    Joint,
    Opening,
    holes,
    matched_anew,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.packing.budget import Budget
    from memplan_cli.packing.pieces import Piece, Placement

FULL = 0.85
"""Share of the area below the load that buffers must take for reconstruction to be tried."""

_LOOK = 80
"""Work charged for a block looked at, in Python: 900 million are some ten seconds."""
_PARALLEL_RISK = 0.1
"""How often two blocks of the same start and end are apart where edges coincide (fitted)."""
_WHEEL_RISK = 0.001
"""Four buffers around a fifth that fit by chance: two sums and two edges agree."""
_SPREAD = 1.5
"""Standard deviation of the logarithm of the factor that risks are blurred with."""
_REACHES = (4, 8, 16, 32, 64)
_DEPTHS = (1, 2, 3, 4, 6, 9, 14, 20)
_CERTAIN = 1e9
"""A risk that none reaches."""
_DIGITS = 2.5
"""Half of the openings follow risks above a limit, down to ten to the minus this."""
_MOST = 300
"""Blocks that are opened at a time."""
_BUSY = 40
"""Blocks at an edge up to which all are looked at again whenever one of them changes."""
_WHEELS = 500
"""Blocks at an edge up to which wheels are guessed there; it takes time as their square."""
_ALIKE = 8
"""Partners of one size that are noted for a block."""
_TRIAL = 100
"""Openings after which is judged whether it can end."""
_HOPE = 0.75
"""Share of the blocks that may be left by then, if they are many."""
MANY = 200
"""Blocks left over that are too many to be searched."""
_PATIENCE = 400
"""Openings without any gain after which the rest is left to others."""


def is_nearly_full(piece: Piece) -> bool:
    """Whether reconstruction has a chance."""
    return sum(piece.loads) >= FULL * piece.load * len(piece.loads)


class Reconstruction:
    """Composite blocks, the edges to be looked at, and the joints that could be guessed."""

    def __init__(self, piece: Piece) -> None:
        self.blocks = CompositeBlocks(len(piece.size), len(piece.loads))
        self._chance = Random(1)  # noqa: S311 - no secret: chance that can be repeated
        self._spread = 0.0
        self._edges: dict[int, None] = {}
        self._seen: dict[int, int] = {}
        self._stale: dict[int, None] = {}
        self._keys: list[tuple[int, int]] = []
        self._guesses: list[tuple[float, tuple[int, ...], Joint]] = []
        self._work = 0
        for buffer in zip(piece.start, piece.end, piece.size, strict=True):
            self._add(self.blocks.new(buffer))
        for hole in holes(piece):
            self._add(self.blocks.new(hole))

    def run(self, budget: Budget) -> None:
        """Join blocks until one is left, patience is lost or the work is used up."""
        self._join(budget)
        self._spread = _SPREAD
        idle = openings = 0
        hoped = len(self.blocks.roots)
        while len(self.blocks.roots) > 1 and idle < _PATIENCE and not budget.is_over():
            before = len(self.blocks.roots)
            openings += 1
            if openings % _TRIAL == 0:
                if before > max(MANY, _HOPE * hoped):
                    return
                hoped = before
            self._reopen()
            self._join(budget)
            after = len(self.blocks.roots)
            idle = 0 if after < before else idle + 1
            if after > before:
                self.blocks.take_back()
                self._forget()

    def rest(self) -> Problem:
        """Return the blocks left over, in units, as a problem with their numbers as ids."""
        blocks = self.blocks
        return Problem(
            tuple(
                Buffer(
                    BufferId(str(block)),
                    blocks.size[block],
                    LiveRange(blocks.start[block], blocks.end[block]),
                )
                for block in blocks.roots
                if not blocks.is_hole(block)
            )
        )

    def placement(self, offsets: Mapping[BufferId, int]) -> Placement:
        """Return the buffers' offsets, given those of the blocks left over."""
        return tuple(self.blocks.unfold((int(block), at) for block, at in offsets.items()))

    def _forget(self) -> None:
        self._edges.clear()
        self._keys.clear()
        self._guesses.clear()
        self._stale.clear()

    def _add(self, block: int) -> None:
        blocks = self.blocks
        blocks.put(block)
        key = blocks.start[block], blocks.end[block]
        self._edges.update(dict.fromkeys(key))
        if len(blocks.alike[key]) > 1:
            self._keys.append(key)
        for edge in key:
            if edge in self._seen and self._busy(edge) > _BUSY:
                self._match_one(block, edge)

    def _busy(self, edge: int) -> int:
        return len(self.blocks.ending[edge]) + len(self.blocks.starting[edge])

    def _pay(self, budget: Budget) -> None:
        budget.charge(self._work)
        self._work = 0

    def _match_one(self, block: int, edge: int) -> None:
        """Note what could be beside a new block, at an edge too busy to be looked at again."""
        blocks = self.blocks
        starts = blocks.start[block] == edge
        pairs = len(blocks.ending[edge]) * len(blocks.starting[edge])
        others = blocks.sized.get((edge, blocks.size[block], not starts), {})
        for other in islice(others, _ALIKE):
            self._series(*((other, block) if starts else (block, other)), pairs)

    def _join(self, budget: Budget) -> None:
        """Join what is certain, then what is least risky, until there is no more."""
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
        roots = self.blocks.roots
        while self._guesses:
            risk, parts, joint = heappop(self._guesses)
            if all(part in roots for part in parts):
                self._unite(parts, joint, risk)
                return True
        return False

    def _unite(self, parts: tuple[int, ...], joint: Joint, risk: float = 0.0) -> None:
        blocks = self.blocks
        block = blocks.unite(parts, joint, risk)
        for part in parts:
            self._edges[blocks.start[part]] = self._edges[blocks.end[part]] = None
        self._add(block)

    def _note_guess(self, risk: float, parts: tuple[int, ...], joint: Joint) -> None:
        if self._spread:
            risk *= self._chance.lognormvariate(0.0, self._spread)
        heappush(self._guesses, (risk, parts, joint))

    def _is_whole(self, edge: int) -> bool:
        """Whether all that ends and starts at an edge is contiguous in the arena."""
        blocks = self.blocks
        at_the_side = edge in {0, blocks.sections}
        return at_the_side or min(len(blocks.ending[edge]), len(blocks.starting[edge])) < 2

    def _look(self, edge: int) -> None:
        """Join what is certain at an edge, and note what could be."""
        blocks = self.blocks
        ending, starting = blocks.ending[edge], blocks.starting[edge]
        self._work += 10 * _LOOK
        if not 0 < edge < blocks.sections:
            return
        busy = len(ending) + len(starting)
        if busy > _BUSY:
            if 4 * busy > 3 * self._seen.get(edge, 2 * busy):
                self._stale[edge] = None
                return
            self._seen[edge] = busy
        self._work += _LOOK * busy
        keys = [(blocks.start[block], edge) for block in ending]
        keys += [(edge, blocks.end[block]) for block in starting]
        stacked = [self._stack(key) for key in dict.fromkeys(keys)]
        if any(stacked):
            return
        if len(ending) == len(starting) == 1:
            (before,), (after,) = ending, starting
            if blocks.size[before] == blocks.size[after]:
                self._unite((before, after), Joint.SERIES)
        elif ending and starting:
            self._match(ending, starting)
            if busy <= _WHEELS:
                for hub in (*ending, *starting):
                    self._turn(hub)

    def _stack(self, key: tuple[int, int]) -> bool:
        """Join two blocks of the same start and end if they must touch, else note a guess."""
        alike = self.blocks.alike.get(key, {})
        if len(alike) < 2:
            return False
        risks = sum(not self._is_whole(edge) for edge in key)
        one, other = islice(alike, 2)
        if not risks:
            self._unite((one, other), Joint.PARALLEL)
            return True
        self._note_guess(_PARALLEL_RISK * risks, (one, other), Joint.PARALLEL)
        return False

    def _match(self, ending: Collection[int], starting: Collection[int]) -> None:
        """Note what could be side by side: the larger they are, the less by accident."""
        blocks = self.blocks
        by_size: dict[int, list[int]] = defaultdict(list)
        for block in starting:
            by_size[blocks.size[block]].append(block)
        for one in ending:
            for other in by_size.get(blocks.size[one], ())[:_ALIKE]:
                self._series(one, other, len(ending) * len(starting))

    def _series(self, one: int, other: int, pairs: int) -> None:
        blocks = self.blocks
        risk = pairs / blocks.size[one] / 2
        if (blocks.start[one], blocks.end[other]) in blocks.alike:
            risk *= 0.1
        self._note_guess(risk, (one, other), Joint.SERIES)

    def _turn(self, e: int) -> None:
        """Note the wheels that a block could be the hub of, seen from its less busy edge."""
        blocks, size = self.blocks, self.blocks.size
        left, right = blocks.start[e], blocks.end[e]
        if left == 0 or right == blocks.sections:
            return
        before, under = blocks.ending[left], blocks.ending[right]
        self._work += _LOOK // 2 + 10 * min(len(before), len(under))
        if len(before) <= len(under):
            for d in before:
                for c in blocks.sized.get((left, size[d] - size[e], True), ()):
                    if c != e:
                        self._close_right(d, e, c)
        else:
            for a in under:
                for b in blocks.sized.get((right, size[a] + size[e], True), ()):
                    if a != e:
                        self._close_left(a, e, b)

    def _close_right(self, d: int, e: int, c: int) -> None:
        blocks, size, right = self.blocks, self.blocks.size, self.blocks.end[e]
        for a in blocks.alike.get((blocks.start[d], right), ()):
            for b in blocks.alike.get((right, blocks.end[c]), ()):
                if a != e and size[b] == size[a] + size[e]:
                    self._note_guess(_WHEEL_RISK, (a, b, c, d, e), Joint.WHEEL)

    def _close_left(self, a: int, e: int, b: int) -> None:
        blocks, size, left = self.blocks, self.blocks.size, self.blocks.start[e]
        for d in blocks.alike.get((blocks.start[a], left), ()):
            for c in blocks.alike.get((left, blocks.end[b]), ()):
                if c != e and size[d] == size[c] + size[e]:
                    self._note_guess(_WHEEL_RISK, (a, b, c, d, e), Joint.WHEEL)

    def _reopen(self) -> None:
        """Open some blocks near each other, and perhaps guess other holes."""
        blocks, chance = self.blocks, self._chance
        blocks.settle()
        self._seen.clear()
        roots = list(blocks.roots)
        near = self._neighbours(chance.choice(roots), chance.choice(_REACHES))
        depth, risk = chance.choice(_DEPTHS), _CERTAIN
        if chance.random() < 0.5:
            depth, risk = 1, 10.0 ** -chance.uniform(0.0, _DIGITS)
        opening = Opening(depth, risk, max(4, _MOST // len(near)))
        for block in near:
            blocks.take(block)
        leaves = [leaf for block in near for leaf in blocks.leaves(block, opening)]
        if chance.random() < 0.6:
            empty = [leaf for leaf in leaves if blocks.is_hole(leaf)]
            leaves = [leaf for leaf in leaves if not blocks.is_hole(leaf)]
            given = [
                (blocks.start[block], blocks.end[block], blocks.size[block]) for block in empty
            ]
            leaves += [blocks.new(hole) for hole in matched_anew(given, chance)]
        for leaf in leaves:
            self._add(leaf)
        self._work += _LOOK * (len(roots) // 8 + 8 * len(leaves))

    def _neighbours(self, block: int, reach: int) -> list[int]:
        """Return up to ``reach`` roots that share edges with this one or each other."""
        blocks = self.blocks
        found = {block: None}
        queue = [block]
        for one in queue:
            for edge in (blocks.start[one], blocks.end[one]):
                if len(found) < reach and 0 < edge < blocks.sections:
                    new = [b for b in (*blocks.ending[edge], *blocks.starting[edge])
                           if b not in found]  # fmt: skip
                    found.update(dict.fromkeys(new))
                    queue += new
        return list(found)[:reach]
