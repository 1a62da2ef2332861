"""One self-contained page: where the memory goes, to look at, search and print.

The page asks for nothing from any network: its policy names the digests of its own script
and style, so that nothing which a model's names smuggle in could run either.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import curve, main_arena, nodes_at, peak_tick
from memplan_cli.reporting.escape import html, script, terminal
from memplan_cli.reporting.media.html import draw
from memplan_cli.reporting.plans.memory import memory_figures, total_figures
from memplan_cli.reporting.plans.sections import plan_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.core.serialization import Json

_MOST_ROWS = 1000
"""Rows of each table below the map."""

_COLUMNS: Mapping[str, tuple[str, str]] = {
    "name": ("tensor", "w1"),
    "bytes": ("bytes", "w2 n"),
    "dtype": ("dtype", "w3"),
    "shape": ("shape", "w4"),
    "offset": ("offset", "w5 n"),
    "first": ("steps", "w6 n"),
    "made": ("made by", "w7"),
    "read": ("last read by", "w7"),
}


@dataclass(frozen=True, slots=True)
class Beside:
    """Another plan whose live bytes are laid over: the file's order, or another model."""

    label: str
    plan: Plan


def render(plan: Plan, beside: Beside | None = None) -> str:
    """Return the page of a plan."""
    report, page = plan.report, files("memplan_cli.reporting.plans") / "page"
    css, js = ((page / name).read_text("utf-8") for name in ("page.css", "page.js"))
    hidden = " hidden" if len(plan.arenas) < 2 else ""
    head, sections = draw(plan_document(plan, _MOST_ROWS))
    parts = {
        "policy": _policy(css, js),
        "css": css,
        "js": js,
        "title": html(report.model.path or "model"),
        "head": head,
        "cards": "".join(_cards(report)),
        "one_arena": hidden,
        "arenas": "".join(_arenas(plan)),
        "live": html(_about_live(plan)),
        "other": _other_key(beside),
        "columns": "".join(
            f'<th class="{kind}" data-key="{key}" data-name="{name}" scope="col">'
            f'<button type="button">{name}</button></th>'
            for key, (name, kind) in _COLUMNS.items()
        ),
        "sections": sections,
        "footer": html(f"memplan {plan.version}; model sha256 {report.model.sha256}"),
        "data": script(_data(plan, beside)),
    }
    template = (page / "page.html").read_text("utf-8")
    # One pass: what is put in is never looked at again for placeholders.
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], template)


def _policy(css: str, js: str) -> str:
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(css)}'; "
        f"script-src '{_digest(js)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(plan: Plan, beside: Beside | None) -> Json:
    main = main_arena(plan)
    curves = [_curve(plan, index) for index in range(len(plan.arenas))]
    ticks = max((tensor.last for tensor in plan.tensors), default=0)
    labels = nodes_at(plan)
    reasons = list(dict.fromkeys(t.pinned for t in plan.tensors if t.pinned))
    return {
        "arenas": [{"unit": terminal(a.unit), "height": a.height} for a in plan.arenas],
        "main": plan.arenas.index(main) if main else 0,
        "ticks": ticks,
        "nodes": [terminal(labels.get(tick, "")) for tick in range(ticks)],
        "curves": curves,
        "peaks": [peak_tick(tuple(zip(c["ticks"], c["bytes"], strict=True))) for c in curves],
        "other": _other_curve(beside),
        "reasons": [terminal(reason) for reason in reasons],
        "tensors": _tensors(plan, reasons),
    }


def _tensors(plan: Plan, reasons: Sequence[str]) -> Json:
    """Return the tensors column by column: a third of the bytes of one object each."""
    positions = {tensor.id: index for index, tensor in enumerate(plan.tensors)}
    arenas = {arena.id: index for index, arena in enumerate(plan.arenas)}
    reason = {text: index for index, text in enumerate(reasons)}
    tensors = plan.tensors
    return {
        "name": [terminal(t.id) for t in tensors],
        "dtype": [terminal(t.dtype) for t in tensors],
        "shape": [terminal(", ".join(str(dim) for dim in t.shape)) for t in tensors],
        "bytes": [t.bytes for t in tensors],
        "arena": [arenas[t.arena] for t in tensors],
        "offset": [t.offset for t in tensors],
        "first": [t.first for t in tensors],
        "last": [t.last for t in tensors],
        "alias": [positions[t.alias_of] if t.alias_of else -1 for t in tensors],
        "pinned": [reason[t.pinned] if t.pinned else -1 for t in tensors],
    }


def _curve(plan: Plan, index: int) -> Json:
    points = curve(plan, plan.arenas[index])
    return {"ticks": [tick for tick, _ in points], "bytes": [size for _, size in points]}


def _other_curve(beside: Beside | None) -> Json | None:
    main = main_arena(beside.plan) if beside else None
    if beside is None or main is None:
        return None
    return _curve(beside.plan, beside.plan.arenas.index(main))


def _other_key(beside: Beside | None) -> str:
    if beside is None:
        return ""
    return f'<span class="key then"></span>{html(beside.label)} '


def _arenas(plan: Plan) -> Iterator[str]:
    for index, arena in enumerate(plan.arenas):
        name = "fixed sizes" if arena.unit == "1" else f"multiples of {arena.unit}"
        yield f'<option value="{index}">{html(name)}</option>'


def _about_live(plan: Plan) -> str:
    peak = plan.report.peak
    where = f", highest at step {peak.step}, {peak.node}" if peak else ""
    return f"Live bytes over time{where}"


def _cards(report: Report) -> Iterator[str]:
    memory = {row.name: row for row in memory_figures(report)}
    totals = {row.name: row for row in total_figures(report)}
    for title, row in (
        ("without reuse", memory["naive"]),
        (f"planned at level {report.level}", memory[f"level {report.level}"]),
        ("lower bound", memory["lower bound"]),
        ("whole model", totals["total"]),
    ):
        saved = f" ({row.saved} saved)" if row.saved else ""
        sure = f"{row.certainty}: " if row.certainty else ""
        yield (
            f'<div><span class="soft">{html(title)}</span><strong>{html(row.value)}</strong>'
            f"<small>{html(sure + row.definition + saved)}</small></div>"
        )
