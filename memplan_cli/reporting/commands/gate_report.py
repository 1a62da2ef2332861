"""The verdicts of `memplan gate` as text, Markdown, JSON, GitHub annotations, JUnit and SARIF."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from urllib.parse import quote

from memplan_cli.core.quantities import counted, format_change, format_size
from memplan_cli.core.version import VERSION
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.commands.diff import change_line, change_table
from memplan_cli.reporting.commands.gate import MEANINGS, Finding, GateVerdicts
from memplan_cli.reporting.escape import github, github_property, html, printable
from memplan_cli.reporting.hints import assumed_lines, dims_summary
from memplan_cli.reporting.media import draw_document, json_text, result_json
from memplan_cli.reporting.snapshot import dims_text, metric_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.json_types import Json
    from memplan_cli.reporting.commands.diff import Change
    from memplan_cli.reporting.commands.gate import Result, Verdict

_MAX_MARKDOWN_BYTES = 60_000
"""GitHub refuses comments of 64 KiB, and users add text of their own."""

_MAX_CHANGES = 10
"""Tensors listed per model, in every format but JSON."""

_MAX_ANNOTATIONS = 10
"""Annotations of one kind that GitHub shows per step."""

_HEADS = ("", "model", "metric", ">baseline", ">now", ">change")


def gate_document(
    verdicts: tuple[Verdict, ...], max_models: int | None = None
) -> doc.Document:
    """Return a table with a row per metric and model, and the findings of each model.

    Failed models come first. At most ``max_models`` are shown; None: all.
    """
    ordered = sorted(verdicts, key=lambda verdict: (verdict.passed, verdict.snapshot.model))
    shown = ordered[:max_models]
    hidden = len(ordered) - len(shown)
    caption = f"and {hidden} more models; --format json has all" if hidden else ""
    rows = tuple(row for verdict in shown for row in _metric_rows(verdict))
    findings = (block for verdict in shown for block in _finding_blocks(verdict))
    baselines = dict.fromkeys(v.recorded_in for v in verdicts if v.recorded_in)
    return doc.Document(
        _headline(verdicts),
        (
            *(block for verdict in shown for block in _conditions(verdict)),
            doc.Table(doc.columns(*_HEADS), rows, caption),
            *findings,
            *(doc.Paragraph(("Recorded in ", doc.Name(path), ".")) for path in baselines),
        ),
    )


def _headline(verdicts: tuple[Verdict, ...]) -> str:
    """Return the number of models that failed and that passed, and the assumed sizes it holds for."""
    failed = sum(not verdict.passed for verdict in verdicts)
    models = counted(len(verdicts), "model")
    assumed = [verdict.snapshot.assumed for verdict in verdicts if verdict.snapshot.assumed]
    if not assumed:
        sizes = ""
    elif len(verdicts) == 1:
        sizes = f", at {dims_summary(assumed[0])} (guessed)"
    else:
        sizes = f", at guessed sizes for {len(assumed)}"
    return f"Memory gate: {models}, {failed} failed, {len(verdicts) - failed} passed{sizes}"


def _conditions(verdict: Verdict) -> Iterator[doc.Block]:
    """Yield the sizes that a model was checked at, assumed ones first, and its settings files."""
    snapshot, name = verdict.snapshot, doc.Name(verdict.snapshot.model)
    for line in assumed_lines(snapshot.assumed, snapshot.inputs):
        yield doc.Paragraph((name, f": {line}"))
    given = {n: v for n, v in (snapshot.dims or {}).items() if n not in snapshot.assumed}
    if given:
        yield doc.Paragraph((name, f": sizes {dims_text(given)}"))
    if snapshot.settings_files:
        yield doc.Paragraph((name, f": settings of {', '.join(snapshot.settings_files)}"))


def _metric_rows(verdict: Verdict) -> Iterator[tuple[doc.Prose, ...]]:
    """Yield a row for each known metric that was checked, or one row of dashes if none is known.

    The value of the baseline is a dash if the baseline has no such metric.
    """
    before = verdict.difference.before.metrics if verdict.difference else {}
    after = verdict.snapshot.metrics
    partial = " (partial)" if verdict.snapshot.partial else ""
    recorded = ", recorded" if verdict.recorded else ""
    model = doc.Name(verdict.snapshot.model)
    names = [name for name in verdict.checked if name in after]
    for name in names:
        passed = not verdict.failures(name)
        head = (f"{_mark(passed=passed)}{recorded}", model)
        now = format_size(after[name]) + partial
        if name in before:
            change = format_change(after[name] - before[name])
            yield (*head, metric_label(name), format_size(before[name]), now, change)
        else:
            yield (*head, metric_label(name), "-", now, "-")
    if not names:
        yield (f"{_mark(passed=verdict.passed)}{recorded}", model, "", "-", "-", "-")


def _finding_blocks(verdict: Verdict) -> Iterator[doc.Block]:
    """Yield the findings of a model; if it failed or was recorded, also the changed tensors."""
    notes: list[doc.Block] = [
        doc.Check(passed=False, text=result.message)
        if result.fails
        else doc.Note("note", result.message)
        for result in verdict.results
    ]
    table = None
    if verdict.difference is not None and (verdict.recorded or not verdict.passed):
        # Only the first note: the others repeat findings.
        notes += [doc.Note("note", note) for note in verdict.difference.notes[:1]]
        causes = verdict.causes()
        table = change_table(causes, _MAX_CHANGES) if causes else None
    yield from doc.section((doc.Name(verdict.snapshot.model),), *notes, table)


def _mark(*, passed: bool) -> str:
    """Return the mark of a row, as of a `Check`."""
    return "[ok]" if passed else "[failed]"


def _markdown(verdicts: tuple[Verdict, ...]) -> str:
    """Return a GitHub step summary of at most `_MAX_MARKDOWN_BYTES`.

    The number of models shown is halved until the text is small enough, down to none: then it is
    a title and an empty table.
    """
    max_models = len(verdicts)
    text = draw_document(gate_document(verdicts), "markdown")
    while max_models > 0 and len(text.encode()) > _MAX_MARKDOWN_BYTES:
        max_models //= 2
        text = draw_document(gate_document(verdicts, max_models), "markdown")
    return text


def github_commands(verdicts: tuple[Verdict, ...]) -> str:
    """Return GitHub workflow commands that annotate models, at most ten, the worst first.

    If all models pass, a line for the log says so.
    """
    findings = [(verdict, result) for verdict in verdicts for result in verdict.results]
    findings.sort(key=_worst_first)
    # If some are hidden, the last annotation gives their number.
    count = len(findings) if len(findings) <= _MAX_ANNOTATIONS else _MAX_ANNOTATIONS - 1
    lines = [_annotation(verdict, result) for verdict, result in findings[:count]]
    hidden = len(findings) - count
    if hidden:
        lines.append(f"::warning title=memplan::{hidden} more findings; see the job's log")
    if all(verdict.passed for verdict in verdicts):
        lines.append(_headline(verdicts))
    return "".join(f"{line}\n" for line in lines)


def _worst_first(finding: tuple[Verdict, Result]) -> tuple[bool, int, str, str]:
    """Return a sort key: failures first, then by bytes above the limit."""
    verdict, result = finding
    excess = (result.actual or 0) - (result.limit or 0)
    return not result.fails, -excess, verdict.snapshot.model, result.message


def _annotation(verdict: Verdict, result: Result) -> str:
    """Return a finding as a workflow command; a failure lists the three largest changes too."""
    file = github_property(verdict.snapshot.model)
    title = github_property(f"memplan: {result.finding.value}")
    lines = [result.message]
    if result.fails and verdict.difference is not None:
        lines += map(change_line, verdict.difference.causes(result.metric)[:3])
    message = github("\n".join(lines))
    return f"::{result.finding.level} file={file},title={title}::{message}"


def junit(verdicts: tuple[Verdict, ...]) -> str:
    """Return JUnit XML: a suite per model, a test per metric, which fails if a rule is broken."""
    tests = sum(len(verdict.checked) for verdict in verdicts)
    failures = sum(map(_failure_count, verdicts))
    head = f'<testsuites name="memplan gate" tests="{tests}" failures="{failures}">'
    body = "".join(map(_suite, verdicts))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{body}</testsuites>\n'


def _failure_count(verdict: Verdict) -> int:
    return sum(bool(verdict.failures(metric)) for metric in verdict.checked)


def _suite(verdict: Verdict) -> str:
    """Return the ``<testsuite>`` of a model; remarks that do not fail go to ``<system-out>``."""
    remarks = [html(result.message) for result in verdict.results if not result.fails]
    output = "<system-out>{}</system-out>\n".format("\n".join(remarks)) if remarks else ""
    cases = "".join(_case(verdict, metric) for metric in verdict.checked)
    head = (
        f'<testsuite name="{html(verdict.snapshot.model)}" tests="{len(verdict.checked)}" '
        f'failures="{_failure_count(verdict)}">'
    )
    return f"{head}\n{cases}{output}</testsuite>\n"


def _case(verdict: Verdict, metric: str) -> str:
    """Return the ``<testcase>`` of a metric, with a ``<failure>`` if it has failed results."""
    results = verdict.failures(metric)
    head = f'<testcase classname="{html(verdict.snapshot.model)}" name="{html(metric)}"'
    if not results:
        return f"{head}/>\n"
    lines = [result.message for result in results]
    if verdict.difference is not None:
        lines += map(change_line, verdict.difference.causes(metric)[:_MAX_CHANGES])
    body = "\n".join(html(line) for line in lines)
    first = results[0]
    failure = f'<failure type="{first.finding.value}" message="{html(first.message)}">'
    return f"{head}>\n{failure}{body}</failure>\n</testcase>\n"


def sarif(verdicts: tuple[Verdict, ...]) -> str:
    """Return a SARIF 2.1.0 log with a result per finding; tensors are logical locations."""
    rules = [
        {
            "id": finding.value,
            "shortDescription": {"text": MEANINGS[finding]},
            "defaultConfiguration": {"level": finding.level},
        }
        for finding in Finding
    ]
    results = [
        _sarif_result(verdict, result) for verdict in verdicts for result in verdict.results
    ]
    return json_text(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [
                {
                    "tool": {
                        "driver": {"name": "memplan", "version": VERSION, "rules": rules}
                    },
                    "columnKind": "unicodeCodePoints",
                    "results": results,
                }
            ],
        }
    )


def _sarif_result(verdict: Verdict, result: Result) -> Json:
    """Return a finding in the form of SARIF; a failure lists the tensors that changed too."""
    model = verdict.snapshot.model
    changes: tuple[Change, ...] = ()
    if verdict.difference is not None and result.fails:
        changes = verdict.difference.causes(result.metric)
    lines = [printable(result.message)]
    lines += map(change_line, changes[:_MAX_CHANGES])
    location: Json = {
        "physicalLocation": {"artifactLocation": {"uri": quote(model, errors="replace")}}
    }
    if changes:
        location["logicalLocations"] = [
            {"name": printable(change.tensor), "kind": "variable"}
            for change in changes[:_MAX_CHANGES]
        ]
    return {
        "ruleId": result.finding.value,
        "ruleIndex": tuple(Finding).index(result.finding),
        "level": result.finding.level,
        "message": {"text": "\n".join(lines)},
        "locations": [location],
        "partialFingerprints": {"memplan/v1": _fingerprint(model, result)},
    }


def _fingerprint(model: str, result: Result) -> str:
    """Return a digest of model, rule and metric, by which SARIF viewers match results of two runs."""
    key = f"{model}\n{result.finding.value}\n{result.metric or ''}"
    # File names may contain lone surrogates, which UTF-8 cannot encode.
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()


RENDERERS: Mapping[str, Callable[[tuple[Verdict, ...]], str]] = {
    "text": lambda verdicts: draw_document(gate_document(verdicts), "text"),
    "json": lambda verdicts: result_json("gate", GateVerdicts(verdicts)),
    "markdown": _markdown,
    "github": github_commands,
    "junit": junit,
    "sarif": sarif,
}
