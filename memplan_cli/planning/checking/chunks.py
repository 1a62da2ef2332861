"""Checks that what a plan file says of regions in pieces agrees with the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan


def check_chunks(plan: Plan) -> None:
    """Refuse regions that nobody asked for, in fewer than two pieces, or a budget misjudged.

    Raises:
        PlanError: naming what is said.
    """
    report = plan.report
    found = report.chunked
    if found.regions and plan.settings.get("chunk") != "auto":
        raise PlanError("regions are recorded as chunked, which the settings do not ask for")
    for region in found.regions:
        if region.pieces < 2 or not region.nodes:
            raise PlanError(
                f"the region around {region.tensor[:120]!r} is recorded as {region.nodes} nodes "
                f"in {region.pieces} pieces"
            )
    if found.budget is not None and report.memory.resident is not None:
        fits = report.memory.resident <= found.budget
        if found.met != fits:
            raise PlanError(
                f"the budget of {found.budget} is recorded as "
                f"{'met' if found.met else 'not met'}, and the resident peak is "
                f"{report.memory.resident}"
            )
