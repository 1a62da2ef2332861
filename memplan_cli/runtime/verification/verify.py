"""A written model verified: its outputs compared with the original's, its memory accounted.

Each model runs once for its verification, and nothing runs for the memory alone. Settings are
predicted on the simulated planner and arena, the written model runs under them, and only if
that run contradicts the prediction is another one made, and said in a note.
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
from memplan_cli.runtime.settings_search.choice import SettingsChoice
from memplan_cli.runtime.settings_search.written_model import (
    Prediction,
    WrittenModel,
    read_baseline_graph,
)
from memplan_cli.runtime.verification.confirm import confirmed_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.report import RuntimeFacts
    from memplan_cli.runtime.run.baseline import Baseline
    from memplan_cli.runtime.settings_search.written_model import BaselineGraph
    from memplan_cli.runtime.workers.spec import RunConditions

_FAR, _MUCH = 1.5, 64 << 10
"""A factor and bytes above the predicted peak from which an observed one is a warning."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a written model, and the memory of both models.

    Attributes:
        verdict: of the comparison of outputs.
        facts: the report's runtime block; None if memory was not looked at or outputs differ.
        warnings: what the report says about the runs.
        as_written: whether the verdict holds only without the runtime's optimisation.
    """

    verdict: Validation
    facts: RuntimeFacts | None = None
    warnings: tuple[str, ...] = ()
    as_written: bool = False


def verify(
    baseline: Baseline,
    graph: BaselineGraph | None,
    written: WrittenModel,
    progress: Progress = silent,
) -> Verification:
    """Run a written model and compare it with its original.

    Args:
        baseline: the original's run.
        graph: the graph that it ran; None compares outputs alone.
        written: the written model.
        progress: told which run begins.

    Raises:
        RuntimeUnavailableError: the written model's weights are missing.
    """
    if not baseline.repeats:
        found = _compare_first_runs(baseline, written)
        if graph is None or not found.verdict.passed:
            return found
        as_written = written.as_written or found.as_written
        written = replace(written, as_written=as_written, verdict=found.verdict)
    if graph is None:
        return _compare_outputs(baseline, written)
    search = baseline.check.search
    prediction = Prediction(baseline, graph, written)
    confirmed = confirmed_settings(prediction, search, progress)
    verdict, as_written = confirmed.verdict, confirmed.run.as_written
    if not confirmed.passed:
        return Verification(verdict, as_written=as_written)
    facts = confirmed.facts()
    warnings = (
        *graph.warnings,
        *confirmed.notes,
        *confirmed.warning_by_default(),
        *confirmed.note_on_short_runs(),
        *_unpredicted(facts),
    )
    return Verification(verdict, facts, warnings, as_written)


def compare_models(
    original: Path,
    written: WrittenModel,
    check: Check,
    binding: Binding,
    original_settings: RuntimeSettings = DEFAULTS,
) -> Verification:
    """Run two models and compare the outputs of the first with those of the second.

    Args:
        original: the file whose outputs count.
        written: the other model, and how it has to run.
        check: where both run, and what counts as equal.
        binding: numbers for dims, and inputs that were given.
        original_settings: of the original's session.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does not
            run. A written model that does not run is a failed check, not an error.
        ModelError: it does not run because it takes other inputs than the original.
    """
    check = replace(check, depth="outputs")
    require_weights(written.path)
    model = load_model(original)
    with BaselineRun(original, model, check, binding, original_settings) as run:
        found = verify(run.result(), None, written)
    if found.verdict.status == "failed" and found.verdict.max_abs_diff is None:
        refuse_other_inputs(original, written.path)
    return found


def measure_models(
    original: Path, written: WrittenModel, check: Check, binding: Binding
) -> Verification:
    """Run two models, compare their outputs and account their memory.

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
        found = verify(baseline, read_baseline_graph(baseline), written)
    if found.facts is None and found.verdict.max_abs_diff is None:
        return compare_models(original, replace(written, as_written=False), check, binding)
    return found


def with_time(
    facts: RuntimeFacts, original: Path, written: Path, conditions: RunConditions
) -> tuple[RuntimeFacts, tuple[str, ...]]:
    """Return facts with the time of a run against the original's, and what the report says.

    Both run with the threads of a user, not with the settings that make outputs repeatable.
    """
    assert facts.settings is not None  # noqa: S101 - a model that was run has some
    before = conditions.session(original, DEFAULTS)
    after = conditions.session(written, facts.settings)
    try:
        inputs = conditions.input_set(original)
        ratio = time_ratio(before, after, inputs, conditions.timeout)
    except RuntimeUnavailableError as error:
        return facts, (f"the time of a run was not measured: {error}",)
    note = slower_note(ratio)
    return replace(facts, time=ratio), (note,) if note else ()


def refuse_other_inputs(original: Path, written: Path) -> None:
    """Refuse an original that a written model cannot have been made from.

    Raises:
        ModelError: one takes inputs that the other does not.
    """
    found = other_inputs(load_model(original), load_model(written))
    if found:
        raise ModelError(
            f"{written} was not made from {original}: {'; '.join(found)}",
            hint="name the model that it was made from with --original",
        )


def _compare_first_runs(baseline: Baseline, written: WrittenModel) -> Verification:
    """Compare with an original that does not repeat itself, if need be without optimisation."""
    path = written.path
    if written.offline:
        verdict = compare_unrepeatable(baseline, path, written.base, baseline.settings)
        return Verification(verdict, as_written=True)
    first = compare_unrepeatable(baseline, path, DEFAULTS, DEFAULTS)
    if first.status != "failed" or first.max_abs_diff is None:
        return Verification(first)
    second = compare_unrepeatable(baseline, path, UNOPTIMISED, UNOPTIMISED)
    if second.status != "passed":
        return Verification(first)
    verdict = replace(second, notes=(*second.notes, unoptimised_note(first)))
    return Verification(verdict, as_written=True)


def _compare_outputs(baseline: Baseline, written: WrittenModel) -> Verification:
    """Compare outputs under the runtime's defaults, if need be without optimisation."""
    path = written.path
    settings = written.base if written.as_written or written.offline else DEFAULTS
    first = run_written(baseline, path, settings)
    again: WrittenRun | None = None
    if first.has_other_outputs and not written.offline:
        if first.as_written:
            verdict = compare_original_unoptimised(baseline, first)
            again = replace(first, verdict=verdict)
        elif original := run_original_unoptimised(baseline):
            again = run_written(baseline, path, written.base, reference=original.inputs)
    if again is None or again.verdict.status != "passed":
        return Verification(first.verdict, as_written=first.as_written)
    note = unoptimised_note(first.verdict)
    verdict = replace(again.verdict, notes=(*again.verdict.notes, note))
    return Verification(verdict, as_written=True)


def _unpredicted(facts: RuntimeFacts) -> Iterator[str]:
    """Yield a warning if the written model took far more than was predicted."""
    predicted = facts.predicted["optimized"].first_run_peak
    observed = facts.observed["optimized"].first_run_peak
    if predicted is None or observed is None:
        return
    if observed > max(_FAR * predicted, predicted + _MUCH):
        yield (
            f"the runtime took {observed} bytes at its peak, of {predicted} predicted: as a rule it "
            "runs nodes that the file does not have, Casts where no kernel takes 16 bits, or what "
            "functions stand for"
        )


def confirm_settings(
    baseline: Baseline,
    graph: BaselineGraph,
    model: WrittenModel,
    progress: Progress = silent,
) -> SettingsChoice:
    """Return the best settings for the baseline's own file, confirmed by a run under them.

    Settings that do not give the baseline's bits, or take far longer, are not returned.

    Args:
        baseline: the model's run.
        graph: the graph that it ran.
        model: the same file, and how it has to run.
        progress: told which run begins.

    Raises:
        RuntimeUnavailableError: no settings give the same outputs.
    """
    if not baseline.repeats:  # its outputs show nothing
        model = replace(model, verdict=Validation("passed", baseline.provider))
    prediction = Prediction(baseline, graph, model)
    found = confirmed_settings(prediction, baseline.check.search, progress)
    run = found.run
    if not found.passed:
        said = "; ".join(run.verdict.notes) or "other outputs than under the defaults"
        raise RuntimeUnavailableError(
            f"{baseline.path}: no settings could be confirmed: {said}"
        )
    facts = found.facts()
    return SettingsChoice(
        run.settings,
        facts.predicted["optimized"],
        facts.observed["optimized"],
        (*graph.warnings, *found.notes, *found.note_on_short_runs()),
        baseline.provider,
    )
