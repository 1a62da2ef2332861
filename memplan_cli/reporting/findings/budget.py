"""A budget that no plan found meets, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.rewrites import Chunks

if TYPE_CHECKING:
    from memplan_cli.core.results.report import Report
    from memplan_cli.core.results.rewrites import Recompute


def over_budget(report: Report) -> str:
    """Return that a plan misses its budget, and what the best takes; nothing if it is met."""
    return missed(report.memory.resident or 0, report.recompute, report.chunked)


def missed(best: int, recompute: Recompute, chunked: Chunks | None = None) -> str:
    """Return that a budget is missed: what was found, and what nothing goes below."""
    cut = chunked or Chunks()
    if not cut.met and cut.budget is not None:
        return _sentence(cut.budget, best, cut.needs and f", and {cut.needs}")
    if recompute.met or recompute.budget is None:
        return ""
    least = recompute.resident_bound or recompute.bound
    bound = "" if least is None else f", and no order can take less than {format_size(least)}"
    return _sentence(recompute.budget, best, bound and f"{bound}, outputs counted")


def _sentence(budget: int, best: int, bound: str) -> str:
    return (
        f"the budget of {format_size(budget)} cannot be met: the best found takes "
        f"{format_size(best)}{bound}"
    )
