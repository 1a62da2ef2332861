"""Verification of a written model: outputs compared with the original's, memory measured.

Each model runs once; outputs and memory come from the same run. Settings are predicted with the
simulated planner and arena, and the written model runs under them. It runs again only if that run
contradicts the prediction, which a note states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings, Validation
from memplan_cli.errors import ModelError, RuntimeUnavailableError
from memplan_cli.onnx_io.interface import other_inputs
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.graph.offline import offline_program
from memplan_cli.runtime.run.baseline import DEFAULTS, BaselineRun
from memplan_cli.runtime.run.compare import (
    WrittenRun,
    compare_original_unoptimised,
    compare_unrepeatable,
    run_original_unoptimised,
    run_written,
    unoptimised_note,
)
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.run.timing import slower_note, time_ratio
from memplan_cli.runtime.settings_search.predicted import SettingsChoice
from memplan_cli.runtime.settings_search.written_model import (
    Prediction,
    WrittenModel,
    read_baseline_graph,
)
from memplan_cli.runtime.verification.confirm import confirm_prediction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.report import RuntimeSummary
    from memplan_cli.runtime.run.baseline import Baseline
    from memplan_cli.runtime.settings_search.written_model import BaselineGraph
    from memplan_cli.runtime.workers.spec import RunConditions

_PEAK_FACTOR, _PEAK_BYTES = 1.5, 64 << 10
"""An observed peak above the predicted one by both this factor and these bytes is a warning."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a written model, and the memory of both models.

    Attributes:
        verdict: of the comparison of outputs.
        facts: the report's runtime block; None if memory was not measured or outputs differ.
        warnings: for the report.
        as_written: whether the verdict holds only for runs without optimisation.
    """

    verdict: Validation
    facts: RuntimeSummary | None = None
    warnings: tuple[str, ...] = ()
    as_written: bool = False


def verify(
    baseline: Baseline,
    graph: BaselineGraph | None,
    written: WrittenModel,
    progress: Progress = silent,
) -> Verification:
    """Run a written model and compare it with its original, whose run showed ``graph``.

    Without a graph, only outputs are compared.

    Raises:
        RuntimeUnavailableError: the written model's weights are missing.
    """
    if not baseline.is_repeatable:
        # Outputs that change from run to run are compared in runs of their own, by other rules.
        verification = _compare_first_runs(baseline, written)
        if graph is None or not verification.verdict.passed:
            return verification
        as_written = written.as_written or verification.as_written
        written = replace(written, as_written=as_written, verdict=verification.verdict)
    if graph is None:
        return _compare_outputs(baseline, written)
    prediction = Prediction(baseline, graph, written)
    confirmation = confirm_prediction(prediction, baseline.check.search, progress)
    verdict, as_written = confirmation.verdict, confirmation.run.as_written
    if not confirmation.passed:
        return Verification(verdict, as_written=as_written)
    facts = confirmation.facts()
    warnings = (
        *graph.warnings,
        *confirmation.notes,
        *confirmation.warning_by_default(),
        *_unpredicted_peak_warning(facts),
    )
    return Verification(verdict, facts, warnings, as_written)


def compare_models(
    original: Path,
    written: WrittenModel,
    check: Check,
    binding: Binding,
    original_settings: RuntimeSettings = DEFAULTS,
) -> Verification:
    """Run an original and a written model, and compare only their outputs.

    Args:
        original: the file whose outputs are the reference.
        written: the written model, and how it must be run.
        check: where both run, and the tolerance.
        binding: values of dims, and given inputs.
        original_settings: of the original's session.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does not
            run. A written model that does not run is a failed check, not an error.
        ModelError: the written model does not run, and its inputs differ from the original's.
    """
    check = replace(check, depth="outputs")
    require_weights(written.path)
    model = load_model(original)
    with BaselineRun(original, model, check, binding, original_settings) as run:
        verification = verify(run.result(), None, written)
    verdict = verification.verdict
    did_not_run = verdict.status == "failed" and verdict.max_abs_diff is None
    if did_not_run:
        require_same_inputs(original, written.path)
    return verification


def measure_models(
    original: Path, written: WrittenModel, check: Check, binding: Binding
) -> Verification:
    """Run an original and a written model, compare their outputs and measure their memory.

    The arguments are those of `compare_models`. Settings of the written model are predicted as
    `optimize` predicts them. A written model that does not run under them is compared under the
    runtime's defaults.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does not
            run.
        ModelError: the written model takes other inputs than the original.
    """
    check = replace(check, depth="full")
    with BaselineRun(original, load_model(original), check, binding) as run:
        baseline = run.result()
        program = offline_program(written.path, binding.dims, baseline.provider)
        written = replace(written, program=program)
        verification = verify(baseline, read_baseline_graph(baseline), written)
    did_not_run = verification.facts is None and verification.verdict.max_abs_diff is None
    if did_not_run:
        return compare_models(original, replace(written, as_written=False), check, binding)
    return verification


def with_time(
    facts: RuntimeSummary, original: Path, written: Path, conditions: RunConditions
) -> tuple[RuntimeSummary, tuple[str, ...]]:
    """Return the facts with the time ratio of both models, and notes for the report.

    Both run with the default number of threads, not with the settings for deterministic outputs.
    """
    assert facts.settings is not None  # noqa: S101 - set for every model that was run
    before = conditions.session(original, DEFAULTS)
    after = conditions.session(written, facts.settings)
    try:
        inputs = conditions.input_set(original)
        ratio = time_ratio(before, after, inputs, conditions.timeout)
    except RuntimeUnavailableError as error:
        return facts, (f"the time of a run was not measured: {error}",)
    note = slower_note(ratio)
    return replace(facts, time=ratio), (note,) if note else ()


def require_same_inputs(original: Path, written: Path) -> None:
    """Raise an error if two models have different inputs, so that one was not made from the other.

    Raises:
        ModelError: the message lists the differences.
    """
    differences = other_inputs(load_model(original), load_model(written))
    if differences:
        raise ModelError(
            f"{written} was not made from {original}: {'; '.join(differences)}",
            hint="name the model that it was made from with --original",
        )


def _compare_first_runs(baseline: Baseline, written: WrittenModel) -> Verification:
    """Compare the outputs of a written model with those of an original whose own runs differ.

    A file that was optimised offline is always run as it is. Other models are run with the runtime's
    optimisation. If their outputs differ, both are run without it, because the order of nodes can
    decide what it fuses. If they are equal then, the written model must be run ``as_written``.
    """
    path = written.path
    if written.offline:
        verdict = compare_unrepeatable(baseline, path, written.base, baseline.settings)
        return Verification(verdict, as_written=True)
    optimised = compare_unrepeatable(baseline, path, DEFAULTS, DEFAULTS)
    if optimised.status != "failed" or optimised.max_abs_diff is None:  # None: it did not run
        return Verification(optimised)
    unoptimised = compare_unrepeatable(baseline, path, UNOPTIMISED, UNOPTIMISED)
    if unoptimised.status != "passed":
        return Verification(optimised)
    notes = (*unoptimised.notes, unoptimised_note(optimised))
    verdict = replace(unoptimised, notes=notes)
    return Verification(verdict, as_written=True)


def _compare_outputs(baseline: Baseline, written: WrittenModel) -> Verification:
    """Compare outputs under the runtime's defaults, and without optimisation if they differ.

    The order of nodes can decide what optimisation fuses. If outputs are equal only without it, the
    written model must be run ``as_written``. A written model that must be run so anyway is run once;
    then only the original is run again, without optimisation.
    """
    path = written.path
    settings = written.base if written.as_written or written.offline else DEFAULTS
    first_run = run_written(baseline, path, settings)
    unoptimised: WrittenRun | None = None
    if first_run.has_other_outputs and not written.offline:
        if first_run.as_written:
            verdict = compare_original_unoptimised(baseline, first_run)
            unoptimised = replace(first_run, verdict=verdict)
        elif original := run_original_unoptimised(baseline):
            unoptimised = run_written(baseline, path, written.base, reference=original.inputs)
    if unoptimised is None or unoptimised.verdict.status != "passed":
        return Verification(first_run.verdict, as_written=first_run.as_written)
    note = unoptimised_note(first_run.verdict)
    verdict = replace(unoptimised.verdict, notes=(*unoptimised.verdict.notes, note))
    return Verification(verdict, as_written=True)


def _unpredicted_peak_warning(facts: RuntimeSummary) -> Iterator[str]:
    """Yield a warning if the written model's observed peak is far above the predicted one."""
    predicted = facts.predicted["optimized"].first_run_peak
    observed = facts.observed["optimized"].first_run_peak
    if predicted is None or observed is None:
        return
    if observed > max(_PEAK_FACTOR * predicted, predicted + _PEAK_BYTES):
        yield (
            f"the runtime used {observed} bytes at its peak, {predicted} were predicted: usually it "
            "runs nodes that the file does not have, such as Casts around kernels without 16-bit "
            "types, or the bodies of functions"
        )


def choose_settings(
    baseline: Baseline,
    graph: BaselineGraph,
    model: WrittenModel,
    progress: Progress = silent,
) -> SettingsChoice:
    """Return the best settings for the baseline's own file, confirmed by a run under them.

    Settings with which outputs differ from the baseline's, or runs take far longer, are rejected.

    Raises:
        RuntimeUnavailableError: no settings give the same outputs.
    """
    if not baseline.is_repeatable:  # then its outputs cannot be compared
        model = replace(model, verdict=Validation("passed", baseline.provider))
    prediction = Prediction(baseline, graph, model)
    confirmation = confirm_prediction(prediction, baseline.check.search, progress)
    run = confirmation.run
    if not confirmation.passed:
        reason = "; ".join(run.verdict.notes) or "other outputs than under the defaults"
        raise RuntimeUnavailableError(
            f"{baseline.path}: no settings could be confirmed: {reason}"
        )
    facts = confirmation.facts()
    return SettingsChoice(
        run.settings,
        facts.predicted["optimized"],
        facts.observed["optimized"],
        (*graph.warnings, *confirmation.notes),
        baseline.provider,
    )
