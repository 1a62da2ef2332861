"""Problem -> Layout: allocators, one file a strategy, and the table of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.packing.greedy import GREEDY, naive
from memplan_cli.packing.pools import level0, level1
from memplan_cli.packing.portfolio import exact, portfolio
from memplan_cli.packing.skyline import skyline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.problem import Allocator

ALLOCATORS: Mapping[str, Allocator] = {
    "naive": naive,
    "level0": level0,
    "level1": level1,
    **GREEDY,
    "skyline": skyline,
    "exact": exact,
    "portfolio": portfolio,
}
"""Every strategy by name; the portfolio is never taller than any other."""

__all__ = ["ALLOCATORS", "portfolio"]
