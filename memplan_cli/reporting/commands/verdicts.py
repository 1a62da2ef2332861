"""What `memplan gate` found, for people: text, a step summary, annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_change, format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.reporting.commands.changes import (
    MOST_IN_VERDICT,
    change_line,
    changes_table,
)
from memplan_cli.reporting.commands.junit import junit
from memplan_cli.reporting.commands.sarif import sarif
from memplan_cli.reporting.escape import (
    github,
    github_property,
    markdown,
    markdown_prose,
    shortened,
    terminal,
)
from memplan_cli.reporting.plans.json_text import document
from memplan_cli.reporting.plans.markdown import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.reporting.findings.gate import Result, Verdict

MOST_ANNOTATIONS = 10
"""What GitHub shows of one kind in one step."""

LARGEST_MARKDOWN = 60_000
"""Bytes; GitHub refuses comments of 64 KiB, and people add words of their own."""


def text(verdicts: tuple[Verdict, ...]) -> str:
    """Return one line a model, and under a failed one what was found and who did it."""
    lines = [line for verdict in verdicts for line in _lines(verdict)]
    failed = sum(not verdict.passed for verdict in verdicts)
    lines.append(f"{len(verdicts)} checked, {failed} failed")
    return "\n".join(lines) + "\n"


def as_json(verdicts: tuple[Verdict, ...]) -> str:
    """Return everything as JSON, plain ASCII."""
    data = {
        "schema": "memplan.gate/1",
        "passed": all(verdict.passed for verdict in verdicts),
        "models": to_json(verdicts),
    }
    return document(data)


def as_markdown(verdicts: tuple[Verdict, ...]) -> str:
    """Return a step summary: failed models first, less than 64 KB whatever happens."""
    ordered = sorted(verdicts, key=lambda verdict: (verdict.passed, verdict.snapshot.model))
    failed = sum(not verdict.passed for verdict in verdicts)
    title = (
        f"## Memory gate: {failed} of {len(verdicts)} failed"
        if failed
        else _all_good(verdicts)
    )
    parts, room = [title], LARGEST_MARKDOWN - len(title.encode())
    for number, verdict in enumerate(ordered):
        section = _markdown_section(verdict)
        room -= len(section.encode()) + 2
        if room < 0:
            parts.append(f"and {len(ordered) - number} more models; `--format json` has all")
            break
        parts.append(section)
    return "\n\n".join(parts) + "\n"


def github_commands(verdicts: tuple[Verdict, ...]) -> str:
    """Return GitHub workflow commands, at most ten, the worst first."""
    found = [(verdict, result) for verdict in verdicts for result in verdict.results]
    found.sort(key=_worst_first)
    shown = found if len(found) <= MOST_ANNOTATIONS else found[: MOST_ANNOTATIONS - 1]
    lines = [_annotation(verdict, result) for verdict, result in shown]
    left = len(found) - len(shown)
    if left:
        lines.append(f"::warning title=memplan::{left} more findings; see the job's log")
    return "".join(f"{line}\n" for line in lines)


def _all_good(verdicts: tuple[Verdict, ...]) -> str:
    return f"## Memory gate: all {len(verdicts)} passed"


def _lines(verdict: Verdict) -> Iterator[str]:
    word = "pass" if verdict.passed else "FAIL"
    recorded = ", recorded" if verdict.recorded else ""
    yield f"{word}  {terminal(verdict.snapshot.model)}: {_numbers(verdict)}{recorded}"
    for result in verdict.results:
        word = "error" if result.fails else "note"
        yield f"      {word}: {terminal(result.message)}"
    difference = verdict.difference
    if difference is None or (verdict.passed and not verdict.recorded):
        return
    yield from (
        f"      {change_line(change)}" for change in difference.changes[:MOST_IN_VERDICT]
    )
    left = len(difference.changes) - MOST_IN_VERDICT
    if left > 0:
        yield f"      and {left} more tensors"
    yield from (f"      {terminal(note)}" for note in difference.notes[:1])


def _numbers(verdict: Verdict) -> str:
    return ", ".join(
        f"{name} {_size(verdict, name)}{_against(verdict, name)}"
        for name in verdict.rules.metrics
        if name in verdict.snapshot.metrics
    )


def _size(verdict: Verdict, name: str) -> str:
    """Return a metric; marked where sizes are missing in it."""
    mark = " (partial)" if verdict.snapshot.partial else ""
    return format_size(verdict.snapshot.metrics[name]) + mark


def _against(verdict: Verdict, name: str) -> str:
    if verdict.difference is None:
        return ""
    for metric in verdict.difference.metrics:
        if metric.name == name and metric.change is not None:
            return f" ({format_change(metric.change)})" if metric.change else " (unchanged)"
    return ""


def _markdown_section(verdict: Verdict) -> str:
    mark = "✅" if verdict.passed else "❌"
    parts = [f"### {mark} {markdown(verdict.snapshot.model)}"]
    before = verdict.difference.before.metrics if verdict.difference else {}
    after = verdict.snapshot.metrics
    rows = [
        (
            name,
            format_size(before[name]) if name in before else "-",
            _size(verdict, name),
            format_change(after[name] - before[name]) if name in before else "-",
        )
        for name in verdict.rules.metrics
        if name in after
    ]
    parts.append(table(("", ">baseline", ">now", ">change"), rows))
    if verdict.results:
        parts.append(
            "\n".join(
                f"- {'**error**' if r.fails else 'note'}: {markdown_prose(r.message)}"
                for r in verdict.results
            )
        )
    if verdict.difference is not None and verdict.difference.changes and not verdict.passed:
        parts.append(changes_table(verdict.difference, MOST_IN_VERDICT))
    return "\n\n".join(parts)


def _worst_first(item: tuple[Verdict, Result]) -> tuple[bool, int, str, str]:
    verdict, result = item
    over = (result.actual or 0) - (result.limit or 0)
    return not result.fails, -over, verdict.snapshot.model, result.message


def _annotation(verdict: Verdict, result: Result) -> str:
    kind = "error" if result.fails else "warning"
    file = github_property(verdict.snapshot.model)
    title = github_property(f"memplan: {result.finding.value}")
    lines = [result.message]
    if result.fails and verdict.difference is not None:
        lines += [
            f"{format_change(change.effect)} {shortened(change.tensor, 60)}: {change.reason}"
            for change in verdict.difference.changes[:3]
        ]
    return f"::{kind} file={file},title={title}::{github(chr(10).join(lines))}"


RENDERERS: Mapping[str, Callable[[tuple[Verdict, ...]], str]] = {
    "text": text,
    "json": as_json,
    "markdown": as_markdown,
    "github": github_commands,
    "junit": junit,
    "sarif": sarif,
}
