"""The section of the plan report on regions that are computed in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report
    from memplan_cli.core.results.rewrites import ChunkedRegion

_HEADS = (
    "around", ">axis", ">chunks", ">nodes", ">peak before", ">peak after", ">saved", ">more work",
)  # fmt: skip


def chunking_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield the cost of chunking, whether its budget is met, and a table of the regions.

    Nothing is yielded if no region is chunked and no budget was set.
    """
    chunks = report.chunked
    if not chunks.regions and chunks.budget is None:
        return
    count = len(chunks.regions)
    more_or_fewer = "more" if chunks.nodes >= 0 else "fewer"
    line = (
        f"{counted(count, 'region')} computed in chunks: {abs(chunks.nodes)} {more_or_fewer} nodes, "
        f"{100 * chunks.flops_increase:.1f}% more work"
    )
    if chunks.needs:
        line += f". Lower bound: {chunks.needs}"
    rows = [_region_row(region) for region in chunks.regions]
    table = doc.first_rows(_HEADS, rows, "regions", max_rows)
    yield from doc.section("Computed in chunks", doc.Paragraph(line), table)


def _region_row(region: ChunkedRegion) -> tuple[doc.Prose, ...]:
    """Return the row of the table for a region, with the columns of `_HEADS`."""
    return (
        doc.Name(region.tensor),
        str(region.axis),
        str(region.pieces),
        str(region.nodes),
        format_size(region.before),
        format_size(region.after),
        format_size(max(region.before - region.after, 0)),
        f"{100 * region.flops_increase:.2f}%",
    )
