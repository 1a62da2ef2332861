"""The sections of the plan report on chunks: the regions, and memory against time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report
    from memplan_cli.core.results.rewrites import ChunkedRegion, ChunkingSummary, ChunkPoint

_HEADS = (
    "around", ">axis", ">chunks", ">nodes", ">peak before", ">peak after", ">saved", ">more work",
)  # fmt: skip


_CURVE_HEADS = (">live peak", ">longer run, predicted", ">nodes", "")


def chunking_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield the cost of chunking, a table of the regions, and the curve of memory and time.

    Nothing is yielded if chunks were not asked for.
    """
    chunks = report.chunked
    if not chunks.regions and chunks.budget is None and not chunks.curve:
        return
    line = _summary_line(chunks)
    if chunks.bound_text:
        line += f". Lower bound: {chunks.bound_text}"
    rows = [_region_row(region) for region in chunks.regions]
    table = doc.first_rows(_HEADS, rows, "regions", max_rows)
    yield from doc.section("Computed in chunks", doc.Paragraph(line), table)
    # A run without a budget asks which budgets there are. The curve is the answer, so it is shown
    # even if tables have no rows. Its first point is the program without chunks.
    if len(chunks.curve) > 1 and (max_rows or chunks.budget is None):
        yield from _curve_section(chunks)
    if chunks.ended_early and (chunks.budget is None or not chunks.met):
        yield doc.Paragraph(
            "The search ended at its limit. A longer one, with --time-limit, may find less memory."
        )


def _summary_line(chunks: ChunkingSummary) -> str:
    """Return what all chunks cost, or why there are none."""
    if chunks.regions:
        more_or_fewer = "more" if chunks.nodes >= 0 else "fewer"
        return (
            f"{counted(len(chunks.regions), 'region')} computed in chunks: "
            f"{abs(chunks.nodes)} {more_or_fewer} nodes, {100 * chunks.flops_increase:.1f}% more work"
        )
    # The curve has the program without chunks, then those with chunks that have a lower live peak.
    if chunks.budget is not None and chunks.met and chunks.curve:
        needed = format_size(chunks.curve[0].peak)
        reason = f"without chunks the model needs {needed}, which is within the budget"
    elif len(chunks.curve) > 1:
        # Here there is no budget: a budget that is met ends above, and for one that is not met the last program of
        # the curve is planned, which has regions.
        reason = "programs with chunks have a lower live peak, but need more memory in a process, or more work"
    else:
        reason = "no program with chunks was found that has a lower live peak"
    return f"No region is computed in chunks: {reason}"


def _curve_section(chunks: ChunkingSummary) -> Iterator[doc.Block]:
    """Yield a chart and a table of the programs that were found."""
    rows = [
        (
            format_size(point.peak),
            _longer(point),
            f"{point.nodes:+d}",
            "taken" if point.taken else "",
        )
        for point in chunks.curve
    ]
    # The chart has time in tenths of a percent, and room to the right of the last point.
    tenths = [round(1000 * (point.time - 1)) for point in chunks.curve]
    points = tuple(
        (tenth, point.peak) for tenth, point in zip(tenths, chunks.curve, strict=True)
    )
    taken = next(index for index, point in enumerate(chunks.curve) if point.taken)
    first, last = chunks.curve[0], chunks.curve[-1]
    caption = (
        f"memory against time: from {format_size(first.peak)} to {format_size(last.peak)} in runs that are predicted to take "
        f"{_longer(first)} to {_longer(last)} longer; taken: {_longer(chunks.curve[taken])}"
    )
    chart = doc.Chart(points, tenths[-1] + tenths[-1] // 20 + 1, tenths[taken], caption)
    table = doc.first_rows(_CURVE_HEADS, rows, "plans")
    yield from doc.section("Memory against time", chart, table)


def _longer(point: ChunkPoint) -> str:
    return f"{100 * (point.time - 1):.1f}%"


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
