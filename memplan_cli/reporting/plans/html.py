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

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.timeline import curve, main_arena, nodes_at, peak_tick
from memplan_cli.reporting.escape import html, script, terminal
from memplan_cli.reporting.plans.asked import (
    curve_rows,
    donated_code,
    donated_line,
    donated_rows,
    recompute_line,
)
from memplan_cli.reporting.plans.facts import (
    EVIDENCE_HEADER,
    certainty_lines,
    evidence_rows,
    headline,
    memory_rows,
    refused,
    settings_lines,
    total_rows,
    validation_line,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report, RuntimeFacts
    from memplan_cli.core.serialization import Json
    from memplan_cli.reporting.plans.facts import Row

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
    parts = {
        "policy": _policy(css, js),
        "css": css,
        "js": js,
        "title": html(report.model.path or "model"),
        "mood": "soft" if report.saved is None else "verdict",
        "verdict": html(verdict(report)),
        "headline": html(headline(report)),
        "cards": "".join(_cards(report)),
        "one_arena": hidden,
        "arenas": "".join(
            f'<option value="{index}">{html(_arena_name(arena.unit))}</option>'
            for index, arena in enumerate(plan.arenas)
        ),
        "live": html(_about_live(plan)),
        "other": _other_key(beside),
        "columns": "".join(
            f'<th class="{kind}" data-key="{key}" data-name="{name}" scope="col">'
            f'<button type="button">{name}</button></th>'
            for key, (name, kind) in _COLUMNS.items()
        ),
        "sections": "".join(_sections(plan)),
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


def _arena_name(unit: str) -> str:
    return "fixed sizes" if unit == "1" else f"multiples of {unit}"


def _about_live(plan: Plan) -> str:
    peak = plan.report.peak
    where = f", highest at step {peak.step}, {peak.node}" if peak else ""
    return f"Live bytes over time{where}"


def _cards(report: Report) -> Iterator[str]:
    memory = {row.name: row for row in memory_rows(report)}
    totals = {row.name: row for row in total_rows(report)}
    for title, row in (
        ("without reuse", memory["naive"]),
        (f"planned at level {report.level}", memory[f"level {report.level}"]),
        ("lower bound", memory["lower bound"]),
        ("whole model", totals["total"]),
    ):
        saved = f" ({row.saved} saved)" if row.saved else ""
        sure = f"{row.certainty}: " if row.certainty else ""
        yield (
            f'<div><span class="soft">{html(title)}</span><strong>{html(row.size)}</strong>'
            f"<small>{html(sure + row.definition + saved)}</small></div>"
        )


def _sections(plan: Plan) -> Iterator[str]:
    report = plan.report
    yield '<div class="pair">'
    yield _section("Intermediates", _row_table(memory_rows(report)))
    legend = f'<p class="soft">{html("; ".join(certainty_lines(report)))}</p>'
    yield _section("Whole model", _row_table(total_rows(report)) + legend)
    yield "</div>"
    yield from _asked_for(report)
    yield from _runtime(report.runtime)
    reasons = (
        (
            str(r.count),
            format_size(r.bytes) if r.bytes else "-",
            r.reason,
            ", ".join(r.examples),
        )
        for r in refused(plan)
    )
    header = (">tensors", ">bytes", "reason", "for example")
    yield _section("Not reused, and why", _table(header, reasons))
    if report.orders:
        orders = ((name, format_size(size)) for name, size in report.orders.items())
        yield _section("Orders that were tried", _table(("order", ">live peak"), orders))
    notes = (validation_line(report), *report.warnings)
    yield _section("Validation and warnings", _list(notes))


def _asked_for(report: Report) -> Iterator[str]:
    if line := recompute_line(report):
        header = (">live peak", ">more work", ">nodes run again")
        yield _section(
            "Recomputed", f"<p>{html(line)}</p>{_table(header, curve_rows(report))}"
        )
    if line := donated_line(report):
        rows = _table(("output", ""), donated_rows(report))
        code = "\n".join(map(html, donated_code(report)))
        shown = f"<pre>{code}</pre>" if code else ""
        yield _section("Donated", f"<p>{html(line)}</p>{rows}{shown}")


def _runtime(runtime: RuntimeFacts | None) -> Iterator[str]:
    rows = evidence_rows(runtime)
    if runtime is None or not rows:
        yield _section("Predicted and observed", "<p>Nothing was run.</p>")
        return
    name = html(f"{runtime.name} {runtime.version}, {runtime.provider}")
    evidence = _table(EVIDENCE_HEADER, (row.cells for row in rows))
    yield '<div class="pair">'
    yield _section(f"Predicted and observed: {name}", evidence)
    yield _section("Settings of the written model", _list(settings_lines(runtime)))
    yield "</div>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>\n"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{html(line)}</li>' for line in lines)}</ul>"


def _row_table(rows: Sequence[Row]) -> str:
    lines = [
        f'<tr{_chosen(row)}><td>{html(row.name)}<small class="soft">{html(row.definition)}'
        f'</small></td><td class="n">{html(row.size)}<small>{html(row.certainty)}</small></td>'
        f'<td class="n">{html(row.saved)}</td></tr>'
        for row in rows
    ]
    return f"<table><tbody>{''.join(lines)}</tbody></table>"


def _chosen(row: Row) -> str:
    return ' class="chosen"' if row.chosen else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    kinds = [' class="n"' if name.startswith(">") else "" for name in header]
    head = "".join(
        f'<th scope="col"{kind}>{html(name.removeprefix(">"))}</th>'
        for name, kind in zip(header, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{html(c)}</td>" for c, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
