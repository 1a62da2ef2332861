"""Greedy allocation: place each buffer once, in some order, and never move it.

By size with first fit is the greedy memory planner of TensorFlow Lite (Pisarchyk and Lee,
"Efficient memory management for deep neural net inference", 2020). By area, by length and by load
are variations of it. By start with best fit is what the allocator of a runtime does.

`naive` does not reuse memory: all buffers are stacked. It is the baseline of all savings.
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
    return sorted(
        range(len(piece.size)), key=lambda i: (-piece.size[i] * _length(piece, i), i)
    )


def by_length(piece: Piece) -> list[int]:
    """Order buffers by number of sections, the longest first."""
    return sorted(
        range(len(piece.size)), key=lambda i: (-_length(piece, i), -piece.size[i], i)
    )


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


def _length(piece: Piece, index: int) -> int:
    return piece.end[index] - piece.start[index]


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


def _place_problem(problem: Problem, order: BufferOrder, choose_gap: GapChoice) -> Layout:
    """Return the layout in which each piece of a problem is placed in one order."""
    reduction = reduce(problem)
    placements = [place_in_order(p, order(p), choose_gap) for p in reduction.pieces]
    return layout_of(reduction, placements)


GREEDY_METHODS: Mapping[str, tuple[BufferOrder, GapChoice]] = {
    "greedy-size": (by_size, lowest_gap),
    "greedy-area": (by_area, lowest_gap),
    "greedy-length": (by_length, lowest_gap),
    "greedy-load": (by_load, lowest_gap),
    "best-fit-start": (by_start, smallest_gap),
    "best-fit-end": (by_end, smallest_gap),
    "first-fit-start": (by_start, lowest_gap),
}
"""Order and choice of gap of each greedy method, in the order in which the portfolio tries them."""

GREEDY_ALLOCATORS: Mapping[str, Callable[[Problem], Layout]] = {
    name: partial(_place_problem, order=order, choose_gap=choose_gap)
    for name, (order, choose_gap) in GREEDY_METHODS.items()
}
"""The greedy methods as allocators of whole problems."""


def naive(problem: Problem) -> Layout:
    """Return the layout without reuse: each buffer on top of the one before it."""
    offsets: dict[BufferId, int] = {}
    top = 0
    for buffer in problem.buffers:
        offsets[buffer.id] = top
        top += align(buffer.size, problem.alignment)
    return Layout(offsets, height=top)
