"""The HTML page of `memplan diff`: a map of each plan, and tables of metrics and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_change, format_share, format_size
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.timeline import main_arena, nodes_at
from memplan_cli.reporting.commands.diff import hidden_changes_text, metric_cells
from memplan_cli.reporting.escape import html, per_unit, terminal
from memplan_cli.reporting.pages.page_data import place_columns
from memplan_cli.reporting.pages.plan_page import assembled
from memplan_cli.reporting.plans.sections import known_only

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.commands.diff import Difference, MetricChange

_MAX_CHANGES = 500
"""Rows of the table of tensors."""

_SAME, _MORE, _LESS = 0, 1, 2
"""The color of a tensor in both maps: unchanged, or ``after`` takes more or fewer bytes for it."""

_TOTALS = ("planned", "live_peak", "total", "naive")
"""The first line shows the first of these metrics that is known on both sides."""


def render(before: Plan, after: Plan, difference: Difference) -> str:
    """Return the page of a difference; ``before`` and ``after`` are the plans of its two sides."""
    before, after = with_bound_symbols(before), with_bound_symbols(after)
    bytes_before, bytes_after = (
        {tensor.id: tensor.bytes for tensor in plan.tensors} for plan in (before, after)
    )
    colors = {
        name: _color(bytes_before.get(name, 0), bytes_after.get(name, 0))
        for name in bytes_before | bytes_after
    }
    data = {
        "sides": [
            _map_data(before, colors, other_bytes=bytes_after),
            _map_data(after, colors, other_bytes=bytes_before),
        ]
    }
    model_before, model_after = html(difference.before.model), html(difference.after.model)
    parts = {
        "title": f"{model_before} &rarr; {model_after}",
        "verdict": _verdict(difference),
        "metrics": "".join(map(_metric_row, difference.metrics)),
        "changes": "".join(_change_rows(difference)),
        "more": html(_caption(difference)),
        "notes": "".join(f"<li>{html(note)}</li>" for note in difference.notes),
        "before": model_before + html(_omissions(before)),
        "after": model_after + html(_omissions(after)),
        "footer": html(f"memplan {after.version}"),
    }
    return assembled("diff.html", ("base", "diff"), parts, data)


def _omissions(plan: Plan) -> str:
    """Return what a map leaves out, in brackets: unknown sizes, other arenas; empty if nothing."""
    arena, unknown_note = main_arena(plan), known_only(plan.report)
    notes = [unknown_note] if unknown_note else []
    if arena is None:
        notes.append("nothing is planned")
    elif len(plan.arenas) > 1 or arena.unit != "1":
        notes.append(f"sizes{per_unit(arena.unit)}: one of {len(plan.arenas)} arenas")
    return f" ({'; '.join(notes)})" if notes else ""


def _verdict(difference: Difference) -> str:
    """Return a paragraph on the first of `_TOTALS` that is known on both sides."""
    metrics = {metric.name: metric for metric in difference.metrics}
    for name in _TOTALS:
        metric = metrics.get(name)
        if metric is not None and metric.change is not None:
            return f'<p class="{_tone(metric.change) or "soft"}">{html(_sentence(metric))}</p>'
    return '<p class="soft">no total is known on both sides: sizes depend on dims</p>'


def _sentence(metric: MetricChange) -> str:
    """Return by how much a metric changed; it is known on both sides."""
    old, change = metric.before or 0, metric.change or 0
    if not change:
        return f"{metric.name} is the same: {format_size(old)}"
    word = "grew" if change > 0 else "shrank"
    share = f", {'+' if change > 0 else ''}{format_share(change, old)}" if old else ""
    return (
        f"{metric.name} {word} from {format_size(old)} to {format_size(old + change)} "
        f"({format_change(change)}{share})"
    )


def _tone(change: int | None) -> str:
    """Return the CSS class of a change; empty if it is 0 or unknown."""
    return "" if not change else "grew" if change > 0 else "shrank"


def _metric_row(metric: MetricChange) -> str:
    """Return a table row: the metric's name, its value before and after, and the change."""
    name, *cells = metric_cells(metric)
    kinds = ("n", "n", f"n {_tone(metric.change)}".strip())
    row = "".join(
        f'<td class="{kind}">{html(cell)}</td>'
        for kind, cell in zip(kinds, cells, strict=True)
    )
    return f'<tr><th scope="row">{html(name)}</th>{row}</tr>'


def _change_rows(difference: Difference) -> Iterator[str]:
    """Yield a table row for each tensor that changed the peak, up to `_MAX_CHANGES`."""
    for change in difference.changes[:_MAX_CHANGES]:
        yield (
            f'<tr><td class="n {_tone(change.effect)}">{html(format_change(change.effect))}</td>'
            f"<td>{html(change.tensor)}</td><td>{html(change.kind.value)}</td>"
            f"<td>{html(change.reason)}</td></tr>"
        )


def _caption(difference: Difference) -> str:
    if not difference.changes:
        return "no tensor at the peak changed"
    return hidden_changes_text(difference.changes, _MAX_CHANGES)


def _color(size_before: int, size_after: int) -> int:
    """Return the color of a tensor by its bytes in both plans; 0 bytes if it is not there."""
    if size_before == size_after:
        return _SAME
    return _MORE if size_after > size_before else _LESS


def _map_data(plan: Plan, colors: Mapping[str, int], other_bytes: Mapping[str, int]) -> Json:
    """Return the data of one plan's map: the tensors of its main arena with their colors.

    The page shows ``other_bytes``, those of the other plan, beside a tensor's own.
    """
    arena = main_arena(plan)
    tensors = tuple(t for t in plan.tensors if arena and t.arena == arena.id)
    ticks = max((tensor.last for tensor in plan.tensors), default=0)
    labels = nodes_at(plan)
    return {
        "height": arena.height if arena else 0,
        "ticks": ticks,
        "nodes": [terminal(labels.get(tick, "")) for tick in range(ticks)],
        **place_columns(tensors),
        "kind": [colors[t.id] for t in tensors],
        "was": [other_bytes.get(t.id) for t in tensors],
    }
