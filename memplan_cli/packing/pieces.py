"""Reduction of a problem to independent pieces with compressed time and divided sizes.

Sizes are rounded up to the alignment and divided by their greatest common divisor, the *unit*.
Time is cut where nothing is live: each interval between two cuts is a *piece*. Its ticks are
compressed to *sections*, the moments at which a set of live buffers is largest. Two buffers are
live together exactly if they share a section, so any layout of the pieces is one of the problem.

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
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.problem import Buffer, BufferId, Problem
    from memplan_cli.core.work_budget import WorkBudget


@dataclass(frozen=True, slots=True)
class Piece:
    """Buffers of one interval of time, as columns with one entry for each buffer.

    Attributes:
        ids: Ids of the buffers in the problem.
        start: First section of each buffer.
        end: Section after the last of each buffer.
        size: Units of each buffer.
        loads: Units live in each section; its length is the number of sections.
    """

    ids: tuple[BufferId, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    size: tuple[int, ...]
    loads: tuple[int, ...]

    @property
    def load(self) -> int:
        """The most units live at once: a lower bound on the height."""
        return max(self.loads)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A problem as independent pieces.

    Attributes:
        pieces: The pieces, in the order of time.
        unit: Bytes of a unit: an offset in a piece times ``unit`` is an offset in the arena.
        weightless: Buffers without bytes or without time. They overlap nothing and get offset 0.
        weightless_bytes: Aligned bytes of the largest weightless buffer.
    """

    pieces: tuple[Piece, ...]
    unit: int
    weightless: tuple[BufferId, ...]
    weightless_bytes: int

    @property
    def load(self) -> int:
        """The most units live at once in any piece: a lower bound on the height."""
        return max((piece.load for piece in self.pieces), default=0)

    def arena_bytes(self, height: int) -> int:
        """Return the bytes of an arena whose pieces need ``height`` units.

        The arena must hold the weightless buffers too, some of which have bytes but no time.
        """
        return max(height * self.unit, self.weightless_bytes)


Placement = tuple[int, ...]
"""Offsets of a piece's buffers, in units and in the order of its columns."""

FULL_WORK_GAP = 0.002
"""Gap between height and bound, as a share of the bound, that is worth all of the work."""


@dataclass(frozen=True, slots=True)
class BestPlacement:
    """The lowest placement of a piece found so far. Heights are in units.

    Attributes:
        placement: The offsets of the buffers.
        height: Height of the placement.
        bound: Height that is aimed at. It is raised when heights are ruled out.
        target_height: Height at which searches may stop; 0 to go as low as possible.
    """

    placement: Placement
    height: int
    bound: int
    target_height: int = 0

    def may_stop(self, budget: WorkBudget) -> bool:
        """Return whether a search may stop: the placement is low enough, or the budget is over."""
        return self.height <= max(self.bound, self.target_height) or budget.is_over()

    @property
    def worthwhile_share(self) -> float:
        """The share of a search's work that the gap between height and bound is worth.

        It is proportional to the gap, and 1.0 from `FULL_WORK_GAP` on.
        """
        return min(1.0, (self.height - self.bound) / (FULL_WORK_GAP * self.bound))


def reduce_problem(problem: Problem) -> Reduction:
    """Divide a problem into pieces. An optimum of each piece is an optimum of the whole."""
    alignment = problem.alignment
    # Buffers without bytes or ticks get offset 0. One of 64 bytes without ticks still needs an arena of 64 bytes.
    weightless = [b for b in problem.buffers if b.size <= 0 or b.live.start >= b.live.end]
    weightless_bytes = max((align(b.size, alignment) for b in weightless), default=0)
    solid = [b for b in problem.buffers if b.size > 0 and b.live.start < b.live.end]
    sizes = [align(b.size, alignment) for b in solid]
    unit = gcd(*sizes) or 1  # the gcd of no sizes is 0
    pieces = tuple(_pieces(solid, [size // unit for size in sizes]))
    return Reduction(pieces, unit, tuple(b.id for b in weightless), weightless_bytes)


def _pieces(buffers: Sequence[Buffer], sizes: Sequence[int]) -> Iterator[Piece]:
    """Yield the pieces of buffers with these sizes in units. No live range is empty.

    A sweep over all starts and ends opens a new section at the first start after an end, and a new piece when no
    buffer is live. Live ranges [0, 3), [1, 5) and [4, 6) become the sections [0, 1), [0, 2) and [1, 2).
    """
    # (tick, is_start, buffer): at one tick ends come before starts, because False < True.
    events = sorted(
        [(b.live.end, False, index) for index, b in enumerate(buffers)]
        + [(b.live.start, True, index) for index, b in enumerate(buffers)]
    )
    start, end = [0] * len(buffers), [0] * len(buffers)
    members: list[int] = []
    live_buffers, section, has_end = 0, 0, False  # has_end: a buffer ended in this section
    for _, is_start, index in events:
        if is_start:
            if has_end:
                section, has_end = section + 1, False
            start[index] = section
            members.append(index)
            live_buffers += 1
            continue
        end[index] = section + 1
        has_end = True
        live_buffers -= 1
        if not live_buffers:
            piece_start = [start[i] for i in members]
            piece_end = [end[i] for i in members]
            piece_size = [sizes[i] for i in members]
            yield Piece(
                ids=tuple([buffers[i].id for i in members]),
                start=tuple(piece_start),
                end=tuple(piece_end),
                size=tuple(piece_size),
                loads=tuple(_section_loads(piece_start, piece_end, piece_size)),
            )
            members, section, has_end = [], 0, False


def _section_loads(
    start: Sequence[int], end: Sequence[int], size: Sequence[int]
) -> Iterator[int]:
    """Return the units live in each section, for buffers with these columns."""
    change = [0] * (max(end) + 1)
    for first, stop, units in zip(start, end, size, strict=True):
        change[first] += units
        change[stop] -= units
    return accumulate(change[:-1])


def height_of(piece: Piece, placement: Placement) -> int:
    """Return the top of the highest buffer, in units."""
    return max([offset + size for offset, size in zip(placement, piece.size, strict=True)])


def arena_offsets(
    reduction: Reduction, placements: Sequence[Placement]
) -> Mapping[BufferId, int]:
    """Return the offset in bytes of every buffer of the problem, from a placement of each piece."""
    offsets: dict[BufferId, int] = dict.fromkeys(reduction.weightless, 0)
    for piece, placement in zip(reduction.pieces, placements, strict=True):
        scaled = [offset * reduction.unit for offset in placement]
        offsets.update(zip(piece.ids, scaled, strict=True))
    return offsets


def layout_of(reduction: Reduction, placements: Sequence[Placement]) -> Layout:
    """Return the layout of a placement of each piece, proved if it is as low as the load."""
    height = max(map(height_of, reduction.pieces, placements), default=0)
    offsets = arena_offsets(reduction, placements)
    is_proved = height == reduction.load
    return Layout(offsets, reduction.arena_bytes(height), proved=is_proved)
