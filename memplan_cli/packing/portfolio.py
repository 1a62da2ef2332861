"""Portfolio of all packing methods: the lowest layout found, and whether it is proved optimal.

Each piece of a problem is packed by itself. The skyline sweeps come first; mostly one of them
reaches the lower bound, which ends the work. A piece that stays above the bound is lowered by exact
search at the bound, then by bottleneck subsets, then by exact search of all capacities.

Modules with compiled loops are imported where a piece is lowered: easy problems never pay for
numba.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import Detail, silent
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.packing.pieces import BestPlacement, height_of, layout_of, reduce_problem
from memplan_cli.packing.skyline import best_sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.core.problem import Layout, Problem
    from memplan_cli.packing.pieces import Piece, Placement, Reduction

DEFAULT_WORK = 1_500_000_000
"""Units of work of the search: some ten seconds.

A unit is about one buffer or one section examined; 150 to 400 million take a second."""

SEARCHED_BUFFERS = 6_000
"""Buffers of the largest piece that is searched exactly; every step examines all of them."""

BOTTLENECK_BUFFERS = 20_000
"""Buffers of the largest piece of which bottleneck subsets are searched."""

BOTTLENECK_GAP = 0.02
"""Widest gap between height and bound, as a share of the bound, at which bottleneck subsets are tried for
a piece of more than `SEARCHED_BUFFERS` buffers."""

BOTTLENECK_SHARE = 0.2
"""Share of the work for bottleneck subsets, if the gap is worth all of the work."""

LEAST_SEARCH_SHARE = 0.1
"""Share of the work that the search of all capacities gets at least. If the gap is worth no more
than that, bottleneck subsets are not tried."""


def portfolio(
    problem: Problem,
    *,
    work: int = DEFAULT_WORK,
    time_limit: float | None = None,
    target_height: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Layout:
    """Return the lowest layout found; it is proved if no layout can be lower.

    Args:
        problem: The buffers to place.
        work: Units of work for the search. Without a time limit the layout depends on no clock.
        time_limit: Seconds after which the search stops early, with what it has found.
        target_height: Bytes within which any layout will do; 0 to go as low as possible.
        progress: Called with the stage "packing" once a search begins, and with its details.
    """
    budget = WorkBudget(work, time_limit)
    reduction = reduce_problem(problem)
    placements = [best_sweep(piece, reduction.load) for piece in reduction.pieces]
    layout = layout_of(reduction, placements)
    if layout.proved:
        return layout
    bound = reduction.arena_bytes(reduction.load)
    if layout.height > max(bound, target_height) and work > 0:
        report = progress or silent
        report("packing")
        target_units = target_height // reduction.unit
        layout, bound = _lower_pieces(reduction, placements, target_units, budget, report)
    return replace(layout, proved=layout.height <= bound)


def _lower_pieces(
    reduction: Reduction,
    placements: Sequence[Placement],
    target_height: int,
    budget: WorkBudget,
    progress: Callable[[str], None],
) -> tuple[Layout, int]:
    """Lower the pieces of a problem, the tallest first; return the layout, and the bytes of a lower bound.

    The arena is as tall as its tallest piece. So no piece is lowered below the tallest piece that is done, and a
    piece that is no taller stays as it is. Each gets an equal part of the work left. All heights are in units;
    ``target_height`` is low enough for the caller.
    """
    lowered = list(placements)
    heights = [*map(height_of, reduction.pieces, placements)]
    arena_bound = reduction.load  # proved: no arena is lower
    # The larger of ``arena_bound`` and the heights of the pieces that are done: the arena stays that tall.
    settled_height = arena_bound
    too_tall = [index for index, height in enumerate(heights) if height > arena_bound]
    too_tall.sort(key=lambda index: -heights[index])
    for count_before, index in enumerate(too_tall):
        if heights[index] <= settled_height:
            break
        part = budget.share(1 / (len(too_tall) - count_before))
        # Lowering a piece below the settled height is useless, so its bound begins there. A search raises the
        # bound only by a proof that the piece, and so the arena, does not fit below.
        best = BestPlacement(placements[index], heights[index], settled_height, target_height)
        best = _lower_piece(reduction.pieces[index], best, part, progress)
        lowered[index] = best.placement
        if best.bound > settled_height:
            arena_bound = best.bound
        settled_height = max(settled_height, best.height)
    return layout_of(reduction, lowered), reduction.arena_bytes(arena_bound)


def _lower_piece(
    piece: Piece, best: BestPlacement, budget: WorkBudget, progress: Callable[[str], None]
) -> BestPlacement:
    """Return the lowest placement of a piece that is found, or ``best``. Spends work of the budget.

    Three searches follow one another until the placement is low enough:

    1. the exact search with the bound of ``best`` as the height,
    2. layouts that place the buffers of a bottleneck, few that may decide the height, before all others,
    3. the exact search with all heights from the bound on.

    ``progress`` is called before each; if searches are slow for lack of numba, also with a stage that says so.
    """
    if budget.is_over() or not _fits_in_int64(piece):
        return best
    from memplan_cli.packing.bottleneck import lowered_by_subsets
    from memplan_cli.packing.compiled import HAS_NUMBA
    from memplan_cli.packing.search.exact import Searcher, is_compiled, shrink, try_bound

    buffers = len(piece.size)

    def report(search: str) -> None:
        if not HAS_NUMBA:
            progress("packing, faster with numba: pip install 'memplan[fast]'")
        progress(Detail(search))

    def report_exact_search() -> None:
        first = "" if is_compiled() else ", which is compiled first"
        report(f"searching for a lower layout of {buffers} buffers{first}")

    searcher = Searcher(piece) if buffers <= SEARCHED_BUFFERS else None
    if searcher is not None:
        report_exact_search()
        best = try_bound(searcher, best, budget)
    # The smaller the gap between height and bound, the smaller the share of the work.
    if not best.may_stop(budget) and _is_bottleneck_worthwhile(piece, best):
        report(f"fitting {buffers} buffers around bottleneck subsets")
        share = BOTTLENECK_SHARE * best.worthwhile_share
        best = lowered_by_subsets(piece, best, budget.share(share))
    if not best.may_stop(budget) and searcher is not None:
        report_exact_search()
        share = max(LEAST_SEARCH_SHARE, best.worthwhile_share)
        best = shrink(searcher, best, budget.share(share))
    return best


def _is_bottleneck_worthwhile(piece: Piece, best: BestPlacement) -> bool:
    """Return whether `lowered_by_subsets` is worth its work: it may find a placement lower than ``best``."""
    buffers = len(piece.size)
    if buffers > BOTTLENECK_BUFFERS:  # comparing all pairs would take too long
        return False
    # In a piece of many buffers with a height far above the bound, subsets are too large to be placed at the bound.
    is_far_above_bound = best.height > (1 + BOTTLENECK_GAP) * best.bound
    if buffers > SEARCHED_BUFFERS and is_far_above_bound:
        return False
    # The closer the height is to the bound, the smaller is the worthwhile share of the work budget. The least share is
    # left for the search that follows, `shrink`.
    return best.worthwhile_share > LEAST_SEARCH_SHARE


def _fits_in_int64(piece: Piece) -> bool:
    """Return whether compiled loops can count the units of a piece, with room for INFINITE."""
    return sum(piece.size) < 1 << 58
