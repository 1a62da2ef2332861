"""What `memplan diff` found, as a document and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_change, format_share, format_size
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import shortened, terminal
from memplan_cli.reporting.media import renderers
from memplan_cli.reporting.media.json_text import result_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.reporting.findings.diff import Change, Difference, MetricChange

_MOST_CHANGES = 25
"""Tensors that a comparison names."""


def document(found: Difference) -> doc.Document:
    """Return the numbers that changed, and the tensors that changed them."""
    sides = (found.before, found.after)
    # Totals of a partial one leave out what has no size.
    marks = [" (partial)" if side.partial else "" for side in sides]
    before, after = (doc.Name(side.model) for side in sides)
    unchanged = doc.Paragraph("No tensor at the peak changed")
    changed = doc.section("What changed the peak", changes(found, _MOST_CHANGES))
    blocks = (
        doc.Table(
            doc.columns("", ">before", ">after", ">change"),
            tuple(map(metric_cells, found.metrics)),
        ),
        *(changed if found.changes else (unchanged,)),
        *doc.section("Notes", doc.Items(found.notes) if found.notes else None),
    )
    return doc.Document((before, f"{marks[0]} -> ", after, marks[1]), blocks)


def changes(found: Difference, most: int) -> doc.Table:
    """Return the tensors that changed the peak, largest effect first."""
    rows = tuple(
        (
            format_change(change.effect),
            doc.Name(change.tensor),
            change.kind.value,
            change.reason,
        )
        for change in found.changes[:most]
    )
    rest = found.changes[most:]
    effect = format_change(sum(change.effect for change in rest))
    caption = f"{effect}: {len(rest)} more tensors" if rest else ""
    return doc.Table(doc.columns(">effect", "tensor", "what", "why"), rows, caption)


def change_line(change: Change) -> str:
    """Return one tensor's part in one line, for formats that know no tables."""
    name, reason = shortened(change.tensor, 60), terminal(change.reason)
    return f"{format_change(change.effect)} {name}: {reason}"


def metric_cells(metric: MetricChange) -> tuple[str, str, str, str]:
    """Return a number's name, what it was, what it is, and the change, where it is known."""
    before, after = (
        "unknown" if size is None else format_size(size)
        for size in (metric.before, metric.after)
    )
    if metric.change is None or metric.before is None:
        return metric.name, before, after, ""
    share = f" ({format_share(metric.change, metric.before)})" if metric.change else ""
    return metric.name, before, after, format_change(metric.change) + share


RENDERERS: Mapping[str, Callable[[Difference], str]] = {
    **renderers(document, "text", "markdown"),
    "json": lambda found: result_json("diff", found),
}
