"""Portfolio of all packing methods: the lowest layout found, and whether it is proved optimal.

Each piece of a problem is packed by itself. The skyline sweeps come first; mostly one of them
reaches the lower bound, which ends the work. A piece that stays above the bound is lowered:

    search_quickly      exact search at the bound, then bottleneck subsets; about a second
    search_thoroughly   exact search of all capacities with the remaining work

Modules with compiled loops are imported where a piece is lowered: easy problems never pay for
numba.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import Detail, silent
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.packing.pieces import BestPlacement, height_of, layout_of, reduce_problem
from memplan_cli.packing.skyline import best_sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.problem import Layout, Problem
    from memplan_cli.packing.pieces import Piece, Placement, Reduction
    from memplan_cli.packing.search.exact import Searcher

DEFAULT_WORK = 1_500_000_000
"""Units of work of the search: some ten seconds.

A unit is about one buffer or one section examined; 150 to 400 million take a second."""

SEARCHED_BUFFERS = 6_000
"""Buffers of the largest piece that is searched exactly; every step examines all of them."""

BOTTLENECK_BUFFERS = 20_000
"""Buffers of the largest piece of which bottleneck subsets are searched."""

BOTTLENECK_GAP = 0.02
"""Gap between height and bound, as a share of the bound, above which bottleneck subsets are not
tried for a piece of more than `SEARCHED_BUFFERS` buffers: too many buffers decide then."""

BOTTLENECK_SHARE = 0.2
"""Share of the work for bottleneck subsets, if the gap is worth all of the work."""

LEAST_SEARCH_SHARE = 0.1
"""Share of the work that the thorough search gets at least. If the gap is worth no more than
that, bottleneck subsets are not tried."""


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
    placements: list[Placement],
    target_units: int,
    budget: WorkBudget,
    progress: Callable[[str], None],
) -> tuple[Layout, int]:
    """Lower the pieces that are above the goal, the tallest first: all quickly, then thoroughly.

    The goal is the lower bound of the problem. A piece that ends above it raises the goal of all
    that come after it, because the arena is as tall as the tallest piece.

    Returns:
        The layout, and the bytes that no layout can be below.
    """
    placements = list(placements)
    pieces = reduction.pieces
    lowerings = [Lowering(piece, progress) for piece in pieces]
    bound = reduction.load  # in units, as the goal and all heights below
    for lower in (Lowering.search_quickly, Lowering.search_thoroughly):
        goal = bound
        heights = [
            height_of(piece, placement)
            for piece, placement in zip(pieces, placements, strict=True)
        ]
        for index in sorted(range(len(pieces)), key=lambda i: (-heights[i], i)):
            height = heights[index]
            if height > goal:
                # The goal, which may be the height of another piece, takes the place of a lower bound.
                best = BestPlacement(placements[index], height, goal, target_units)
                best = lower(lowerings[index], best, budget)
                placements[index], height = best.placement, best.height
                # A search raises it only if it proves that this piece fits into no lower height.
                if best.bound > goal:
                    bound = max(bound, best.bound)
            goal = max(goal, height)
    return layout_of(reduction, placements), reduction.arena_bytes(bound)


@dataclass(slots=True)
class Lowering:
    """The methods that lower one piece. The exact search keeps its memory between them.

    Methods return the best placement and charge the budget.

    Attributes:
        piece: the piece.
        progress: called with a `Detail` about each search that begins; if the search is slow for lack
            of numba, also with a stage that says so.
        _searcher: the exact search; None until it is needed.
    """

    piece: Piece
    progress: Callable[[str], None]
    _searcher: Searcher | None = field(default=None, init=False)

    def search_quickly(self, best: BestPlacement, budget: WorkBudget) -> BestPlacement:
        """Search for a lower placement than ``best``, for about a second.

        The exact search tries the lower bound first. If few buffers may decide the height, the
        bottleneck, these are then placed before the others.
        """
        if self._is_searchable() and not budget.is_over():
            from memplan_cli.packing.search.exact import try_bound

            best = try_bound(self._loaded_searcher(), best, budget)
        if self._has_bottleneck(best) and not best.may_stop(budget):
            best = self._by_bottleneck_subsets(best, budget)
        return best

    def search_thoroughly(self, best: BestPlacement, budget: WorkBudget) -> BestPlacement:
        """Search for the lowest placement, with the share of work that the gap of ``best`` is worth."""
        if best.may_stop(budget) or not self._is_searchable():
            return best
        from memplan_cli.packing.search.exact import shrink

        part = budget.share(max(LEAST_SEARCH_SHARE, best.worthwhile_share))
        return shrink(self._loaded_searcher(), best, part)

    def _loaded_searcher(self) -> Searcher:
        """Return the exact search of the piece, and report that it begins."""
        from memplan_cli.packing.search.exact import Searcher, is_compiled

        if self._searcher is None:
            self._searcher = Searcher(self.piece)
        first = "" if is_compiled() else ", which is compiled first"
        self._report(f"searching for a lower layout of {len(self.piece.size)} buffers{first}")
        return self._searcher

    def _by_bottleneck_subsets(self, best: BestPlacement, budget: WorkBudget) -> BestPlacement:
        """Lower a placement by searching its bottleneck subsets, with a share of the budget."""
        from memplan_cli.packing.bottleneck import lowered_by_subsets

        self._report(f"fitting {len(self.piece.size)} buffers around bottleneck subsets")
        part = budget.share(BOTTLENECK_SHARE * best.worthwhile_share)
        return lowered_by_subsets(self.piece, best, part)

    def _report(self, search: str) -> None:
        """Report a search that begins."""
        from memplan_cli.packing.compiled import HAS_NUMBA

        if not HAS_NUMBA:
            self.progress("packing, faster with numba: pip install 'memplan[fast]'")
        self.progress(Detail(search))

    def _is_searchable(self) -> bool:
        """Return whether the piece is small enough for the exact search."""
        return len(self.piece.size) <= SEARCHED_BUFFERS and _fits_in_int64(self.piece)

    def _has_bottleneck(self, best: BestPlacement) -> bool:
        """Return whether few buffers may decide the height, so that searching these is worth it."""
        buffers = len(self.piece.size)
        is_gap_wide = best.height > (1 + BOTTLENECK_GAP) * best.bound
        if buffers > BOTTLENECK_BUFFERS or (buffers > SEARCHED_BUFFERS and is_gap_wide):
            return False
        return best.worthwhile_share > LEAST_SEARCH_SHARE and _fits_in_int64(self.piece)


def _fits_in_int64(piece: Piece) -> bool:
    """Return whether compiled loops can count the units of a piece, with room for INFINITE."""
    return sum(piece.size) < 1 << 58
