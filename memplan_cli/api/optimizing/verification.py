"""Candidates of `optimize` are verified by running them and comparing them with the original's run."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

from memplan_cli.api.models.binding import binding_of, dims_of_run
from memplan_cli.api.output.optimized import is_verified
from memplan_cli.api.request_range import with_range_settings
from memplan_cli.core.files import staged
from memplan_cli.core.results.rewrites import (
    ALL_SLOWER,
    CANDIDATE_DIFFERED,
    TARGET_LEFT_OUT,
    Fallback,
)
from memplan_cli.errors import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.api.output.rewriting import Rewriting, RewrittenFiles
    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.runtime.run.baseline import Baseline, BaselineRun
    from memplan_cli.runtime.settings_search.written_model import BaselineGraph, WrittenModel
    from memplan_cli.runtime.verification.verify import Verification
    from memplan_cli.settings.settings import Settings


class SizesRefusedError(RuntimeUnavailableError):
    """The original does not run at sizes that were assumed and not tried."""


class BackgroundBaseline:
    """The run of an original with which candidates are compared, in the background once it is started.

    It uses a second core while candidates are planned. The run and its files last until the end of
    the block that uses this object.
    """

    def __init__(self, file: ModelFile, check: Check) -> None:
        """Start nothing yet."""
        self._file, self._check = file, check
        self._run: BaselineRun | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None:
            self._run.end()

    def start(self, settings: Settings) -> None:
        """Start to run the original at the sizes of settings.

        If the run cannot be started, for example because weights are missing, `verifier` tries again and
        raises the error. Without a candidate to run, `verifier` is not called, and the failure has no effect.

        Raises:
            RuntimeUnavailableError: the provider does not work here.
        """
        from memplan_cli.runtime.workers.session import resolve_provider

        resolve_provider(self._check.provider)  # raises if it does not work here
        with suppress(RuntimeUnavailableError):
            self._start(binding_of(settings))

    def verifier(self, settings: Settings, progress: Progress) -> Verifier:
        """Wait for the run of the original at the sizes of settings; return what compares candidates with it.

        If the graph that the original ran cannot be read, the verifier compares outputs only, and reports why
        no memory is measured.

        Raises:
            SizesRefusedError: the original does not run, and some of its sizes are assumed.
            RuntimeUnavailableError: the original does not run.
        """
        from memplan_cli.runtime.settings_search.written_model import read_baseline_graph

        progress("running the original")
        binding = binding_of(settings)
        run = self._run
        if run is None or run.binding != binding:  # none was started, or one at other sizes
            run = self._start(binding)
        try:
            baseline = run.result()
        except RuntimeUnavailableError as error:
            if settings.inputs.assumed:
                raise SizesRefusedError(error.message, hint=error.hint) from error
            raise
        graph, graph_failure = None, ""
        if self._check.depth == "full":  # memory is to be predicted and measured
            try:
                graph = read_baseline_graph(baseline)
            except RuntimeUnavailableError as error:
                path = self._file.path
                graph_failure = error.message.replace(str(path), path.name)
        return Verifier(baseline, self._check, progress, graph, graph_failure)

    def _start(self, binding: Binding) -> BaselineRun:
        """End the earlier run, if there is one, and start a run for ``binding``; return and store it.

        Raises:
            RuntimeUnavailableError: weights or the provider are missing.
        """
        from memplan_cli.runtime.run.baseline import BaselineRun

        if self._run is not None:
            self._run.end()  # may be called again, if the next run cannot be started
        self._run = BaselineRun(self._file.path, self._file.model, self._check, binding)
        return self._run


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies candidates against the run of their original.

    Attributes:
        graph: the graph that the original ran; None: only outputs are compared.
        graph_failure: why that graph could not be read; empty if it was read, or is not needed.
    """

    baseline: Baseline
    check: Check
    progress: Progress
    graph: BaselineGraph | None
    graph_failure: str

    def verify(self, files: RewrittenFiles) -> Plan:
        """Run a candidate under a temporary name; return its plan with verdict, memory and warnings.

        The plan of a candidate that fails has its verdict, and no measured memory. If dims have bounds, the
        runtime settings in the report are chosen for all sizes within them.

        Raises:
            RuntimeUnavailableError: weights are missing.
        """
        candidate = files.rewriting
        with staged(candidate.targets.model, files.data) as path:
            verification = self._compare(candidate, path)
            plan = _with_verdict(candidate, path, verification.verdict)
            if not is_verified(plan):
                return plan
            if self.check.search == "measured":
                verification = self._with_time(verification, candidate, path)
            plan = _with_runtime_facts(plan, verification, candidate, path)
            plan = with_range_settings(
                plan, candidate.settings, path, self.check.timeout, self.progress
            )
        if self.graph_failure:  # without the original's graph, `_compare` measured no memory
            plan = plan.with_warnings(
                f"the runtime's memory was not measured: {self.graph_failure}"
            )
        verdict = plan.report.validation
        # The notes of the verdict become warnings of the plan.
        return plan.with_warnings(*(verdict.notes if verdict else ()))

    def _compare(self, candidate: Rewriting, path: Path) -> Verification:
        """Compare a candidate's file with the original, and measure the memory of both.

        If outputs may overwrite inputs, two steps of each model are compared as well.

        Raises:
            RuntimeUnavailableError: weights are missing.
        """
        from memplan_cli.features.donation.proof import donated_steps, with_donated_steps
        from memplan_cli.runtime.verification.verify import verify

        written = _written_model(candidate, path)
        verification = verify(self.baseline, self.graph, written, self.progress)
        pairs = candidate.plan.report.donated.pairs
        if not pairs or not verification.verdict.passed:
            return verification
        models, binding = (candidate.original, path), binding_of(candidate.settings)
        steps = donated_steps(models, pairs, self.check, binding)
        return replace(verification, verdict=with_donated_steps(verification.verdict, steps))

    def _with_time(
        self, verification: Verification, candidate: Rewriting, path: Path
    ) -> Verification:
        """Add the measured ratio of the time of a run to that of the original."""
        from memplan_cli.runtime.verification.verify import with_time
        from memplan_cli.runtime.workers.spec import RunConditions

        facts = verification.facts
        if facts is None:
            return verification
        conditions = RunConditions.of_check(self.check, binding_of(candidate.settings))
        facts, notes = with_time(facts, candidate.original, path, conditions)
        return replace(verification, facts=facts, warnings=(*verification.warnings, *notes))


class CandidateCost(NamedTuple):
    """The measured cost of a candidate, compared field by field; lower is better.

    Attributes:
        is_slower: whether a run takes longer than allowed, or was not measured.
        lacks_size: whether one of the two sizes in ``bytes`` was not measured.
        bytes: the bytes that the arena holds, with the weights in it, plus the peak of the first
            run. Candidates trade one for the other: one graph may map from its file what another
            packs at load.
    """

    is_slower: bool
    lacks_size: bool
    bytes: int


def candidate_cost(plan: Plan) -> CandidateCost:
    """Return the measured cost of a candidate, from its plan; costs are compared field by field, in order."""
    from memplan_cli.runtime.run.timing import is_slower

    runtime = plan.report.runtime
    if runtime is None:  # not measured: the highest cost
        return CandidateCost(is_slower=True, lacks_size=True, bytes=sys.maxsize)
    before, after = runtime.observed["original"], runtime.observed["optimized"]
    # Added up, because a candidate may save in one size what another candidate saves in the other size.
    sizes = (after.held, after.first_run_peak)
    return CandidateCost(
        is_slower=is_slower(after, before),
        lacks_size=None in sizes,
        bytes=sum(size for size in sizes if size is not None),
    )


def with_rejected(plan: Plan, rejected: Sequence[Plan]) -> Plan:
    """Return a plan whose report has a fallback for each candidate that was rejected before it.

    Candidates for a target, if the user asked for one, are tried before portable ones. If all candidates for
    the target were rejected, a single fallback has the reason of the first of these.
    """
    for_target = [other for other in rejected if other.report.target != "portable"]
    portable = [other for other in rejected if other.report.target == "portable"]
    if plan.report.target != "portable":  # all rejected ones are for the target too
        fallbacks = [_left_out(other) for other in for_target]
    elif for_target:  # the target was given up
        fallbacks = [_target_left_out(for_target[0]), *map(_left_out, portable)]
    else:  # no target was asked for
        fallbacks = [_left_out_with_advice(other) for other in portable]
    return plan.with_fallbacks(*fallbacks)


def _target_left_out(rejected: Plan) -> Fallback:
    """Return the fallback for a file that is not optimized for the target of a rejected candidate."""
    report = rejected.report
    what = f"the file is not optimized for {report.target}: it has the model's own graph"
    return Fallback(TARGET_LEFT_OUT, what, _reason_of_rejection(report))


def _left_out(rejected: Plan) -> Fallback:
    """Return the fallback for a rejected candidate."""
    what = f"{_name_of_candidate(rejected)} was left out"
    return Fallback(CANDIDATE_DIFFERED, what, _reason_of_rejection(rejected.report))


def _left_out_with_advice(rejected: Plan) -> Fallback:
    """Return the fallback for a rejected candidate, with the advice to optimize for a target.

    The advice helps if outputs were compared with a default run: a file for a target has the fusions of
    such a run.
    """
    fallback, verdict = _left_out(rejected), rejected.report.validation
    if verdict is None or verdict.reference != "defaults":
        return fallback
    advice = "--target cpu keeps ONNX Runtime's fusions, which decide the bits"
    return replace(fallback, why=f"{fallback.why}; {advice}")


def _name_of_candidate(plan: Plan) -> str:
    """Return what a rejected graph is: optimized for a target, or the model's own with these changes."""
    report, settings = plan.report, plan.settings
    if report.target != "portable":
        return f"a graph that was optimized for {report.target}"
    changes = {
        "recomputed nodes": report.recompute.nodes > 0,
        "chunks": bool(report.chunked.regions),
        "donated outputs": bool(report.donated.pairs),
        "another order": settings.get("order") != "keep",
        # With ``notes: plan``, only the plan file has the plan. The default, in the model too, is not recorded.
        "the plan as metadata": settings.get("notes") != "plan",
    }
    *others, last = [name for name, is_made in changes.items() if is_made] or ["no change"]
    return f"the graph with {', '.join(others)}{' and ' if others else ''}{last}"


def _reason_of_rejection(report: Report) -> str:
    """Return the first difference of a candidate that was rejected, or why it did not run."""
    verdict = report.validation
    if verdict is None:
        return "it did not run"
    if verdict.differences:
        first = verdict.differences[0]
        distance = (
            f"{first.elements} elements have other bits, by up to {first.max_abs_diff:.2g}"
        )
        return f"output {first.output!r}: {first.reason or distance}"
    return verdict.notes[0] if verdict.notes else f"the comparison {verdict.status}"


def with_all_slower_reported(plan: Plan) -> Plan:
    """Return the plan of the best candidate; if even that is slower than allowed, its report says so.

    The plan is returned unchanged if a time was not measured.
    """
    from memplan_cli.runtime.run.timing import is_slower

    observed = plan.report.runtime.observed if plan.report.runtime else {}
    before, after = observed.get("original"), observed.get("optimized")
    if before is None or after is None or not is_slower(after, before):
        return plan
    what = "the fastest settings are given, not those of the least memory"
    reason = "every way to run the file was slower than allowed"
    return plan.with_fallbacks(Fallback(ALL_SLOWER, what, reason))


def _with_runtime_facts(
    plan: Plan, verification: Verification, candidate: Rewriting, path: Path
) -> Plan:
    """Return a plan whose report has the runtime facts and the warnings of its candidate's verification.

    In the warnings, the name of the final file replaces ``path``, the candidate's temporary file.
    """
    from memplan_cli.features.donation.proof import with_donated_buffers

    if verification.facts is not None:
        facts = with_donated_buffers(verification.facts, plan.report.donated.pairs)
        plan = plan.with_report(replace(plan.report, runtime=facts))
    warnings = verification.warnings
    return plan.with_warnings(*(_with_final_names(text, candidate, path) for text in warnings))


def _with_verdict(candidate: Rewriting, path: Path, verdict: Validation) -> Plan:
    """Return a candidate's plan with the verdict and the dims of the run in its report.

    In the notes, the name of the final file replaces ``path``, the candidate's temporary file.
    """
    notes = tuple(_with_final_names(note, candidate, path) for note in verdict.notes)
    plan = candidate.plan
    bindings = {**plan.report.bindings, **dims_of_run(candidate.settings)}
    report = replace(
        plan.report,
        validation=replace(verdict, notes=notes),
        bindings=dict(sorted(bindings.items())),
    )
    return plan.with_report(report)


def _written_model(candidate: Rewriting, path: Path) -> WrittenModel:
    """Return how a candidate must be run from a file."""
    from memplan_cli.runtime.settings_search.written_model import WrittenModel

    return WrittenModel(
        path,
        candidate.planned.program,
        spoiled_by_optimization=candidate.unoptimized_only,
        optimized_offline=candidate.optimized_offline,
    )


def _with_final_names(text: str, candidate: Rewriting, path: Path) -> str:
    """Return a text in which ``path`` is the candidate's final name, and the original is named without its folder.

    Folders and temporary names differ from run to run, and reports must not.
    """
    text = text.replace(str(path), candidate.targets.model.name)
    return text.replace(str(candidate.original), candidate.original.name)
