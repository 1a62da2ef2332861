"""Greedy allocation: place each buffer once, in some order, and never move it.

The allocators of this module are baselines; the portfolio does not use them. `greedy_by_size` is the
greedy memory planner of TensorFlow Lite (Pisarchyk and Lee, "Efficient memory management for deep
neural net inference", 2020). `best_fit_by_start` is what the allocator of a runtime does. `naive`
does not reuse memory: it is the baseline of all savings.

`bottleneck` uses the orders too.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from memplan_cli.core.problem import BufferId, Layout, Problem, align
from memplan_cli.packing.pieces import layout_of, reduce

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Piece, Placement

BufferOrder = Callable[["Piece"], Sequence[int]]
"""``order(piece)``: the indices of a piece's buffers, the first to be placed first."""

Gap = tuple[int, int]
"""Half-open range of free units between two placed buffers."""

GapChoice = Callable[[Sequence[Gap]], int]
"""``choose(gaps)``: the offset of one of the gaps, which are sorted and all large enough."""


def by_size(piece: Piece) -> list[int]:
    """Order buffers by size, the largest first."""
    return sorted(range(len(piece.size)), key=lambda i: (-piece.size[i], piece.start[i], i))


def by_area(piece: Piece) -> list[int]:
    """Order buffers by size times number of sections, the largest first."""
    area = [
        size * (end - start)
        for size, start, end in zip(piece.size, piece.start, piece.end, strict=True)
    ]
    return sorted(range(len(piece.size)), key=lambda i: (-area[i], i))


def by_load(piece: Piece) -> list[int]:
    """Order buffers by the load of the fullest section that they are live in, then by size."""
    fullest = [
        max(piece.loads[start:end]) for start, end in zip(piece.start, piece.end, strict=True)
    ]
    return sorted(range(len(piece.size)), key=lambda i: (-fullest[i], -piece.size[i], i))


def by_start(piece: Piece) -> list[int]:
    """Order buffers by start, the larger first where several start together."""
    return sorted(range(len(piece.size)), key=lambda i: (piece.start[i], -piece.size[i], i))


def by_end(piece: Piece) -> list[int]:
    """Order buffers by end, the last first, as if time ran backwards."""
    return sorted(range(len(piece.size)), key=lambda i: (-piece.end[i], -piece.size[i], i))


def lowest_gap(gaps: Sequence[Gap]) -> int:
    """Return the offset of the lowest gap: first fit."""
    return gaps[0][0]


def smallest_gap(gaps: Sequence[Gap]) -> int:
    """Return the offset of the smallest gap, the lowest of several: best fit."""
    return min(gaps, key=lambda gap: (gap[1] - gap[0], gap[0]))[0]


def place_in_order(piece: Piece, order: Iterable[int], choose_gap: GapChoice) -> Placement:
    """Place buffers in an order, each in one of the gaps that are large enough.

    If there is none, a buffer goes on top of those that overlap it in time. Quadratic in the
    number of buffers; meant for up to a few thousand.
    """
    offsets = [0] * len(piece.size)
    placed: list[tuple[int, int, int, int]] = []  # offset, top, start, end; sorted
    for index in order:
        start, end, size = piece.start[index], piece.end[index], piece.size[index]
        gaps: list[Gap] = []
        floor = 0  # top of the placed buffers that were passed
        for other_offset, other_top, other_start, other_end in placed:
            if other_start < end and start < other_end:
                if other_offset - floor >= size:
                    gaps.append((floor, other_offset))
                floor = max(floor, other_top)
        offset = choose_gap(gaps) if gaps else floor
        offsets[index] = offset
        insort(placed, (offset, offset + size, start, end))
    return tuple(offsets)


def greedy_by_size(problem: Problem) -> Layout:
    """Return the layout by falling size, each buffer in the lowest gap."""
    return _place_problem(problem, by_size, lowest_gap)


def best_fit_by_start(problem: Problem) -> Layout:
    """Return the layout by start, each buffer in the smallest gap."""
    return _place_problem(problem, by_start, smallest_gap)


def _place_problem(problem: Problem, order: BufferOrder, choose_gap: GapChoice) -> Layout:
    """Return the layout in which each piece of a problem is placed in one order."""
    reduction = reduce(problem)
    placements = [place_in_order(p, order(p), choose_gap) for p in reduction.pieces]
    return layout_of(reduction, placements)


def naive(problem: Problem) -> Layout:
    """Return the layout without reuse: each buffer on top of the one before it."""
    offsets: dict[BufferId, int] = {}
    top = 0
    for buffer in problem.buffers:
        offsets[buffer.id] = top
        top += align(buffer.size, problem.alignment)
    return Layout(offsets, height=top)
