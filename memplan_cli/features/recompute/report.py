"""The section of the plan report on recomputed nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report


def recompute_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield the cost of recomputation, the lower bounds of the peak, and the curve of the search.

    Nothing is yielded if no node is recomputed and no budget was set. Whether the budget is met is not
    shown here, but at the top of the report.
    """
    recompute = report.recompute
    if not recompute.nodes and recompute.budget is None:
        return
    increase = f"{100 * recompute.flops_increase:.1f}% more FLOPs"
    line = f"{counted(recompute.nodes, 'node')} recomputed, {increase}"
    if recompute.bound is not None:
        line += f". Lower bound for any order and any recomputation: {format_size(recompute.bound)}"
    if recompute.resident_bound is not None:
        line += f", with the outputs {format_size(recompute.resident_bound)}"
    rows = [
        (format_size(point.peak), f"{100 * point.flops_increase:.1f}%", str(point.nodes))
        for point in recompute.curve
    ]
    heads = (">live peak", ">more FLOPs", ">nodes recomputed")
    table = doc.first_rows(heads, rows, "points", max_rows)
    yield from doc.section("Recomputation", doc.Paragraph(line), table)
