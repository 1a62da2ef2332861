"""Which layout is the best that the strategies together find?

Cheap strategies come first and the first that reaches the lower bound ends the work. Only
where none does, the search is loaded: an easy model never pays for it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.allocators.budget import Budget, Found
from memplan_cli.allocators.greedy import STRATEGIES, place
from memplan_cli.allocators.naive import naive
from memplan_cli.allocators.pair import is_pairwise, pairwise
from memplan_cli.allocators.pieces import assemble, height_of, layout_of, reduce
from memplan_cli.allocators.pool import level0, level1
from memplan_cli.allocators.skyline import best_sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memplan_cli.allocators.pieces import Piece, Placement, Reduction
    from memplan_cli.problem import Layout, Problem

DEFAULT_WORK = 1_500_000_000
"""Units of work for the search, about one buffer or section looked at: some ten seconds."""

SEARCHABLE = 6_000
"""Buffers of the largest piece that is searched; a step looks at all of them."""

QUADRATIC = 1_500
"""Buffers of the largest piece on which strategies that look at all pairs are tried."""

GLUING = 0.8
"""Work for gluing nearly full pieces, beside that of the search and as a share of it: the
search must not find less because gluing was tried in vain."""

JOINING = 0.75
"""Share of what is left of that for putting the boxes of one piece together."""

BOXES = 0.4
"""Share of what is left then for searching the boxes of one piece that are left over."""

QUICK = 300
"""Buffers up to which those strategies take less time than loading the search."""


def portfolio(  # noqa: PLR0913 - knobs by keyword, each with a default
    problem: Problem,
    *,
    work: int = DEFAULT_WORK,
    time_limit: float | None = None,
    seeds: Iterable[Layout] = (),
    enough: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Layout:
    """Return the best layout found, and whether it is proved to be the best there is.

    Args:
        problem: What to place.
        work: How much searching may be done; the result depends on it and on nothing else.
            Where buffers nearly fill the arena, up to `GLUING` times as much comes on top.
        time_limit: Seconds after which the search stops, whatever work is left. Only cuts
            short: what is found without it is never worse.
        seeds: Layouts known already; the result is not taller than any of them.
        enough: Bytes below which it matters no more; the search stops at such a layout.
        progress: Called with a line of text before something that takes seconds.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    reduction = reduce(problem)
    cheap = [_cheapest(piece, reduction.load) for piece in reduction.pieces]
    found = layout_of(reduction, cheap)
    if found.proved:
        return found
    known = [*seeds, level1(problem), level0(problem), naive(problem)]
    best = min([found, *known], key=lambda layout: layout.height)
    bound = max(reduction.load * reduction.unit, reduction.floor)
    if best.height > max(bound, enough) and work > 0:
        budget = Budget(work, deadline, enough=enough // reduction.unit)
        found, bound = _searched(reduction, cheap, budget, progress or _silent)
        best = min([found, *known], key=lambda layout: layout.height)
    return replace(best, proved=best.height <= bound)


def exact(problem: Problem) -> Layout:
    """Search for the lowest layout, starting from what the cheap strategies find."""
    reduction = reduce(problem)
    cheap = [_cheapest(piece, reduction.load) for piece in reduction.pieces]
    found, bound = _searched(reduction, cheap, Budget(DEFAULT_WORK), _silent)
    return replace(found, proved=found.height <= bound)


def _silent(_text: str) -> None:
    """Show nothing."""


def _cheapest(piece: Piece, goal: int) -> Placement:
    """Return the best of what takes little time, the first that reaches the goal if any."""
    if is_pairwise(piece):
        return pairwise(piece)
    best = best_sweep(piece, goal)
    return _greediest(piece, best, goal) if len(piece.size) <= QUICK else best


def _greediest(piece: Piece, best: Placement, goal: int) -> Placement:
    for order, choose in STRATEGIES.values():
        if height_of(piece, best) <= goal:
            break
        found = place(piece, order(piece), choose)
        if height_of(piece, found) < height_of(piece, best):
            best = found
    return best


def _searched(
    reduction: Reduction,
    known: list[Placement],
    budget: Budget,
    progress: Callable[[str], None],
) -> tuple[Layout, int]:
    """Search the pieces that are above the goal, the heaviest first.

    Returns the layout, and the bytes that no layout can go below. A piece that cannot reach
    the lower bound raises the goal for all after it: the arena is as tall as the worst.
    """
    placements = list(known)
    goal = bound = reduction.load
    pieces = reduction.pieces
    budgets = budget, budget.share(GLUING)
    for index in sorted(range(len(pieces)), key=lambda i: (-pieces[i].load, i)):
        piece = pieces[index]
        height = height_of(piece, placements[index])
        if height > goal:
            found = _lowered(piece, Found(placements[index], height, goal), budgets, progress)
            placements[index] = found.placement
            if found.bound > goal:
                bound = max(bound, found.bound)
        goal = max(goal, height_of(piece, placements[index]))
    layout = layout_of(reduction, placements)
    return layout, max(bound * reduction.unit, reduction.floor)


def _lowered(
    piece: Piece, best: Found, budgets: tuple[Budget, Budget], progress: Callable[[str], None]
) -> Found:
    """Search one piece; strategies that look at all pairs come between if they take longer."""
    budget, gluing = budgets
    searchable = _is_searchable(piece) and not budget.is_over()
    if searchable:
        # numba and the compiled loops are loaded here and below, and nowhere else.
        from memplan_cli.allocators.exact import Searcher, prepare, reach, shrink

        prepare(progress)
        progress(f"searching for a lower layout of {len(piece.size)} buffers")
        searcher = Searcher(piece)
        best = reach(searcher, best, budget)
    glued = best
    if best.height > best.bound and not gluing.is_over():
        glued = _glued(piece, best, gluing, progress)
        if glued.height <= max(glued.bound, budget.enough):
            return glued
    if best.height > best.bound and QUICK < len(piece.size) <= QUADRATIC:
        best = _lower(piece, best, _greediest(piece, best.placement, best.bound))
    # Started from what was glued, it would try other heights, and could end above both.
    best = shrink(searcher, best, budget) if searchable else best
    return _lower(piece, best, glued.placement)


def _lower(piece: Piece, best: Found, placement: Placement) -> Found:
    """Return the lower one of what was found and a placement."""
    height = height_of(piece, placement)
    return best if best.height <= height else replace(best, placement=placement, height=height)


def _glued(
    piece: Piece, best: Found, budget: Budget, progress: Callable[[str], None]
) -> Found:
    """Put a nearly full piece together as a puzzle; what does not fit is searched as boxes.

    Nothing is learned about the bound: the boxes may be the wrong ones.
    """
    from memplan_cli.allocators.gluing import MANY, Gluer, is_nearly_full

    if not is_nearly_full(piece):
        return best
    progress(f"putting {len(piece.size)} buffers together")
    part = budget.share(JOINING)
    gluer = Gluer(piece)
    gluer.glue(part)
    budget.charge(part.spent)
    left = len(gluer.boxes.loose)
    if left > max(MANY, len(piece.size) // 4):
        return best  # what is hardly smaller than the piece is packed no better
    boxes = reduce(gluer.rest())
    few = budget if left <= MANY else Budget(0)
    placements = [
        _searched_boxes(inner, -(-best.bound // boxes.unit), few, progress)
        for inner in boxes.pieces
    ]
    return _lower(piece, best, gluer.placement(assemble(boxes, placements)))


def _searched_boxes(
    piece: Piece, goal: int, budget: Budget, progress: Callable[[str], None]
) -> Placement:
    placement = _cheapest(piece, goal)
    best = Found(placement, height_of(piece, placement), max(goal, piece.load))
    if best.height <= best.bound or budget.is_over() or not _is_searchable(piece):
        return placement
    from memplan_cli.allocators.exact import Searcher, prepare, shrink

    prepare(progress)
    part = replace(budget.share(BOXES), enough=0)
    found = shrink(Searcher(piece), best, part)
    budget.charge(part.spent)
    return found.placement


def _is_searchable(piece: Piece) -> bool:
    # Compiled loops count in 64 bits and keep sentinels above every offset.
    return len(piece.size) <= SEARCHABLE and sum(piece.size) < 1 << 58
