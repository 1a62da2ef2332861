"""The section of the plan report on donated buffers: outputs written over inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.core.results.observations import CPU
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.snippets import binding_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report


def donation_section(report: Report, max_rows: int) -> Iterator[doc.Block]:
    """Yield each output of a donation with the input whose buffer it reuses, or why it cannot.

    The section ends with Python code that binds the buffers. Nothing is yielded without donations.
    """
    donated = report.donated
    rows: list[tuple[doc.Prose, ...]] = [
        (doc.Name(output), ("reuses the buffer of ", doc.Name(input_name)))
        for input_name, output in donated.pairs
    ]
    rows += [(doc.Name(refusal.name), refusal.reason) for refusal in donated.refused]
    if not rows:
        return
    table = doc.first_rows(("output", ""), rows, "outputs", max_rows)
    code = doc.Code(_binding_code(report)) if donated.pairs else None
    yield from doc.section("Donated buffers", doc.Paragraph(donated_line(report)), table, code)


def donated_line(report: Report) -> str:
    """Return how many outputs reuse the buffer of an input, and how many bytes that saves."""
    donated = report.donated
    refused = f"; {len(donated.refused)} cannot" if donated.refused else ""
    # With symbolic dims the saving is only in the expression of the total.
    saving = "" if report.symbolic else f", {format_size(donated.bytes)} less in total"
    is_single = len(donated.pairs) == 1
    verb = "reuses" if is_single else "reuse"
    replaced = "input it replaces" if is_single else "input they replace"
    outputs = counted(len(donated.pairs), "output")
    return f"{outputs} {verb} the buffer of the {replaced}{saving}{refused}"


def _binding_code(report: Report) -> tuple[str, ...]:
    """Return Python code that binds the donated pairs of a plan file to one buffer each."""
    provider = report.runtime.provider if report.runtime else CPU
    lines = (
        "import json",
        "import onnxruntime as ort",
        "session = ...  # of the written model, with the settings of this report",
        'plan = json.load(open("PLAN.memplan.json"))',
        'pairs = plan["report"]["donated"]["pairs"]',
    )
    donated = "{output: input for input, output in pairs}"
    return (*lines, *filter(None, binding_lines(donated, provider)))
