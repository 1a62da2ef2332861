"""Fallbacks of writing a model: what was left out, or is slower than allowed, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.results.rewrites import ALL_SLOWER, CANDIDATE_DIFFERED, Fallback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.plan import Plan


def fell_back(plan: Plan, *found: Fallback) -> Plan:
    """Return a plan whose report says what else was done otherwise than asked for."""
    if not found:
        return plan
    everything = tuple(dict.fromkeys((*plan.report.fallbacks, *found)))
    return plan.with_report(replace(plan.report, fallbacks=everything))


def with_rejected(plan: Plan, rejected: Iterable[Plan]) -> Plan:
    """Return the plan that is written, its report with the candidates that were rejected."""
    return fell_back(plan, *(_differed(other) for other in rejected))


def with_slower(plan: Plan) -> Plan:
    """Return a plan whose report says if its model is slower than allowed; runs were timed."""
    return fell_back(plan, *_slower(plan))


def _differed(plan: Plan) -> Fallback:
    report = plan.report
    graph = "the file's graph" if report.target == "portable" else "a graph that was optimised"
    why = "it did not run" if report.validation is None else _why(report.validation)
    return Fallback(CANDIDATE_DIFFERED, f"{graph} for {report.target} was left out", why)


def _why(found: Validation) -> str:
    """Return what a verdict found first."""
    if found.differences:
        first = found.differences[0]
        said = first.reason or f"{first.elements} elements have other bits"
        return f"output {first.output!r}: {said}"
    return found.notes[0] if found.notes else f"the comparison {found.status}"


def _slower(plan: Plan) -> Iterable[Fallback]:
    """Yield that even the best way to run a file is slower than allowed."""
    from memplan_cli.runtime.run.timing import is_slower

    observed = plan.report.runtime.observed if plan.report.runtime else {}
    if {"original", "optimized"} <= observed.keys() and is_slower(
        observed["optimized"], observed["original"]
    ):
        what = "the fastest settings are given, not those of the least memory"
        yield Fallback(ALL_SLOWER, what, "every way to run the file was slower than allowed")
