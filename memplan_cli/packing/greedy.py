"""Greedy allocation: place each buffer once, in one of several orders, and never move it.

By size with first fit is TensorFlow Lite's `greedy_memory_planner`; by area, by length and by
load are variations of it. By start with best fit is what the allocator of a runtime does.
Without any reuse (`naive`), buffers are stacked: the baseline of all savings.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.problem import BufferId, Layout, Problem, align
from memplan_cli.packing.pieces import layout_of, reduce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.packing.pieces import Piece, Placement

Order = Callable[["Piece"], Sequence[int]]
"""In which order a piece's buffers are placed."""

Gap = tuple[int, int]
"""Half-open range of free units."""

Choice = Callable[[Sequence[Gap], int], int]
"""``choice(gaps, size)``: the offset in the gap it likes best, all being large enough."""


def by_size(piece: Piece) -> list[int]:
    """Order by size, largest first."""
    return sorted(range(len(piece.size)), key=lambda i: (-piece.size[i], piece.start[i], i))


def by_area(piece: Piece) -> list[int]:
    """Order by size times sections live, largest first."""
    return sorted(range(len(piece.size)), key=lambda i: (-piece.size[i] * _width(piece, i), i))


def by_length(piece: Piece) -> list[int]:
    """Order by sections live, longest first."""
    return sorted(range(len(piece.size)), key=lambda i: (-_width(piece, i), -piece.size[i], i))


def by_load(piece: Piece) -> list[int]:
    """Order by the load of the busiest section a buffer is live in, then by size."""
    busiest = [max(piece.loads[s:e]) for s, e in zip(piece.start, piece.end, strict=True)]
    return sorted(range(len(piece.size)), key=lambda i: (-busiest[i], -piece.size[i], i))


def by_start(piece: Piece) -> list[int]:
    """Order by start, larger ones first where several start together."""
    return sorted(range(len(piece.size)), key=lambda i: (piece.start[i], -piece.size[i], i))


def by_end(piece: Piece) -> list[int]:
    """Order by end, the last first: time run backwards."""
    return sorted(range(len(piece.size)), key=lambda i: (-piece.end[i], -piece.size[i], i))


def _width(piece: Piece, index: int) -> int:
    return piece.end[index] - piece.start[index]


def lowest(gaps: Sequence[Gap], _size: int) -> int:
    """Choose the lowest gap: first fit."""
    return gaps[0][0]


def tightest(gaps: Sequence[Gap], _size: int) -> int:
    """Choose the smallest gap, the lowest of several: best fit."""
    return min(gaps, key=lambda gap: (gap[1] - gap[0], gap[0]))[0]


def place(piece: Piece, order: Iterable[int], choose: Choice) -> Placement:
    """Place buffers in the order given, each in a gap that ``choose`` picks.

    Quadratic in the number of buffers; meant for up to a few thousand.
    """
    offsets = [0] * len(piece.size)
    placed: list[tuple[int, int, int, int]] = []  # offset, top, start, end
    for index in order:
        start, end, size = piece.start[index], piece.end[index], piece.size[index]
        gaps: list[Gap] = []
        floor = 0
        for low, top, other_start, other_end in placed:
            if other_start < end and start < other_end:
                if low - floor >= size:
                    gaps.append((floor, low))
                floor = max(floor, top)
        offset = choose(gaps, size) if gaps else floor
        offsets[index] = offset
        insort(placed, (offset, offset + size, start, end))
    return tuple(offsets)


def greedy(problem: Problem, *, order: Order, choose: Choice = lowest) -> Layout:
    """Place a whole problem by one order and one choice of gap."""
    reduction = reduce(problem)
    return layout_of(reduction, [place(p, order(p), choose) for p in reduction.pieces])


STRATEGIES: Mapping[str, tuple[Order, Choice]] = {
    "greedy-size": (by_size, lowest),
    "greedy-area": (by_area, lowest),
    "greedy-length": (by_length, lowest),
    "greedy-load": (by_load, lowest),
    "best-fit-start": (by_start, tightest),
    "best-fit-end": (by_end, tightest),
    "first-fit-start": (by_start, lowest),
}
"""The greedy members of the portfolio, the most often sufficient first."""

GREEDY: Mapping[str, Callable[[Problem], Layout]] = {
    name: partial(greedy, order=order, choose=choose)
    for name, (order, choose) in STRATEGIES.items()
}


def naive(problem: Problem) -> Layout:
    """Give every buffer bytes of its own, one above the other."""
    offsets: dict[BufferId, int] = {}
    top = 0
    for buffer in problem.buffers:
        offsets[buffer.id] = top
        top += align(buffer.size, problem.alignment)
    return Layout(offsets, height=top)
