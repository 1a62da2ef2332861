"""Candidates of `optimize` verified against the run of their original."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from memplan_cli.api.donate import Donation, with_binding, with_donation
from memplan_cli.api.files.binding import binding_of, run_at
from memplan_cli.api.optimized import passed, warned
from memplan_cli.api.within_bounds import with_range
from memplan_cli.core.files import staged
from memplan_cli.errors import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.api.files.rewriting import Rewriting, RewrittenFiles
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.runtime.run.baseline import Baseline, BaselineRun
    from memplan_cli.runtime.settings_search.written_model import BaselineGraph, WrittenModel
    from memplan_cli.runtime.verification.verify import Verification
    from memplan_cli.settings.settings import Settings


class SizesRefusedError(RuntimeUnavailableError):
    """An original does not run at sizes that were assumed without trying them."""


class BackgroundBaseline:
    """The run of the original, started as soon as its sizes are known.

    A second core runs the original while the first one plans. The run and its files last until
    the block in which this is used ends.
    """

    def __init__(self, check: Check | None) -> None:
        """Start nothing yet; without a check nothing is ever run."""
        self._check = check
        self._run: BaselineRun | None = None

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the run if it is under way still, and remove its files."""
        self._end()

    def start(self, file: ModelFile, settings: Settings) -> None:
        """Start the model at the sizes of settings; that it does not run is found out later.

        Raises:
            RuntimeUnavailableError: the provider does not work here.
        """
        if self._check is None or self._run is not None:
            return
        from memplan_cli.runtime.run.baseline import BaselineRun
        from memplan_cli.runtime.workers.session import resolve_provider

        resolve_provider(self._check.provider)
        with suppress(RuntimeUnavailableError):
            binding = binding_of(settings)
            self._run = BaselineRun(file.path, file.model, self._check, binding)

    def verifier(self, candidate: Rewriting, check: Check, progress: Progress) -> Verifier:
        """Wait for the original of a candidate; it is run now if it was not started as asked.

        Raises:
            SizesRefusedError: it does not run, and some of its sizes are assumed.
            RuntimeUnavailableError: it does not run.
        """
        from memplan_cli.runtime.settings_search.written_model import read_baseline_graph

        progress("running the original")
        baseline = self._result(candidate, check)
        if check.depth == "outputs":
            return Verifier(baseline, check, progress)
        try:
            return Verifier(baseline, check, progress, read_baseline_graph(baseline))
        except RuntimeUnavailableError as error:
            failure = _without_folders(f"{error}", candidate, candidate.targets.model)
            return Verifier(baseline, check, progress, failure=failure)

    def _result(self, candidate: Rewriting, check: Check) -> Baseline:
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.runtime.run.baseline import BaselineRun

        path, binding = candidate.compared_with, binding_of(candidate.settings)
        run = self._run
        if run is None or (run.path, run.check, run.binding) != (path, check, binding):
            self._end()
            # A graph that the runtime wrote may have lost dims that the inputs have.
            model = candidate.file.model if candidate.original is None else load_model(path)
            self._run = run = BaselineRun(path, model, check, binding)
        try:
            return run.result()
        except RuntimeUnavailableError as error:
            if candidate.settings.inputs.assumed:
                raise SizesRefusedError(str(error), hint=error.hint) from error
            raise

    def _end(self) -> None:
        if self._run is not None:
            self._run.end()


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies candidates against the run of their original.

    Attributes:
        baseline: the original's run.
        check: what is compared and measured.
        progress: told which run begins.
        graph: the graph that the original ran; None compares outputs alone.
        failure: why there is no graph although memory was to be looked at.
    """

    baseline: Baseline
    check: Check
    progress: Progress
    graph: BaselineGraph | None = None
    failure: str = ""

    def by_predicted_memory(self, candidates: Sequence[Rewriting]) -> list[Rewriting]:
        """Return candidates in the order of their predicted memory, the least first."""
        graph = self.graph
        if graph is None or len(candidates) == 1:
            return list(candidates)
        from memplan_cli.runtime.settings_search.written_model import (
            predicted_cost,
            ranked_by_cost,
        )

        # The weights are those of the file that is rewritten, wherever they lie.
        models = (_written_model(each, each.file.path) for each in candidates)
        costs = [predicted_cost(self.baseline, graph, model) for model in models]
        return [candidates[index] for index in ranked_by_cost(costs)]

    def verify(self, candidate: Rewriting, files: RewrittenFiles) -> Plan:
        """Run a candidate under a temporary name; return its plan with verdict and memory.

        Raises:
            RuntimeUnavailableError: weights are missing.
        """
        from memplan_cli.runtime.verification.verify import verify

        with staged(candidate.targets.model, files.data) as path:
            written = _written_model(candidate, path)
            found = verify(self.baseline, self.graph, written, self.progress)
            verdict = with_donation(
                found.verdict,
                (candidate.compared_with, path),
                Donation(
                    candidate.planned.plan.report.donated.pairs,
                    offline=candidate.original is not None,
                ),
                self.check,
                binding_of(candidate.settings),
            )
            plan = _with_verdict(candidate, path, verdict)
            if not passed(plan):
                return plan
            found = self._measured_further(found, candidate, path)
            warnings = [_without_folders(each, candidate, path) for each in found.warnings]
            if self.failure:
                warnings.append(f"the runtime's memory was not measured: {self.failure}")
            if found.facts is not None:
                facts = with_binding(found.facts, plan.report.donated.pairs)
                plan = plan.with_report(replace(plan.report, runtime=facts))
            plan = with_range(plan, candidate, path, self.check.timeout, self.progress)
        validation = plan.report.validation
        notes = validation.notes if validation else ()
        return warned(plan, *warnings, *notes)

    def _measured_further(
        self, found: Verification, candidate: Rewriting, path: Path
    ) -> Verification:
        """Add the cost of inline weights and the time of a run, if settings are measured."""
        if self.check.search != "measured" or found.facts is None:
            return found
        from memplan_cli.runtime.run.load_cost import load_cost
        from memplan_cli.runtime.verification.verify import with_time
        from memplan_cli.runtime.workers.spec import RunConditions

        conditions = RunConditions.of_check(self.check, binding_of(candidate.settings))
        loading = load_cost(path, conditions.provider)
        facts, notes = with_time(found.facts, candidate.compared_with, path, conditions)
        warnings = (*found.warnings, *([str(loading)] if loading else []), *notes)
        return replace(found, facts=facts, warnings=warnings)


def measured_cost(plan: Plan) -> tuple[bool, int]:
    """Return whether a verified model is slower than allowed, and its measured memory in bytes.

    Weights in the arena count: one graph may map from its file what another packs at load.
    """
    from memplan_cli.runtime.run.timing import is_slower

    runtime = plan.report.runtime
    if runtime is None:
        return True, 0
    before, after = (
        runtime.observed["original"],
        runtime.observed["optimized"],
    )
    return is_slower(after, before), (after.held or 0) + (after.first_run_peak or 0)


def _with_verdict(candidate: Rewriting, path: Path, verdict: Validation) -> Plan:
    """Return a candidate's plan with a verdict, and the dims of the run, in its report."""
    notes = tuple(_without_folders(note, candidate, path) for note in verdict.notes)
    plan = candidate.planned.plan
    bindings = {**plan.report.bindings, **run_at(candidate.settings)}
    report = replace(
        plan.report,
        validation=replace(verdict, notes=notes),
        bindings=dict(sorted(bindings.items())),
    )
    return plan.with_report(report)


def _written_model(candidate: Rewriting, path: Path) -> WrittenModel:
    from memplan_cli.runtime.settings_search.written_model import WrittenModel

    return WrittenModel(
        path,
        candidate.planned.program,
        as_written=candidate.only_as_written,
        offline=candidate.original is not None,
        for_range=bool(candidate.settings.bounds),
    )


def _without_folders(text: str, candidate: Rewriting, path: Path) -> str:
    """Return a text in which both models have no folders, and the temporary file its later name.

    The working folder and the name of a temporary file are other ones each time.
    """
    text = text.replace(str(path), candidate.targets.model.name)
    return text.replace(str(candidate.compared_with), candidate.compared_with.name)
