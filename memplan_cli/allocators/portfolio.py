"""Which layout is the best that the strategies together find?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.allocators.greedy import STRATEGIES, place
from memplan_cli.allocators.naive import naive
from memplan_cli.allocators.pair import is_pairwise, pairwise
from memplan_cli.allocators.pieces import Piece, Placement, height_of, layout_of, reduce
from memplan_cli.allocators.pool import level1

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memplan_cli.problem import Layout, Problem

DEFAULT_WORK = 1_000_000_000


def portfolio(
    problem: Problem,
    *,
    work: int = DEFAULT_WORK,  # noqa: ARG001 - for the searches to come
    time_limit: float | None = None,  # noqa: ARG001 - likewise
    seeds: Iterable[Layout] = (),
    progress: Callable[[str], None] | None = None,  # noqa: ARG001 - likewise
) -> Layout:
    """Return the best layout found, and whether it is proved to be the best there is."""
    reduction = reduce(problem)
    found = layout_of(reduction, [_best(p, reduction.load) for p in reduction.pieces])
    if found.proved:
        return found
    return min([found, *seeds, level1(problem), naive(problem)], key=lambda x: x.height)


def _best(piece: Piece, goal: int) -> Placement:
    if is_pairwise(piece):
        return pairwise(piece)
    best: Placement | None = None
    for order, choose in STRATEGIES.values():
        found = place(piece, order(piece), choose)
        if best is None or height_of(piece, found) < height_of(piece, best):
            best = found
        if height_of(piece, best) <= goal:
            break
    assert best is not None  # noqa: S101 - the table is not empty
    return best
