"""Verification of a written model: outputs compared with the original's, memory measured.

Each model runs once; outputs and memory come from the same run. Settings are predicted with the
simulated planner and arena, and the written model runs under them. It runs again only if that run
contradicts the prediction, which a note states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import Validation
from memplan_cli.errors import ModelError, RuntimeUnavailableError
from memplan_cli.onnx_io.interface import input_differences
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.graph.offline import offline_program
from memplan_cli.runtime.run.baseline import DEFAULTS, BaselineRun
from memplan_cli.runtime.run.compare import compare_unrepeatable, run_written
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.run.timing import time_ratio
from memplan_cli.runtime.settings_search.predicted import SettingsChoice
from memplan_cli.runtime.settings_search.written_model import (
    Prediction,
    WrittenModel,
    read_baseline_graph,
    settings_of_comparison,
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
    """

    verdict: Validation
    facts: RuntimeSummary | None = None
    warnings: tuple[str, ...] = ()


def verify(
    baseline: Baseline,
    graph: BaselineGraph | None,
    written: WrittenModel,
    progress: Progress = silent,
) -> Verification:
    """Run a written model and compare it with its original.

    One run gives both the verdict on outputs and the memory, unless the original's own runs gave different outputs.
    Then runs without a measurement give the verdict, and a further run the memory if the verdict has passed.

    Args:
        baseline: the run of the original.
        graph: the graph that this run executed, and its predicted memory. None: only outputs are
            compared, and no memory is measured.
        written: the written model.
        progress: is called with what is done.

    Raises:
        RuntimeUnavailableError: the written model's weights are missing.
    """
    if not baseline.is_repeatable:
        settings = settings_of_comparison(baseline, written)
        verdict = compare_unrepeatable(baseline, written.path, settings)
        if graph is None or not verdict.passed:
            return Verification(_with_compared_run(verdict, baseline))
        # The runs below only measure memory. With a known verdict they do not compare outputs again.
        written = replace(written, known_verdict=verdict)
    if graph is None:
        settings = settings_of_comparison(baseline, written)
        verdict = run_written(baseline, written.path, settings).verdict
        return Verification(_with_compared_run(verdict, baseline))
    prediction = Prediction(baseline, graph, written)
    confirmation = confirm_prediction(prediction, baseline.check.search, progress)
    verdict = _with_compared_run(confirmation.verdict, baseline)
    if not confirmation.passed:
        return Verification(verdict)
    # The verdict stays. The memory may be that of a further run, which releases its arena at the end.
    confirmation.choose_idle_arena(progress)
    facts = confirmation.runtime_summary()
    warnings = (
        *graph.warnings,
        *confirmation.notes,
        *confirmation.warning_by_default(),
        *_unpredicted_peak_warning(facts),
    )
    return Verification(verdict, facts, warnings)


def compare_models(
    original: Path, written: WrittenModel, check: Check, binding: Binding
) -> Verification:
    """Run an original and a written model, and compare their outputs.

    If the check has the depth ``full``, memory is measured too. Settings of the written model are then
    predicted as `optimize` predicts them.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does not
            run. A written model that does not run is a failed check, not an error.
        ModelError: the written model does not run, and its inputs differ from the original's.
    """
    require_weights(written.path)
    with BaselineRun(original, load_model(original), check, binding) as run:
        baseline, graph = run.result(), None
        if check.depth == "full":
            # Settings and memory of the written model are predicted from its program, those of the original
            # from the graph that the baseline run executed.
            program = offline_program(written.path, binding.dims, baseline.provider)
            written = replace(written, program=program)
            graph = read_baseline_graph(baseline)
        verification = verify(baseline, graph, written)
    if verification.verdict.did_not_run:
        differences = input_differences(load_model(original), load_model(written.path))
        if differences:
            raise ModelError(
                f"{written.path} was not made from {original}: {'; '.join(differences)}",
                hint="name the model that it was made from with --original",
            )
    return verification


def with_time(
    facts: RuntimeSummary, original: Path, written: Path, conditions: RunConditions
) -> tuple[RuntimeSummary, tuple[str, ...]]:
    """Return the facts with the time ratio of both models, and notes for the report.

    The original runs under the runtime's defaults, the written model under its own settings. Both
    use the default number of threads, although outputs are compared with a single one.
    """
    assert facts.settings is not None  # noqa: S101 - set for every model that was run
    before = conditions.session(original, DEFAULTS)
    after = conditions.session(written, facts.settings)
    try:
        inputs = conditions.input_set(original)
        ratio = time_ratio(before, after, inputs, conditions.timeout)
    except RuntimeUnavailableError as error:
        return facts, (f"the time of a run was not measured: {error.message}",)
    notes = (str(ratio),) if ratio is not None and ratio.is_slower else ()
    return replace(facts, time=ratio), notes


def _with_compared_run(verdict: Validation, baseline: Baseline) -> Validation:
    """Return a verdict that names the run of the original that outputs were compared with."""
    difference = baseline.unoptimized.diff_from_defaults if baseline.unoptimized else None
    return replace(verdict, reference=baseline.check.reference, diff_from_defaults=difference)


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

    Args:
        baseline: the run of the file under its usual settings.
        graph: the graph that this run executed, and its predicted memory.
        model: the same file, as one whose settings are searched.
        progress: is called with what is done.

    Raises:
        RuntimeUnavailableError: no settings give the same outputs.
    """
    if not baseline.is_repeatable:
        # Outputs that change from run to run cannot be compared: a known verdict turns the comparison off.
        model = replace(model, known_verdict=Validation("passed", baseline.provider))
    prediction = Prediction(baseline, graph, model)
    confirmation = confirm_prediction(prediction, baseline.check.search, progress)
    if not confirmation.passed:
        notes = confirmation.run.verdict.notes
        reason = "; ".join(notes) or "other outputs than under the defaults"
        raise RuntimeUnavailableError(
            f"{baseline.path}: no settings could be confirmed: {reason}"
        )
    if baseline.check.idle == "release":
        # The settings recorded in the file release the arena after each run. The new settings do so too, under
        # which the model is run once more: that run is reported.
        confirmation.release_arena()
    run = confirmation.run
    # "optimized" is the key of the report for the memory of the second model: here the baseline's own file
    # under the confirmed settings.
    facts = confirmation.runtime_summary()
    return SettingsChoice(
        settings=run.settings,
        predicted=facts.predicted["optimized"],
        observed=facts.observed["optimized"],
        notes=(*graph.warnings, *confirmation.notes),
        provider=baseline.provider,
    )
