"""What `memplan gate` found, for machines: GitHub annotations, JUnit XML, SARIF 2.1.0."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from urllib.parse import quote

from memplan_cli.core.version import VERSION
from memplan_cli.reporting.commands.diff import change_line
from memplan_cli.reporting.escape import github, github_property, terminal, xml
from memplan_cli.reporting.findings.gate import MEANINGS, Finding
from memplan_cli.reporting.media.json_text import json_text

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json
    from memplan_cli.reporting.findings.gate import Result, Verdict

MOST_CHANGES = 10
"""Tensors that a gate names of one model, in every format but JSON."""

_MOST_ANNOTATIONS = 10
"""What GitHub shows of one kind in one step."""

_RULES = tuple(Finding)


def github_commands(verdicts: tuple[Verdict, ...]) -> str:
    """Return GitHub workflow commands, at most ten, the worst first."""
    found = [(verdict, result) for verdict in verdicts for result in verdict.results]
    found.sort(key=_worst_first)
    shown = found if len(found) <= _MOST_ANNOTATIONS else found[: _MOST_ANNOTATIONS - 1]
    lines = [_annotation(verdict, result) for verdict, result in shown]
    left = len(found) - len(shown)
    if left:
        lines.append(f"::warning title=memplan::{left} more findings; see the job's log")
    return "".join(f"{line}\n" for line in lines)


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
        lines += map(change_line, verdict.difference.changes[:3])
    return f"::{kind} file={file},title={title}::{github(chr(10).join(lines))}"


def junit(verdicts: tuple[Verdict, ...]) -> str:
    """Return one suite a model; a metric that breaks a rule is a failed test."""
    tests = sum(len(_cases(verdict)) for verdict in verdicts)
    failed = sum(_failed(verdict) for verdict in verdicts)
    suites = "".join(_suite(verdict) for verdict in verdicts)
    head = f'<testsuites name="memplan gate" tests="{tests}" failures="{failed}">'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{suites}</testsuites>\n'


def _cases(verdict: Verdict) -> list[tuple[str, list[Result]]]:
    """Return each metric with what is wrong with it; the first takes what names none."""
    metrics = verdict.rules.metrics
    found: dict[str, list[Result]] = {name: [] for name in metrics}
    for result in verdict.results:
        if result.fails:
            found[result.metric or metrics[0]].append(result)
    return list(found.items())


def _failed(verdict: Verdict) -> int:
    return sum(bool(results) for _, results in _cases(verdict))


def _suite(verdict: Verdict) -> str:
    model = xml(verdict.snapshot.model)
    cases = _cases(verdict)
    notes = [result.message for result in verdict.results if not result.fails]
    said = "\n".join(xml(note) for note in notes)
    out = f"<system-out>{said}</system-out>\n" if notes else ""
    body = "".join(_case(verdict, metric, results) for metric, results in cases)
    failed = _failed(verdict)
    head = f'<testsuite name="{model}" tests="{len(cases)}" failures="{failed}">'
    return f"{head}\n{body}{out}</testsuite>\n"


def _case(verdict: Verdict, metric: str, results: list[Result]) -> str:
    head = f'<testcase classname="{xml(verdict.snapshot.model)}" name="{xml(metric)}"'
    if not results:
        return f"{head}/>\n"
    lines = [result.message for result in results]
    if verdict.difference is not None:
        lines += map(change_line, verdict.difference.changes[:MOST_CHANGES])
    body = "\n".join(xml(line) for line in lines)
    first = results[0]
    failure = f'<failure type="{first.finding.value}" message="{xml(first.message)}">'
    return f"{head}>\n{failure}{body}</failure>\n</testcase>\n"


def sarif(verdicts: tuple[Verdict, ...]) -> str:
    """Return one run with a result for each finding, tensors as logical locations."""
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver()},
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(verdict, result)
                    for verdict in verdicts
                    for result in verdict.results
                ],
            }
        ],
    }
    return json_text(log)


def _driver() -> Json:
    return {
        "name": "memplan",
        "version": VERSION,
        "rules": [
            {
                "id": finding.value,
                "shortDescription": {"text": MEANINGS[finding]},
                "defaultConfiguration": {"level": _level(fails=finding.fails)},
            }
            for finding in _RULES
        ],
    }


def _level(*, fails: bool) -> str:
    return "error" if fails else "warning"


def _result(verdict: Verdict, result: Result) -> Json:
    model = verdict.snapshot.model
    changes = verdict.difference.changes if verdict.difference and result.fails else ()
    lines = [terminal(result.message)]
    lines += map(change_line, changes[:MOST_CHANGES])
    location: Json = {
        "physicalLocation": {"artifactLocation": {"uri": quote(model, errors="replace")}}
    }
    if changes:
        location["logicalLocations"] = [
            {"name": terminal(change.tensor), "kind": "variable"}
            for change in changes[:MOST_CHANGES]
        ]
    return {
        "ruleId": result.finding.value,
        "ruleIndex": _RULES.index(result.finding),
        "level": _level(fails=result.fails),
        "message": {"text": "\n".join(lines)},
        "locations": [location],
        "partialFingerprints": {"memplan/v1": _fingerprint(model, result)},
    }


def _fingerprint(model: str, result: Result) -> str:
    """Return what stays the same while the same rule is broken by the same model."""
    key = f"{model}\n{result.finding.value}\n{result.metric}"
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()
