"""The report as GitHub's Markdown: for step summaries, pull requests and wikis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.planning.print_log import print_log
from memplan_cli.reporting.escape import markdown, markdown_prose
from memplan_cli.reporting.plans.asked import (
    PROFILE_COLUMNS,
    curve_rows,
    donated_code,
    donated_line,
    donated_rows,
    profile_rows,
    profiles_line,
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
from memplan_cli.reporting.plans.precision import HEADER, wide_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

MOST_ROWS = 20
"""Rows of each table, so that a report stays a page."""


def render(plan: Plan) -> str:
    """Return the report of a plan as Markdown."""
    return "\n\n".join(_parts(plan)) + "\n"


def render_logged(plan: Plan) -> str:
    """Return the report with the lines of ``--print-log`` below it."""
    lines = "\n".join(f"- {markdown(line)}" for line in print_log(plan))
    return f"{render(plan)}\n### Reuse, in the order of the plan\n\n{lines}\n"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; a column whose header begins with ``>`` is of numbers."""
    names = list(header)
    lines = [
        _line(name.removeprefix(">") for name in names),
        _line("---:" if name.startswith(">") else "---" for name in names),
    ]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _parts(plan: Plan) -> Iterator[str]:
    report = plan.report
    yield f"## Memory of {markdown(report.model.path or 'model')}"
    yield f"**{markdown_prose(verdict(report))}** ({headline(report)})"
    yield from _numbers(report)
    yield from _peak(plan)
    yield from _wide(plan)
    yield from _asked_for(plan)
    yield from _runtime(plan)
    yield from _refusals(plan)
    if report.warnings:
        yield "### Warnings"
        yield "\n".join(f"- {markdown_prose(warning)}" for warning in report.warnings)


def _numbers(report: Report) -> Iterator[str]:
    """Yield the intermediates' memory and the whole model's; sizes may hold its symbols."""
    yield table(
        ("intermediates", ">bytes", ">saved", "", "meaning"),
        (
            (
                f"**{row.name}**" if row.chosen else row.name,
                markdown_prose(row.size),
                row.saved,
                row.certainty,
                row.definition,
            )
            for row in memory_rows(report)
        ),
    )
    yield table(
        ("whole model", ">bytes", "", "meaning"),
        (
            (row.name, markdown_prose(row.size), row.certainty, row.definition)
            for row in total_rows(report)
        ),
    )
    if lines := certainty_lines(report):
        yield "; ".join(lines)


def _refusals(plan: Plan) -> Iterator[str]:
    rows = refused(plan)
    if not rows:
        return
    yield "### Not reused, and why"
    yield table(
        (">tensors", ">bytes", "reason", "for example"),
        (
            (
                str(row.count),
                format_size(row.bytes) if row.bytes else "-",
                markdown_prose(row.reason),
                ", ".join(markdown(name) for name in row.examples),
            )
            for row in rows[:MOST_ROWS]
        ),
    )


def _peak(plan: Plan) -> Iterator[str]:
    peak = plan.report.peak
    if peak is None or not peak.tensors:
        return
    whole = sum(size for _, size in peak.tensors)
    yield f"### At the peak: step {peak.step}, {markdown(peak.node)}"
    yield table(
        ("tensor", ">bytes", ">share"),
        (
            (markdown(name), format_size(size), format_share(size, whole))
            for name, size in peak.tensors[:MOST_ROWS]
        ),
    )
    if len(peak.tensors) > MOST_ROWS:
        yield f"and {len(peak.tensors) - MOST_ROWS} more"


def _wide(plan: Plan) -> Iterator[str]:
    wide = wide_tensors(plan)
    if wide is None:
        return
    yield f"### Not at 16 bits\n\n{markdown_prose(wide.line)}"
    yield table(HEADER, (tuple(map(markdown, row)) for row in wide.rows[:MOST_ROWS]))
    if len(wide.rows) > MOST_ROWS:
        yield f"and {len(wide.rows) - MOST_ROWS} more"


def _asked_for(plan: Plan) -> Iterator[str]:
    report = plan.report
    if line := profiles_line(report):
        yield f"### Each binding\n\n{markdown_prose(line)}"
        yield table(PROFILE_COLUMNS, (tuple(map(markdown, r)) for r in profile_rows(report)))
    if line := recompute_line(report):
        yield f"### Recomputed\n\n{markdown_prose(line)}"
        if report.recompute.curve:
            header = (">live peak", ">more work", ">nodes run again")
            yield table(header, curve_rows(report))
    if line := donated_line(report):
        yield f"### Donated\n\n{markdown_prose(line)}"
        rows = donated_rows(report)[:MOST_ROWS]
        yield table(("output", ""), ((markdown(n), markdown_prose(w)) for n, w in rows))
        if code := donated_code(report):
            yield "\n".join(("```python", *code, "```"))


def _runtime(plan: Plan) -> Iterator[str]:
    runtime = plan.report.runtime
    rows = evidence_rows(runtime)
    if runtime is not None and rows:
        name = markdown_prose(f"{runtime.name} {runtime.version}, {runtime.provider}")
        yield f"### Predicted and observed: {name}"
        yield table(EVIDENCE_HEADER, (row.cells for row in rows))
    lines = settings_lines(runtime)
    if lines:
        yield "### Settings of the written model"
        yield "\n".join(f"- {markdown(line)}" for line in lines)
    yield markdown_prose(validation_line(plan.report))
