"""What a report says of dims: their numbers, who said them, and plans for several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.memory import DEFINITIONS
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.findings.assumed import assumed_of, named_dims
from memplan_cli.reporting.findings.hints import command_with_numbers, options_with_numbers
from memplan_cli.reporting.plans import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.report import Report

_SIZES = ("inputs", "outputs", "naive", "live_peak", "resident", "planned", "total")
"""What a row of a binding says of its memory."""


def of_dims(report: Report) -> Iterator[doc.Block]:
    """Yield which numbers dims have, and what says otherwise."""
    yield from (doc.Paragraph(line, "soft") for line in _who_said(report))
    yield from _other_numbers(report)


_SOURCES = {"given": "given", "inputs": "from the inputs"}


def _who_said(report: Report) -> Iterator[str]:
    """Yield which numbers dims have, who said so, and how to say otherwise."""
    for source, words in _SOURCES.items():
        said = _dims_of(report, source)
        if said:
            yield f"{words}: {named_dims(said)}"


def _other_numbers(report: Report) -> Iterator[doc.Block]:
    """Yield what was assumed of the inputs' dims, and the options that say otherwise."""
    if assumed := assumed_of(report):
        said, words = (
            f"assumed {named_dims(assumed)}; say otherwise with",
            options_with_numbers,
        )
    else:
        said, words = "with numbers of your own for the dims:", command_with_numbers
    if code := words(report):
        yield doc.Paragraph(said, "soft")
        yield doc.Code((code,), doc.SHELL)


def _dims_of(report: Report, source: str) -> dict[str, int]:
    return {name: dim.value for name, dim in report.bindings.items() if dim.source == source}


def for_all_dims(report: Report) -> Iterator[doc.Block]:
    """Yield the expressions of a symbolic plan, where the numbers are those at assumed dims."""
    if report.memory.naive is None:
        return
    rows = tuple(
        doc.Figure(name, report.symbolic[key], DEFINITIONS[key])
        for key, name in _EXPRESSIONS.items()
        if key in report.symbolic
    )
    if rows:
        yield from doc.section("For all dims", doc.Figures(rows))


_EXPRESSIONS = {
    "inputs": "inputs",
    "outputs": "outputs",
    "naive": "naive",
    "live_peak": "lower bound",
    "resident": "resident",
    "planned": "planned",
    "total": "total",
}


def bindings(report: Report) -> Iterator[doc.Block]:
    """Yield what each binding needs alone, where the plan holds for several."""
    if not report.profiles:
        return
    planned = report.memory.planned
    size = "" if planned is None else f" takes {format_size(planned)} and"
    line = f"this plan{size} was checked at each; what a plan for each alone takes:"
    rows = tuple(
        (
            binding_text(row.dims),
            *(runtime.size_or_dash(getattr(row.memory, name)) for name in _SIZES),
        )
        for row in report.profiles
    )
    heads = doc.columns("dims", *(f">{name.replace('_', ' ')}" for name in _SIZES))
    yield from doc.section("Each binding", doc.Paragraph(line), doc.Table(heads, rows))
