"""Packing: from a `Problem` (buffers with sizes and live ranges) to a `Layout` (offsets).

An allocator is a function ``Problem -> Layout`` and a row of `ALLOCATORS`. The modules:

    pieces            division of a problem into independent pieces, which are packed one by one
    skyline           fast and mostly optimal: the lowest valley is filled first
    portfolio         skyline, then the searches below, until the height is proved or the work spent
    search/           exact branch and bound for one piece
    bottleneck        exact search of the few large buffers, the others placed around them
    pools, slots      levels 0 and 1: slots that are reused whole; the layout without reuse
    problem_file      packing problems and layouts as CSV
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.packing.pools import level0, level1, naive
from memplan_cli.packing.portfolio import portfolio
from memplan_cli.packing.skyline import skyline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.problem import Allocator

ALLOCATORS: Mapping[str, Allocator] = {
    "naive": naive,
    "level0": level0,
    "level1": level1,
    "skyline": skyline,
    "portfolio": portfolio,
}
"""All allocators by name. No layout of any of them is lower than the portfolio's."""

__all__ = ["ALLOCATORS", "portfolio"]
