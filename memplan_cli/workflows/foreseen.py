"""Candidates verified against the original's run: the best by predicted or by measured memory."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.files import staged
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.workflows.candidates import (
    Optimized,
    by_name,
    finished,
    passed,
    warned,
    with_verdict,
)
from memplan_cli.workflows.fallbacks import chosen_among, timed_among
from memplan_cli.workflows.files.binding import binding_of
from memplan_cli.workflows.files.rewriting import RewrittenFiles
from memplan_cli.workflows.within_bounds import with_range

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.runtime.run.baseline import Baseline
    from memplan_cli.runtime.run.verify import Verification
    from memplan_cli.runtime.settings_search.written_model import BaselineGraph, WrittenModel
    from memplan_cli.workflows.ahead import Ahead
    from memplan_cli.workflows.candidates import Candidate


def best_verified(candidates: Sequence[Candidate], ahead: Ahead) -> Optimized:
    """Write the candidate that needs the least memory and gives the original's outputs.

    Candidates are verified in the order of their predicted memory. The first that passes is
    written; where settings are searched by measuring, the one that was measured to need least.

    Raises:
        RuntimeUnavailableError: the original cannot run here, so nothing can be shown.
        ModelError: a file cannot be written.
    """
    measured = candidates[0].check.search == "measured"
    with ExitStack() as stack:
        verifier = _verifier(candidates[0], ahead)
        verified: list[tuple[RewrittenFiles, Plan]] = []
        rejected: list[Plan] = []
        for candidate in verifier.ranked(candidates):
            files = stack.enter_context(RewrittenFiles(candidate.rewriting))
            plan = verifier.verified(candidate, files)
            if not passed(plan):
                rejected.append(plan)
                continue
            verified.append((files, plan))
            if not measured:
                break
        if not verified:
            return Optimized(rejected[0], None, None)
        candidates[0].tell("writing")
        files, plan = min(verified, key=lambda found: _measured_cost(found[1]))
        plan = (timed_among if measured else chosen_among)(plan, rejected)
        done = finished(candidates[0].rewriting, files, plan)
        for other, _ in verified:
            other.forget()
        return done


def _measured_cost(plan: Plan) -> tuple[bool, int]:
    """Return whether a plan's model is slower than allowed, and its measured memory.

    Weights in the arena count: one graph may map from its file what another packs at load.
    """
    from memplan_cli.runtime.run.timing import is_slower

    runtime = plan.report.runtime
    if runtime is None:
        return True, 0
    before, after = runtime.observed["original"], runtime.observed["optimized"]
    return is_slower(after, before), (after.held or 0) + (after.first_run_peak or 0)


def _verifier(candidate: Candidate, ahead: Ahead) -> _Verifier:
    """Wait for the run of the original that all candidates have."""
    from memplan_cli.runtime.settings_search.written_model import read_baseline_graph

    rewriting, check = candidate.rewriting, candidate.check
    candidate.tell("running the original")
    baseline = ahead.baseline(rewriting, check)
    if check.depth == "outputs":
        return _Verifier(baseline)
    try:
        return _Verifier(baseline, read_baseline_graph(baseline))
    except RuntimeUnavailableError as error:
        return _Verifier(
            baseline, failure=by_name(f"{error}", rewriting, rewriting.targets.model)
        )


@dataclass(frozen=True, slots=True)
class _Verifier:
    """The original's run, with which candidates are compared; without a graph by outputs alone."""

    baseline: Baseline
    graph: BaselineGraph | None = None
    failure: str = ""

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order of their predicted memory."""
        graph = self.graph
        if graph is None or len(candidates) == 1:
            return list(candidates)
        from memplan_cli.runtime.settings_search.written_model import (
            predicted_cost,
            ranked_by_cost,
        )

        # The weights are those of the file that is rewritten, wherever they lie.
        models = (_written(c, c.rewriting.file.path) for c in candidates)
        costs = [predicted_cost(self.baseline, graph, model) for model in models]
        return [candidates[index] for index in ranked_by_cost(costs)]

    def verified(self, candidate: Candidate, files: RewrittenFiles) -> Plan:
        """Return a candidate's plan with the verdict and memory of its written model's run."""
        from memplan_cli.runtime.run.verify import verify

        rewriting = candidate.rewriting
        with staged(rewriting.targets.model, files.data) as path:
            written = _written(candidate, path)
            found = verify(self.baseline, self.graph, written, candidate.tell)
            plan, notes = with_verdict(rewriting, path, found.verdict, candidate.check)
            if not passed(plan):
                return plan
            found = _measured_further(found, candidate, path)
            warnings = [by_name(each, rewriting, path) for each in found.warnings]
            if self.failure:
                warnings.append(f"the runtime's memory was not measured: {self.failure}")
            plan = with_range(_with_facts(plan, found), candidate, path)
        return warned(plan, *warnings, *notes)


def _measured_further(found: Verification, candidate: Candidate, path: Path) -> Verification:
    """Add the cost of inline weights and the time of a run, where settings are measured."""
    check = candidate.check
    if check.search != "measured" or found.facts is None:
        return found
    from memplan_cli.runtime.run.load_cost import load_cost
    from memplan_cli.runtime.run.spec import RunConditions
    from memplan_cli.runtime.run.verify import with_time

    rewriting = candidate.rewriting
    conditions = RunConditions.of_check(check, binding_of(rewriting.settings))
    loading = load_cost(path, conditions.provider)
    facts, notes = with_time(found.facts, rewriting.compared_with, path, conditions)
    warnings = (*found.warnings, *([str(loading)] if loading else []), *notes)
    return replace(found, facts=facts, warnings=warnings)


def _written(candidate: Candidate, path: Path) -> WrittenModel:
    from memplan_cli.runtime.settings_search.written_model import WrittenModel

    rewriting = candidate.rewriting
    return WrittenModel(
        path,
        rewriting.planned.program,
        as_written=rewriting.only_as_written,
        offline=rewriting.original is not None,
        for_range=bool(rewriting.settings.bounds),
    )


def _with_facts(plan: Plan, found: Verification) -> Plan:
    from memplan_cli.workflows.donate import with_binding

    if found.facts is None:
        return plan
    facts = with_binding(found.facts, plan.report.donated.pairs)
    return plan.with_report(replace(plan.report, runtime=facts))
