"""Reduction of a problem to independent pieces with compressed time and divided sizes.

Sizes are rounded up to the alignment and divided by their greatest common divisor. Time is
cut where nothing is live, and what remains is compressed into *sections*: the moments at
which a set of live buffers is largest. Two buffers are live together exactly when they
share a section, so nothing is lost.

    ticks      0   3   5   7   9
    a          #########               a = [0, 2)
    b              #########     ->    b = [0, 3)  sections: {a, b}  {b, c}  {c, d}
    c                  #########       c = [1, 3)
    d                          ##      d = [2, 3)

Sections are the idea of MiniMalloc's sweeper (Moffitt, ASPLOS 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import gcd
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Layout, align

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.problem import Buffer, BufferId, Problem


@dataclass(frozen=True, slots=True)
class Piece:
    """Buffers of one interval of time, as columns: half-open sections, sizes in units."""

    ids: tuple[BufferId, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    size: tuple[int, ...]
    loads: tuple[int, ...]
    """Units live in each section."""

    @property
    def load(self) -> int:
        """The most units live at once: no layout of this piece is shorter."""
        return max(self.loads)


@dataclass(frozen=True, slots=True)
class Reduction:
    """Independent pieces; an offset in a piece times ``unit`` is an offset in the arena."""

    pieces: tuple[Piece, ...]
    unit: int
    weightless: tuple[BufferId, ...]
    """Buffers without bytes or without time: they overlap nothing and are at offset 0."""
    floor: int
    """Bytes of the largest of those: the arena must be as tall even so."""

    @property
    def load(self) -> int:
        """The lower bound, in units."""
        return max((piece.load for piece in self.pieces), default=0)


Placement = tuple[int, ...]
"""Offsets of a piece's buffers, in units and in the order of its columns."""

NOWHERE = -1
"""The offset of a buffer that is not placed."""


def reduce(problem: Problem) -> Reduction:
    """Divide a problem into pieces; an optimum of each is an optimum of the whole."""
    alignment = problem.alignment
    solid = [b for b in problem.buffers if b.size > 0 and b.live.start < b.live.end]
    sizes = [align(b.size, alignment) for b in solid]
    unit = gcd(*sizes) or 1
    rest = [b for b in problem.buffers if b.size <= 0 or b.live.start >= b.live.end]
    floor = max((align(b.size, alignment) for b in rest), default=0)
    pieces = tuple(_pieces(solid, [size // unit for size in sizes]))
    return Reduction(pieces, unit, tuple(b.id for b in rest), floor)


def _pieces(solid: Sequence[Buffer], units: Sequence[int]) -> Iterable[Piece]:
    # At one tick ends come before starts: an even key ends, an odd one starts.
    events = sorted(
        [(2 * b.live.end, index) for index, b in enumerate(solid)]
        + [(2 * b.live.start + 1, index) for index, b in enumerate(solid)]
    )
    first, last = [0] * len(solid), [0] * len(solid)
    members: list[int] = []
    live, section, shrunk = 0, 0, False
    for key, index in events:
        if key % 2:
            section += shrunk
            shrunk = False
            first[index] = section
            members.append(index)
            live += 1
            continue
        last[index] = section + 1
        shrunk = True
        live -= 1
        if not live:
            yield _piece(solid, units, members, (first, last))
            members, section, shrunk = [], 0, False


def _piece(
    solid: Sequence[Buffer],
    units: Sequence[int],
    members: Sequence[int],
    ranges: tuple[Sequence[int], Sequence[int]],
) -> Piece:
    first, last = ranges
    size = tuple([units[i] for i in members])
    start, end = tuple([first[i] for i in members]), tuple([last[i] for i in members])
    change = [0] * (max(end) + 1)
    for a, b, much in zip(start, end, size, strict=True):
        change[a] += much
        change[b] -= much
    ids = tuple([solid[i].id for i in members])
    return Piece(ids, start, end, size, tuple(accumulate(change[:-1])))


def height_of(piece: Piece, placement: Placement) -> int:
    """Return the top of the highest buffer, in units."""
    return max([o + s for o, s in zip(placement, piece.size, strict=True)])


def assemble(reduction: Reduction, placements: Iterable[Placement]) -> Mapping[BufferId, int]:
    """Return the offsets in the arena that the pieces' placements stand for, in bytes."""
    offsets: dict[BufferId, int] = dict.fromkeys(reduction.weightless, 0)
    for piece, placement in zip(reduction.pieces, placements, strict=True):
        scaled = [offset * reduction.unit for offset in placement]
        offsets.update(zip(piece.ids, scaled, strict=True))
    return offsets


def layout_of(reduction: Reduction, placements: Sequence[Placement]) -> Layout:
    """Return the layout of all pieces, proved when it is as short as the load."""
    height = max(map(height_of, reduction.pieces, placements), default=0)
    offsets = assemble(reduction, placements)
    tall = max(height * reduction.unit, reduction.floor)
    return Layout(offsets, tall, proved=height == reduction.load)
