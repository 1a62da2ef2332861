"""What `memplan gate` found, as JUnit XML: a test for each metric of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.reporting.commands.changes import MOST_IN_VERDICT, change_line
from memplan_cli.reporting.escape import xml

if TYPE_CHECKING:
    from memplan_cli.reporting.findings.gate import Result, Verdict


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
        lines += [change_line(c) for c in verdict.difference.changes[:MOST_IN_VERDICT]]
    body = "\n".join(xml(line) for line in lines)
    first = results[0]
    failure = f'<failure type="{first.finding.value}" message="{xml(first.message)}">'
    return f"{head}>\n{failure}{body}</failure>\n</testcase>\n"
