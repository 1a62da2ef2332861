"""Portfolio of all strategies: the lowest layout found, and whether it is proved optimal.

Cheap strategies come first and the first that reaches the lower bound ends the work. Only
where none does, pieces are lowered, which may take seconds.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import Detail, silent
from memplan_cli.packing.budget import BestPlacement, Budget
from memplan_cli.packing.greedy import naive
from memplan_cli.packing.lowering import Lowering, cheapest
from memplan_cli.packing.pieces import height_of, layout_of, reduce
from memplan_cli.packing.pools import level0, level1

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.problem import Layout, Problem
    from memplan_cli.packing.pieces import Placement, Reduction

DEFAULT_WORK = 1_500_000_000
"""Units of work for the search, about one buffer or section looked at: some ten seconds."""


def portfolio(
    problem: Problem,
    *,
    work: int = DEFAULT_WORK,
    time_limit: float | None = None,
    enough: int = 0,
    pools: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Layout:
    """Return the best layout found, and whether it is proved to be the best there is.

    Args:
        problem: What to place.
        work: How much searching may be done; the result depends on it and on nothing else.
        time_limit: Seconds after which the search stops, whatever work is left. Only cuts
            short: what is found without it is never worse.
        enough: Bytes below which it matters no more; the search stops at such a layout.
        pools: Whether levels 0 and 1 compete too, and no reuse; not where the caller has them.
        progress: Told that packing begins, and details of it.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    reduction = reduce(problem)
    cheap = [cheapest(piece, reduction.load) for piece in reduction.pieces]
    found = layout_of(reduction, cheap)
    if found.proved:
        return found
    known = [level1(problem), level0(problem), naive(problem)] if pools else []
    best = min([found, *known], key=lambda layout: layout.height)
    bound = max(reduction.load * reduction.unit, reduction.floor)
    if best.height > max(bound, enough) and work > 0:
        budget = Budget(work, deadline, enough=enough // reduction.unit)
        tell = progress or silent
        tell("packing")
        found, bound = _searched(reduction, cheap, budget, lambda text: tell(Detail(text)))
        best = min([found, *known], key=lambda layout: layout.height)
    return replace(best, proved=best.height <= bound)


def exact(problem: Problem) -> Layout:
    """Search for the lowest layout, starting from what the cheap strategies find."""
    reduction = reduce(problem)
    cheap = [cheapest(piece, reduction.load) for piece in reduction.pieces]
    found, bound = _searched(reduction, cheap, Budget(DEFAULT_WORK), silent)
    return replace(found, proved=found.height <= bound)


def _searched(
    reduction: Reduction,
    known: list[Placement],
    budget: Budget,
    progress: Callable[[str], None],
) -> tuple[Layout, int]:
    """Lower the pieces that are above the goal, the tallest first: by what is quick, then all.

    Returns the layout, and the bytes that no layout can go below. A piece that cannot reach
    the lower bound raises the goal for all after it: the arena is as tall as the worst.
    """
    placements = list(known)
    pieces = reduction.pieces
    lowerings = [Lowering(piece, progress) for piece in pieces]
    bound = reduction.load
    for lower in (Lowering.quickly, Lowering.thoroughly):
        goal = bound
        heights = [height_of(*pair) for pair in zip(pieces, placements, strict=True)]
        for index in sorted(range(len(pieces)), key=lambda i: (-heights[i], i)):
            height = heights[index]
            if height > goal:
                found = lower(
                    lowerings[index], BestPlacement(placements[index], height, goal), budget
                )
                placements[index], height = found.placement, found.height
                if found.bound > goal:
                    bound = max(bound, found.bound)
            goal = max(goal, height)
    layout = layout_of(reduction, placements)
    return layout, max(bound * reduction.unit, reduction.floor)
