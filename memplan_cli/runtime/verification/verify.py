"""Verification of a written model: outputs compared with the original's, memory measured.

Each model runs once; outputs and memory come from the same run. Settings are predicted with the
simulated planner and arena, and the written model runs under them. It runs again only if that run
contradicts the prediction, which a note states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import UNOPTIMIZED, RuntimeSettings, Validation
from memplan_cli.errors import ModelError, RuntimeUnavailableError
from memplan_cli.onnx_io.interface import other_inputs
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.graph.offline import offline_program
from memplan_cli.runtime.run.baseline import DEFAULTS, BaselineRun
from memplan_cli.runtime.run.compare import (
    WrittenRun,
    compare_original_unoptimized,
    compare_unrepeatable,
    did_not_run,
    has_other_outputs,
    run_original_unoptimized,
    run_written,
    with_unoptimized_note,
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
        unoptimized_only: whether the verdict holds only for runs without ONNX Runtime's optimization.
    """

    verdict: Validation
    facts: RuntimeSummary | None = None
    warnings: tuple[str, ...] = ()
    unoptimized_only: bool = False


def verify(
    baseline: Baseline,
    graph: BaselineGraph | None,
    written: WrittenModel,
    progress: Progress = silent,
) -> Verification:
    """Run a written model and compare it with its original.

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
        # Outputs that change from run to run are compared in runs of their own, by other rules.
        verification = _compare_changing_outputs(baseline, written)
        if graph is None or not verification.verdict.passed:
            return verification
        # The runs below only measure memory. With a known verdict they do not compare outputs again, and
        # they stay without optimization if the verdict holds only so.
        written = replace(written, known_verdict=verification.verdict)
        if verification.unoptimized_only:
            written = replace(written, spoiled_by_optimization=True)
    if graph is None:
        return _compare_outputs(baseline, written)
    prediction = Prediction(baseline, graph, written)
    confirmation = confirm_prediction(prediction, baseline.check.search, progress)
    verdict, unoptimized_only = confirmation.verdict, confirmation.run.is_unoptimized
    if not confirmation.passed:
        return Verification(verdict, unoptimized_only=unoptimized_only)
    facts = confirmation.facts()
    warnings = (
        *graph.warnings,
        *confirmation.notes,
        *confirmation.warning_by_default(),
        *_unpredicted_peak_warning(facts),
    )
    return Verification(verdict, facts, warnings, unoptimized_only)


def compare_models(
    original: Path,
    written: WrittenModel,
    check: Check,
    binding: Binding,
    original_settings: RuntimeSettings = DEFAULTS,
) -> Verification:
    """Run an original and a written model, and compare only their outputs.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does not
            run. A written model that does not run is a failed check, not an error.
        ModelError: the written model does not run, and its inputs differ from the original's.
    """
    check = replace(check, depth="outputs")
    require_weights(written.path)
    model = load_model(original)
    with BaselineRun(original, model, check, binding, original_settings) as run:
        verification = verify(run.result(), graph=None, written=written)
    if did_not_run(verification.verdict):
        require_same_inputs(original, written.path)
    return verification


def measure_models(
    original: Path, written: WrittenModel, check: Check, binding: Binding
) -> Verification:
    """Run an original and a written model, compare their outputs and measure their memory.

    Settings of the written model are predicted as `optimize` predicts them.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does not
            run.
        ModelError: the written model does not run, and its inputs differ from the original's.
    """
    check = replace(check, depth="full")
    with BaselineRun(original, load_model(original), check, binding) as run:
        baseline = run.result()
        program = offline_program(written.path, binding.dims, baseline.provider)
        written = replace(written, program=program)
        verification = verify(baseline, read_baseline_graph(baseline), written)
    if did_not_run(verification.verdict):
        require_same_inputs(original, written.path)
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


def _compare_changing_outputs(baseline: Baseline, written: WrittenModel) -> Verification:
    """Compare the outputs of a written model with those of an original whose own runs differ.

    A model that ONNX Runtime optimized offline runs without further optimization, and the original under
    the settings of the baseline. Other models run under the runtime's defaults. If their outputs differ
    then, both models run again without optimization: the order of nodes can decide which of them ONNX
    Runtime fuses, and fused nodes round differently.
    """
    path = written.path
    if written.optimized_offline:
        verdict = compare_unrepeatable(
            baseline, path, written.unoptimized_settings, baseline.settings
        )
        return Verification(verdict, unoptimized_only=True)
    optimized = compare_unrepeatable(baseline, path, DEFAULTS, DEFAULTS)
    if not has_other_outputs(optimized):
        return Verification(optimized)
    unoptimized = compare_unrepeatable(baseline, path, UNOPTIMIZED, UNOPTIMIZED)
    if unoptimized.status != "passed":
        return Verification(optimized)
    verdict = with_unoptimized_note(unoptimized, optimized)
    return Verification(verdict, unoptimized_only=True)


def _compare_outputs(baseline: Baseline, written: WrittenModel) -> Verification:
    """Compare the outputs of a written model with those of the baseline, and measure nothing else.

    The model runs under the runtime's defaults, or without optimization if it must. If the outputs differ,
    both models are compared without optimization: the order of nodes can decide which of them ONNX
    Runtime fuses, and fused nodes round differently. A model that ONNX Runtime optimized offline is not
    compared so. It has fused nodes, which the original has only with optimization.
    """
    must_be_unoptimized = written.unoptimized_only
    settings = written.unoptimized_settings if must_be_unoptimized else DEFAULTS
    run = run_written(baseline, written.path, settings)
    verification = Verification(run.verdict, unoptimized_only=must_be_unoptimized)
    if not run.has_other_outputs or written.optimized_offline:
        return verification
    unoptimized = _compare_unoptimized(baseline, written, run)
    if unoptimized is None or unoptimized.status != "passed":
        return verification
    verdict = with_unoptimized_note(unoptimized, run.verdict)
    return Verification(verdict, unoptimized_only=True)


def _compare_unoptimized(
    baseline: Baseline, written: WrittenModel, run: WrittenRun
) -> Validation | None:
    """Compare both models without optimization. ``run`` is a run of the written model.

    Returns None if the original does not run so, or if its runs differ then.
    """
    if run.is_unoptimized:  # then only the original has to run again
        return compare_original_unoptimized(baseline, run)
    original = run_original_unoptimized(baseline)
    if original is None:
        return None
    settings = written.unoptimized_settings
    return run_written(baseline, written.path, settings, reference=original.inputs).verdict


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
    if not baseline.is_repeatable:
        # Its outputs change from run to run. With a known verdict they are not compared.
        model = replace(model, known_verdict=Validation("passed", baseline.provider))
    prediction = Prediction(baseline, graph, model)
    confirmation = confirm_prediction(prediction, baseline.check.search, progress)
    run = confirmation.run
    if not confirmation.passed:
        reason = "; ".join(run.verdict.notes) or "other outputs than under the defaults"
        raise RuntimeUnavailableError(
            f"{baseline.path}: no settings could be confirmed: {reason}"
        )
    # "optimized" is the key of the report for the memory of the second model: here the baseline's own file
    # under the confirmed settings.
    facts = confirmation.facts()
    return SettingsChoice(
        settings=run.settings,
        predicted=facts.predicted["optimized"],
        observed=facts.observed["optimized"],
        notes=(*graph.warnings, *confirmation.notes),
        provider=baseline.provider,
    )
