"""Candidates ranked by prediction: the original runs once, and so does the winner."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
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
from memplan_cli.workflows.fallbacks import chosen_among
from memplan_cli.workflows.files.rewriting import RewrittenFiles
from memplan_cli.workflows.within_bounds import with_range

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.runtime.account import Proved
    from memplan_cli.runtime.proofs.original import Original
    from memplan_cli.runtime.proofs.subjects import Before, Written
    from memplan_cli.workflows.ahead import Ahead
    from memplan_cli.workflows.candidates import Candidate


def best_foreseen(candidates: Sequence[Candidate], ahead: Ahead) -> Optimized:
    """Prove the rewriting that is foreseen to need least; write it, or the next that passes.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    with ExitStack() as stack:
        proving = _proving(candidates[0], ahead)
        tried: list[Plan] = []
        for candidate in proving.ranked(candidates):
            files = stack.enter_context(RewrittenFiles(candidate.rewriting))
            plan = proving.proved(candidate, files, ahead.folder())
            if passed(plan):
                candidate.tell("writing")
                plan = chosen_among(plan, tried)
                done = finished(candidates[0].rewriting, files, plan)
                files.forget()
                return done
            tried.append(plan)
        return Optimized(tried[0], None, None)


def _proving(candidate: Candidate, ahead: Ahead) -> _Proving:
    """Run the original that all candidates have."""
    from memplan_cli.runtime.account import account_before

    rewriting, check = candidate.rewriting, candidate.check
    candidate.tell("running the original")
    original = ahead.original(rewriting, check)
    if check.depth == "outputs":
        return _Proving(original)
    try:
        return _Proving(original, account_before(original))
    except RuntimeUnavailableError as error:
        return _Proving(
            original, failure=by_name(f"{error}", rewriting, rewriting.targets.model)
        )


@dataclass(frozen=True, slots=True)
class _Proving:
    """The original, as it ran; without ``before`` outputs alone are looked at."""

    original: Original
    before: Before | None = None
    failure: str = ""

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates, the one that is foreseen to need least first."""
        before = self.before
        if before is None or len(candidates) == 1:
            return list(candidates)
        from memplan_cli.runtime.ranking import foreseen_cost, ranked

        # The weights are those of the file that is rewritten, wherever they lie.
        written = (_written(c, c.rewriting.file.path) for c in candidates)
        costs = [foreseen_cost(self.original, before, each) for each in written]
        return [candidates[place] for place in ranked(costs)]

    def proved(self, candidate: Candidate, files: RewrittenFiles, folder: Path) -> Plan:
        """Return the plan with what running the written model says of it."""
        rewriting = candidate.rewriting
        with staged(rewriting.targets.model, files.data) as path:
            found = self._found(candidate, path, folder)
            plan, notes = with_verdict(rewriting, path, found.verdict, candidate.check)
            if not passed(plan):
                return plan
            caveats = [by_name(each, rewriting, path) for each in found.warnings]
            if self.failure:
                caveats.append(f"the runtime's memory was not measured: {self.failure}")
            plan = with_range(_with_facts(plan, found), candidate, path)
        return warned(plan, *caveats, *notes)

    def _found(self, candidate: Candidate, path: Path, folder: Path) -> Proved:
        from memplan_cli.runtime.account import prove, prove_outputs

        written = _written(candidate, path)
        if not self.original.repeats:
            # Copies that draw the same numbers, or first runs alone, are compared.
            check = replace(candidate.check, noise=self.original.seen.differences)
            other = compared(candidate.rewriting, path, check)
            written = replace(
                written,
                verdict=other.verdict,
                as_written=written.as_written or other.as_written,
            )
            if not other.verdict.passed:
                return prove_outputs(self.original, written, folder)
        if self.before is None:
            return prove_outputs(self.original, written, folder)
        return prove(self.original, self.before, written, folder, candidate.tell)


def _written(candidate: Candidate, path: Path) -> Written:
    from memplan_cli.runtime.proofs.subjects import Written

    rewriting = candidate.rewriting
    return Written(
        path,
        rewriting.planned.program,
        as_written=rewriting.only_as_written,
        offline=rewriting.original is not None,
        for_range=bool(rewriting.settings.bounds),
    )


def _with_facts(plan: Plan, found: Proved) -> Plan:
    from memplan_cli.workflows.donate import with_binding

    if found.facts is None:
        return plan
    facts = with_binding(found.facts, plan.report.donated.pairs)
    return plan.with_report(replace(plan.report, runtime=facts))
