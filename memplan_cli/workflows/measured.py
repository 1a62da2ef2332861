"""Candidates whose settings are searched by measuring each: exact, and slow.

Every candidate is run under many settings, and the times of runs are compared.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.files import staged
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.workflows.candidates import (
    Optimized,
    by_name,
    compared,
    finished,
    passed,
    warned,
    with_verdict,
)
from memplan_cli.workflows.fallbacks import timed_among
from memplan_cli.workflows.files.binding import binding_of
from memplan_cli.workflows.files.rewriting import RewrittenFiles
from memplan_cli.workflows.within_bounds import with_range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import RuntimeFacts
    from memplan_cli.runtime.facts import Pair
    from memplan_cli.workflows.candidates import Candidate
    from memplan_cli.workflows.compare import Compared


def best_measured(candidates: Sequence[Candidate]) -> Optimized:
    """Prove and measure each rewriting; write the one that needs least, if one passes.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    with ExitStack() as stack:
        tried: list[tuple[RewrittenFiles, Plan]] = []
        for candidate in candidates:
            files = stack.enter_context(RewrittenFiles(candidate.rewriting))
            # All candidates have one original: what is known of it need not be found again.
            known = next((p.report.runtime for _, p in tried if p.report.runtime), None)
            tried.append((files, _tried(candidate, files, known)))
        good = [(files, plan) for files, plan in tried if passed(plan)]
        if not good:
            return Optimized(tried[0][1], None, None)
        candidates[0].tell("writing")
        files, plan = min(good, key=lambda found: _cost(found[1]))
        plan = timed_among(plan, (other for _, other in tried if not passed(other)))
        done = finished(candidates[0].rewriting, files, plan)
        for other, _ in tried:
            other.forget()
        return done


def _tried(candidate: Candidate, files: RewrittenFiles, known: RuntimeFacts | None) -> Plan:
    rewriting = candidate.rewriting
    with staged(rewriting.targets.model, files.data) as path:
        candidate.tell("running both models")
        found = compared(rewriting, path, candidate.check)
        plan, notes = with_verdict(rewriting, path, found.verdict, candidate.check)
        if not passed(plan):
            return plan
        facts, caveats = _measured(plan, _pair(candidate, path, found, known), candidate.tell)
        plan = plan.with_report(replace(plan.report, runtime=facts))
        plan = with_range(plan, candidate, path)
        return warned(plan, *(by_name(caveat, rewriting, path) for caveat in caveats), *notes)


def _cost(plan: Plan) -> tuple[bool, int]:
    """Rank what was measured: not slower than allowed, then the least memory.

    Weights in the arena count: one graph may map from its file what another packs at load.
    """
    from memplan_cli.runtime.measuring.timing import is_slower

    if plan.report.runtime is None:
        return True, 0
    before = plan.report.runtime.observed["original"]
    after = plan.report.runtime.observed["optimized"]
    return is_slower(after, before), (after.held or 0) + (after.first_run_peak or 0)


def _pair(
    candidate: Candidate, path: Path, found: Compared, known: RuntimeFacts | None
) -> Pair:
    """Return what is measured: the original, and the trial file as it may be run."""
    from memplan_cli.runtime.facts import Pair

    rewriting, check = candidate.rewriting, candidate.check
    return Pair(
        rewriting.compared_with,
        path,
        check,
        binding_of(rewriting.settings),
        as_written=found.as_written or rewriting.only_as_written,
        known=known,
    )


def _measured(
    plan: Plan, pair: Pair, tell: Callable[[str], None]
) -> tuple[RuntimeFacts | None, Sequence[str]]:
    """Return the runtime's side, and warnings; not to be measured is one, and no failure."""
    from memplan_cli.runtime.facts import runtime_account
    from memplan_cli.workflows.donate import with_binding

    try:
        facts, warnings = runtime_account(pair, tell)
    except RuntimeUnavailableError as error:
        return None, (f"the runtime's memory was not measured: {error}",)
    return with_binding(facts, plan.report.donated.pairs), warnings
