"""What is computed in pieces, as a document has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.chunks import ChunkedRegion, Chunks

_HEADS = (
    "around", ">axis", ">pieces", ">nodes", ">peak before", ">peak in it", ">saved", ">more work",
)  # fmt: skip


def pieces(found: Chunks, most: int) -> Iterator[doc.Block]:
    """Yield what is computed in pieces, what each region saves, and what that costs."""
    if not found.regions and found.budget is None:
        return
    count = len(found.regions)
    more = f"{abs(found.nodes)} nodes {'more' if found.nodes >= 0 else 'fewer'}"
    line = (
        f"{count} {'region' if count == 1 else 'regions'} in pieces, {more}, "
        f"{100 * found.flops_increase:.1f}% more work"
    )
    if found.budget is not None:
        met = "met" if found.met else "not met"
        line += f"; the budget of {format_size(found.budget)} is {met}"
    if found.needs:
        line += f"; {found.needs}"
    rows = list(map(_row, found.regions[:most]))
    table = doc.first_rows(_HEADS, rows, count - len(rows), "regions")
    yield from doc.section("In pieces", doc.Paragraph(line), table)


def _row(region: ChunkedRegion) -> tuple[doc.Prose, ...]:
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
