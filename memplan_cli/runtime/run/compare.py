"""The comparison of a written model's run with the baseline run of its original.

Bits are compared, or distances if a tolerance was given, on all input sets: those at the sizes
that were asked for and, if sizes were assumed, at twice these. An original whose own runs
differ is compared by its first runs, with seeded copies if it draws random numbers.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.check import Tolerance
from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings, Validation
from memplan_cli.onnx_io.runs.prepared_models import seeded_twins
from memplan_cli.runtime.run.run_model import require_weights, run_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.observations import Difference
    from memplan_cli.runtime.run.baseline import Baseline
    from memplan_cli.runtime.run.record import RunRecord
    from memplan_cli.runtime.workers.spec import InputSet, RunSpec

_NOISE_MARGIN = 4.0
"""A provider that does not repeat itself excuses distances this many times its own."""

_SEEDED = (
    "random ops had seeds in copies of both models, of which the first runs were compared"
)

_CHANGING = (
    "a run of the original changes the next one: the first runs, which repeat, were compared"
)


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """A written model that was run and compared.

    Attributes:
        settings: of its session.
        verdict: of the comparison.
        record: what the run produced.
        as_written: whether the verdict holds only without the runtime's optimisation.
    """

    settings: RuntimeSettings
    verdict: Validation
    record: RunRecord
    as_written: bool = False

    @property
    def ran(self) -> bool:
        """Return whether the run succeeded."""
        return self.record.failure is None

    @property
    def has_other_outputs(self) -> bool:
        """Return whether the comparison failed because of outputs, not because of the run."""
        return self.verdict.status == "failed" and self.verdict.max_abs_diff is not None


def compare_runs(baseline: Baseline, record: RunRecord) -> Validation:
    """Return the verdict on a run whose outputs were compared with the baseline's files."""
    failed = next((one.failure for one in record.inputs if one.failure), "")
    if failed:
        note = f"the rewritten model does not run (error): {failed}"
        verdict = _failure(baseline.provider, note)
    else:
        verdict = verdict_of(record, baseline.provider, baseline.check.tolerance)
    return replace(verdict, notes=(*verdict.notes, *baseline.notes))


def run_written(
    baseline: Baseline,
    path: Path,
    settings: RuntimeSettings,
    *,
    graph: Path | None = None,
    reference: tuple[InputSet, ...] | None = None,
) -> WrittenRun:
    """Run a written model on the baseline's inputs and compare its outputs.

    Under the runtime's optimisation the run ends with the first outputs that differ, because
    both models are compared without optimisation then.

    Args:
        baseline: the original's run.
        path: the written file.
        settings: of its session.
        graph: where the runtime's own graph goes, if it is wanted.
        reference: input sets with the outputs to compare with, if not those of the baseline.

    Raises:
        RuntimeUnavailableError: weights are missing.
    """
    require_weights(path)
    as_written = is_unoptimised(settings)
    spec = compared_spec(baseline, path, settings, reference or baseline.inputs)
    if baseline.repeats and not as_written:
        spec = replace(spec, stop="at a difference")
    if graph is not None:
        spec = replace(spec, graph=graph, collect=(*spec.collect, "graph"))
    record = run_model(spec, timeout=baseline.check.timeout)
    return WrittenRun(settings, compare_runs(baseline, record), record, as_written)


def is_unoptimised(settings: RuntimeSettings) -> bool:
    """Return whether a file runs as it stands under these settings."""
    return settings.session.get("graph_optimization_level") == "ORT_DISABLE_ALL"


def compared_spec(
    baseline: Baseline, path: Path, settings: RuntimeSettings, inputs: Sequence[InputSet]
) -> RunSpec:
    """Return a run whose outputs are compared with the files of input sets.

    Outputs that differ are kept beside the baseline's.
    """
    compared = tuple(
        replace(one, compare_with=one.save_to, save_to=kept_folder(one)) for one in inputs
    )
    return baseline.run_spec(path, settings, compared)


def kept_folder(inputs: InputSet) -> Path:
    """Return the folder for a written model's outputs that differ from those of an input set."""
    assert inputs.save_to is not None  # noqa: S101 - a baseline saves its outputs
    folder = inputs.save_to.with_name(f"{inputs.save_to.name}.other")
    folder.mkdir(exist_ok=True)
    return folder


def compare_unrepeatable(
    baseline: Baseline,
    path: Path,
    settings: RuntimeSettings,
    original_settings: RuntimeSettings,
) -> Validation:
    """Compare a written model with an original whose own runs gave different bits.

    Copies whose random ops have seeds are compared by their first runs. Without random ops the
    first runs are compared if they repeat, and else all runs with a tolerance that excuses
    what the original itself does not repeat.

    Args:
        baseline: the original's run.
        path: the written file.
        settings: of the written file's session.
        original_settings: of the original's session.
    """
    models = (baseline.path, path)
    with tempfile.TemporaryDirectory(prefix="memplan-first-runs-") as name:
        folder, note = Path(name), _CHANGING
        if baseline.random:
            twins = seeded_twins(*models, folder)
            if twins is None:
                return _random(baseline)
            models, note = twins, _SEEDED
        inputs = tuple(
            replace(one, save_to=folder / f"outputs{number}")
            for number, one in enumerate(baseline.inputs)
        )
        for one in inputs:
            assert one.save_to is not None  # noqa: S101 - it was just given
            one.save_to.mkdir()
        first = _outputs_only(baseline.run_spec(models[0], original_settings, inputs), 1)
        run_model(first, timeout=baseline.check.timeout, about=baseline.path).require(
            f"{baseline.path}: the original's first run"
        )
        again, other = (
            run_model(
                _outputs_only(compared_spec(baseline, model, its_settings, inputs), 1),
                timeout=baseline.check.timeout,
                about=baseline.path if baseline.random else model,
            )
            for model, its_settings in (
                (models[0], original_settings),
                (models[1], settings),
            )
        )
        if again.failure is None and not again.differences:
            verdict = verdict_of(other, baseline.provider, baseline.check.tolerance)
            return replace(verdict, notes=(*verdict.notes, note, *baseline.notes))
    return _random(baseline) if baseline.random else _within_noise(baseline, path, settings)


def _within_noise(baseline: Baseline, path: Path, settings: RuntimeSettings) -> Validation:
    """Compare with a tolerance that excuses what the original does not repeat."""
    noise = baseline.record.differences
    tolerance = widened(baseline.check.tolerance, noise)
    spec = compared_spec(baseline, path, settings, baseline.inputs)
    spec = _outputs_only(replace(spec, tolerance=tolerance), baseline.check.runs)
    record = run_model(spec, timeout=baseline.check.timeout)
    return verdict_of(record, baseline.provider, tolerance, noise)


def _outputs_only(spec: RunSpec, runs: int) -> RunSpec:
    return replace(spec, collect=("outputs",), runs=runs, compared_runs=runs)


@dataclass(frozen=True, slots=True)
class UnoptimisedRun:
    """The original's run without the runtime's optimisation.

    Attributes:
        inputs: its input sets, whose ``save_to`` folders have its outputs.
        workspace: bytes that kernels request besides their outputs, by node. They hold for a
            written file, which has the same nodes.
    """

    inputs: tuple[InputSet, ...]
    workspace: Mapping[str, int] = field(repr=False)


def run_original_unoptimised(baseline: Baseline) -> UnoptimisedRun | None:
    """Run the original without the runtime's optimisation; None if it does not repeat itself.

    Which nodes the runtime fuses can depend on their order, and fused kernels round in other
    places. A written model whose outputs differ for that reason is right only as it stands.
    """
    inputs, folder = [], Path(tempfile.mkdtemp(dir=baseline.folder))
    for number, one in enumerate(baseline.inputs):
        outputs = folder / f"unoptimised{number}"
        outputs.mkdir()
        inputs.append(replace(one, save_to=outputs))
    spec = baseline.run_spec(baseline.path, UNOPTIMISED, tuple(inputs))
    record = run_model(_in_waiting_process(spec), timeout=baseline.check.timeout)
    if record.failure is not None or record.differences:
        return None
    return UnoptimisedRun(tuple(inputs), record.workspace or {})


def compare_original_unoptimised(baseline: Baseline, run: WrittenRun) -> Validation:
    """Compare the original without optimisation with the outputs of a file that ran as it stands.

    Only the outputs that differ from those of the baseline were kept, and are compared.
    """
    kept = [
        replace(one, save_to=kept_folder(one))
        for one, found in zip(baseline.inputs, run.record.inputs, strict=False)
        if found.differences
    ]
    spec = compared_spec(baseline, baseline.path, UNOPTIMISED, kept)
    record = run_model(_in_waiting_process(spec), timeout=baseline.check.timeout)
    return compare_runs(baseline, record)


def unoptimised_note(verdict: Validation) -> str:
    """Return the note for two models whose outputs are equal only with optimization disabled.

    Args:
        verdict: the failed comparison with optimization enabled; its largest difference is stated.
    """
    return (
        "compared with the runtime's optimisation off: on, the order changes what it fuses, "
        f"and outputs differ by up to {verdict.max_abs_diff:.2g}"
    )


def _in_waiting_process(spec: RunSpec) -> RunSpec:
    """Return a run that needs no new process: its memory is not measured."""
    kept = tuple(c for c in spec.collect if c in ("outputs", "arena"))
    return replace(spec, collect=kept, runs=spec.compared_runs)


def widened(tolerance: Tolerance, noise: Sequence[Difference]) -> Tolerance:
    """Return a tolerance that also excuses what a provider itself does not repeat."""
    if not noise:
        return tolerance
    widest = _NOISE_MARGIN * max(item.max_abs_diff for item in noise)
    return Tolerance(tolerance.rtol, max(tolerance.atol, widest))


def verdict_of(
    record: RunRecord,
    provider: str,
    tolerance: Tolerance,
    noise: tuple[Difference, ...] = (),
) -> Validation:
    """Return the verdict on a written model's run: its differences, or its failure."""
    failure = record.failure
    if failure is not None:
        note = f"the rewritten model does not run ({failure.how}): {failure.reason}"
        if failure.timed_out:
            note += ", and --timeout gives more"
        return _failure(provider, note)
    found = record.differences
    notes = (
        [] if tolerance.exact else [f"tolerance rtol={tolerance.rtol} atol={tolerance.atol}"]
    )
    if noise:
        notes.insert(0, f"two runs of the original differ in {len(noise)} outputs")
    return Validation(
        status="failed" if any(item.beyond for item in found) else "passed",
        provider=provider,
        max_abs_diff=max((item.max_abs_diff for item in found), default=0.0),
        bit_identical=not found,
        differences=found,
        notes=tuple(notes),
    )


def _failure(provider: str, note: str) -> Validation:
    return Validation("failed", provider, bit_identical=False, notes=(note,))


def _random(baseline: Baseline) -> Validation:
    note = (
        f"two runs of the original differ in {len(baseline.record.differences)} outputs, "
        f"because it draws random numbers ({', '.join(baseline.random)}): no comparison can "
        "show anything there"
    )
    return Validation("nondeterministic", baseline.provider, notes=(note,))
