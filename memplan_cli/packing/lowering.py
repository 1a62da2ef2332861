"""Lowering of one piece that the cheap strategies left above the lower bound.

First the methods that take about a second: the search at the bound, bottleneck subsets with
the other buffers fitted around them, and ejection chains. Then the long search, with all the
work that is left.

numba and the compiled loops are loaded here, when a piece is lowered, and nowhere else: an
easy model never pays for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.packing.greedy import STRATEGIES, place
from memplan_cli.packing.pieces import height_of
from memplan_cli.packing.skyline import best_sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.packing.budget import BestPlacement, Budget
    from memplan_cli.packing.pieces import Piece, Placement
    from memplan_cli.packing.search.exact import Searcher

SEARCHABLE = 6_000
"""Buffers of the largest piece that is searched; a step looks at all of them."""

BOTTLENECK_BUFFERS = 20_000
"""Buffers of the largest piece of which bottleneck subsets are searched."""

SPREAD = 0.02
"""Gap, as a share of the bound, above which no few buffers decide in a piece too large to be
searched whole."""

REPAIR_BUFFERS = 500_000
"""Buffers of the largest piece that is repaired by ejection chains."""

QUICK = 300
"""Buffers up to which strategies that look at all pairs take less time than loading the search."""

BOTTLENECK = 0.2
"""Share of the work for searching bottleneck subsets, where the gap is worth it."""

REPAIR = 0.6
"""Share of what is left then for ejection chains: begun anew they gain little."""

LEAST = 0.1
"""Share of the work that the long search may do, however small the gap is; where the gap
deserves no more than that, nothing but the long search is tried."""


def cheapest(piece: Piece, goal: int) -> Placement:
    """Return the best of what takes little time, the first that reaches the goal if any."""
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


@dataclass(slots=True)
class Lowering:
    """One piece, and the memory of the search for it."""

    piece: Piece
    progress: Callable[[str], None]
    _known: Searcher | None = field(default=None, init=False)

    def quickly(self, best: BestPlacement, budget: Budget) -> BestPlacement:
        """Lower a placement by the methods that take about a second."""
        if self._is_searchable() and not budget.is_over():
            from memplan_cli.packing.search.exact import reach

            best = reach(self._searcher(), best, budget)
        if self._has_bottleneck(best) and not budget.is_enough(best):
            best = self._by_bottleneck_subsets(best, budget)
        if self._is_fitted(best) and not budget.is_enough(best):
            best = self._repaired(best, budget)
        return best

    def thoroughly(self, best: BestPlacement, budget: Budget) -> BestPlacement:
        """Lower a placement as far as the work allows."""
        if budget.is_enough(best):
            return best
        part = budget.share(max(LEAST, best.deserved_share))
        if self._is_searchable():
            from memplan_cli.packing.search.exact import shrink

            best = shrink(self._searcher(), best, part)
        elif self._is_fitted(best):
            best = self._repaired(best, part)
        budget.charge(part.spent)
        return best

    def _searcher(self) -> Searcher:
        if self._known is None:
            from memplan_cli.packing.search.exact import Searcher, prepare

            prepare(self.progress)
            self._known = Searcher(self.piece)
        self.progress(f"searching for a lower layout of {len(self.piece.size)} buffers")
        return self._known

    def _by_bottleneck_subsets(self, best: BestPlacement, budget: Budget) -> BestPlacement:
        """Search the few buffers that decide, and fit the others around them."""
        from memplan_cli.packing.bottleneck import lowered_by_subsets
        from memplan_cli.packing.search.exact import prepare

        prepare(self.progress)
        self.progress(f"fitting {len(self.piece.size)} buffers around bottleneck subsets")
        part = budget.share(BOTTLENECK * best.deserved_share)
        best = lowered_by_subsets(self.piece, best, part)
        budget.charge(part.spent)
        return best

    def _repaired(self, best: BestPlacement, budget: Budget) -> BestPlacement:
        """Repair the placement by ejection chains."""
        from memplan_cli.packing.ejection_chains import lowered_by_chains

        self.progress(
            f"repairing the layout of {len(self.piece.size)} buffers by ejection chains"
        )
        part = budget.share(REPAIR * best.deserved_share)
        best = lowered_by_chains(self.piece, best, part)
        budget.charge(part.spent)
        return best

    def _is_searchable(self) -> bool:
        return len(self.piece.size) <= SEARCHABLE and _is_countable(self.piece)

    def _has_bottleneck(self, best: BestPlacement) -> bool:
        few = len(self.piece.size) <= BOTTLENECK_BUFFERS
        spread = len(self.piece.size) > SEARCHABLE and best.height > (1 + SPREAD) * best.bound
        return few and not spread and self._is_fitted(best)

    def _is_fitted(self, best: BestPlacement) -> bool:
        few = len(self.piece.size) <= REPAIR_BUFFERS
        return few and best.deserved_share > LEAST and _is_countable(self.piece)


def _is_countable(piece: Piece) -> bool:
    # Compiled loops count in 64 bits and keep sentinels above every offset.
    return sum(piece.size) < 1 << 58
