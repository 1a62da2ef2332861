"""What `memplan diff` found, as text, Markdown or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_change, format_share, format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.reporting.escape import markdown, markdown_prose, shortened, terminal
from memplan_cli.reporting.plans.json_text import document
from memplan_cli.reporting.plans.markdown import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.reporting.findings.diff import Change, Difference, MetricChange
    from memplan_cli.reporting.findings.snapshot import Snapshot

MOST_CHANGES = 25
"""Tensors that a comparison names."""

MOST_IN_VERDICT = 10
"""Tensors that a gate names of one model, in every format but JSON."""


def text(found: Difference) -> str:
    """Return the numbers that changed, and the tensors that changed them."""
    return "\n".join(_lines(found)) + "\n"


def as_json(found: Difference) -> str:
    """Return everything as JSON, plain ASCII."""
    return document(to_json(found))


def as_markdown(found: Difference) -> str:
    """Return the same for a pull request."""
    title = f"## {markdown(_title(found.before))} to {markdown(_title(found.after))}"
    parts = [title, table(("", ">before", ">after", ">change"), map(_cells, found.metrics))]
    if found.changes:
        parts += ["### What changed the peak", changes_table(found, MOST_CHANGES)]
    if found.notes:
        parts.append("\n".join(f"- {markdown_prose(note)}" for note in found.notes))
    return "\n\n".join(parts) + "\n"


def changes_table(found: Difference, most: int) -> str:
    """Return the tensors that changed the peak, largest effect first."""
    rows = [
        (format_change(c.effect), markdown(c.tensor), c.kind.value, markdown_prose(c.reason))
        for c in found.changes[:most]
    ]
    left = len(found.changes) - most
    if left > 0:
        rows.append((format_change(_rest(found, most)), f"{left} more tensors", "", ""))
    return table((">effect", "tensor", "what", "why"), rows)


def change_line(change: Change) -> str:
    """Return one tensor's part in one line of text."""
    name = shortened(change.tensor, 60)
    return f"{format_change(change.effect):>12}  {name}: {terminal(change.reason)}"


def _title(snapshot: Snapshot) -> str:
    """Return a model's name; marked where its totals leave out what has no size."""
    return f"{snapshot.model} (partial)" if snapshot.partial else snapshot.model


def _lines(found: Difference) -> Iterator[str]:
    yield f"{terminal(_title(found.before))} -> {terminal(_title(found.after))}"
    for metric in found.metrics:
        name, before, after, change = _cells(metric)
        yield f"  {name:26} {before:>12} -> {after:>12}  {change}"
    if found.changes:
        yield "What changed the peak"
        yield from (f"  {change_line(change)}" for change in found.changes[:MOST_CHANGES])
        left = len(found.changes) - MOST_CHANGES
        if left > 0:
            rest = format_change(_rest(found, MOST_CHANGES))
            yield f"  {rest:>12}  {left} more tensors"
    else:
        yield "No tensor at the peak changed"
    yield from (f"  {terminal(note)}" for note in found.notes)


def _rest(found: Difference, most: int) -> int:
    return sum(change.effect for change in found.changes[most:])


def _cells(metric: MetricChange) -> tuple[str, str, str, str]:
    before, after = (
        "unknown" if size is None else format_size(size)
        for size in (metric.before, metric.after)
    )
    if metric.change is None or metric.before is None:
        return metric.name, before, after, ""
    share = f" ({format_share(metric.change, metric.before)})" if metric.change else ""
    return metric.name, before, after, format_change(metric.change) + share


RENDERERS: Mapping[str, Callable[[Difference], str]] = {
    "text": text,
    "json": as_json,
    "markdown": as_markdown,
}
