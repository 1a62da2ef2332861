"""What `memplan gate` found, as a document: the models at a glance, then what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_change, format_size
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.commands.diff import changes
from memplan_cli.reporting.commands.gate_formats import (
    MOST_CHANGES,
    github_commands,
    junit,
    sarif,
)
from memplan_cli.reporting.findings.gate import GateVerdicts
from memplan_cli.reporting.media import drawn, renderers
from memplan_cli.reporting.media.json_text import result_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.reporting.findings.gate import Verdict

_LARGEST_MARKDOWN = 60_000
"""Bytes; GitHub refuses comments of 64 KiB, and people add words of their own."""

_HEADS = ("", "model", "metric", ">baseline", ">now", ">change")


def document(verdicts: tuple[Verdict, ...], most: int | None = None) -> doc.Document:
    """Return a row for each metric of a model, failed ones first, and what was found.

    Args:
        verdicts: One a model.
        most: Models that are shown; None: all of them.
    """
    ordered = sorted(verdicts, key=lambda verdict: (verdict.passed, verdict.snapshot.model))
    shown, left = ordered[:most], len(ordered[most:]) if most is not None else 0
    caption = f"and {left} more models; --format json has all" if left else ""
    rows = tuple(row for verdict in shown for row in _rows(verdict))
    failed = sum(not verdict.passed for verdict in verdicts)
    found = (block for verdict in shown for block in _found(verdict))
    return doc.Document(
        f"Memory gate: {failed} failed, {len(verdicts) - failed} passed",
        (doc.Table(doc.columns(*_HEADS), rows, caption), *found),
    )


def _rows(verdict: Verdict) -> Iterator[tuple[doc.Prose, ...]]:
    before = verdict.difference.before.metrics if verdict.difference else {}
    after = verdict.snapshot.metrics
    partial = " (partial)" if verdict.snapshot.partial else ""
    recorded = ", recorded" if verdict.recorded else ""
    head = (f"{_word(verdict)}{recorded}", doc.Name(verdict.snapshot.model))
    names = [name for name in verdict.rules.metrics if name in after]
    for name in names:
        now = format_size(after[name]) + partial
        if name in before:
            change = format_change(after[name] - before[name])
            yield (*head, name, format_size(before[name]), now, change)
        else:
            yield (*head, name, "-", now, "-")
    if not names:
        yield (*head, "", "-", "-", "-")


def _found(verdict: Verdict) -> Iterator[doc.Block]:
    """Yield what was found of a model, and of one that failed who did it."""
    notes = [
        doc.Note("error" if result.fails else "note", result.message)
        for result in verdict.results
    ]
    difference, table = verdict.difference, None
    if difference is not None and not (verdict.passed and not verdict.recorded):
        notes += [doc.Note("note", note) for note in difference.notes[:1]]
        table = changes(difference, MOST_CHANGES) if difference.changes else None
    title = (f"{_word(verdict)}: ", doc.Name(verdict.snapshot.model))
    yield from doc.section(title, *notes, table)


def _word(verdict: Verdict) -> str:
    return "pass" if verdict.passed else "FAIL"


def _markdown(verdicts: tuple[Verdict, ...]) -> str:
    """Return a step summary of less than 64 KB, whatever the models and their names are."""
    most = len(verdicts)
    while (
        len((text := drawn(document(verdicts, most), "markdown")).encode()) > _LARGEST_MARKDOWN
    ):
        most //= 2
    return text


def _json(verdicts: tuple[Verdict, ...]) -> str:
    return result_json("gate", GateVerdicts(verdicts))


RENDERERS: Mapping[str, Callable[[tuple[Verdict, ...]], str]] = {
    **renderers(document, "text"),
    "json": _json,
    "markdown": _markdown,
    "github": github_commands,
    "junit": junit,
    "sarif": sarif,
}
