"""What a report says of outputs that reuse the buffers of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.core.results.observations import CPU
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.snippet import binding_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report


def donation(report: Report, most: int) -> Iterator[doc.Block]:
    """Yield each output with the input whose buffer it reuses, or why it may not."""
    found = report.donated
    rows: list[tuple[doc.Prose, ...]] = [
        (doc.Name(made), ("reuses the buffer of ", doc.Name(given)))
        for given, made in found.pairs
    ]
    rows += [(doc.Name(refusal.name), refusal.reason) for refusal in found.refused]
    if not rows:
        return
    table = doc.first_rows(("output", ""), rows[:most], len(rows) - most, "outputs")
    code = doc.Code(_donated_code(report)) if found.pairs else None
    yield from doc.section("Donated buffers", doc.Paragraph(donated_line(report)), table, code)


def donated_line(report: Report) -> str:
    """Return what donation saves."""
    found = report.donated
    refused = f"; {len(found.refused)} may not" if found.refused else ""
    # Over symbols what it saves is in the expression of the total alone.
    less = "" if report.symbolic else f", {format_size(found.bytes)} less in total"
    pairs = counted(len(found.pairs), "output")
    one = len(found.pairs) == 1
    words = "reuses the buffer of the input it replaces"
    words = words if one else "reuse the buffer of the input they replace"
    return f"{pairs} {words}{less}{refused}"


def _donated_code(report: Report) -> tuple[str, ...]:
    provider = report.runtime.provider if report.runtime else CPU
    lines = (
        "import json",
        "import onnxruntime as ort",
        "session = ...  # of the written model, with the settings of this report",
        'plan = json.load(open("PLAN.memplan.json"))',
    )
    pairs = '{made: given for given, made in plan["report"]["donated"]["pairs"]}'
    return (*lines, *filter(None, binding_lines(pairs, provider)))
