"""The comparison of a written model's run with the baseline run of its original.

Outputs are compared bit for bit, or within a given tolerance, on all input sets: at the dims of
the binding, and at its `second_dims`, if there are any. If the original's own runs differ, the first
runs are compared; if it draws random numbers, those of copies with fixed seeds.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.check import Tolerance
from memplan_cli.core.results.observations import UNOPTIMIZED, RuntimeSettings, Validation
from memplan_cli.onnx_io.runs.prepared_models import seeded_twins
from memplan_cli.runtime.run.baseline import compared_spec
from memplan_cli.runtime.run.run_model import require_weights, run_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.results.observations import Difference
    from memplan_cli.runtime.run.baseline import Baseline
    from memplan_cli.runtime.run.run_model import RunRecord
    from memplan_cli.runtime.workers.spec import InputSet, RunSpec

_NOISE_MARGIN = 4.0
"""The tolerance is this many times the largest distance between two runs of the original."""

_SEEDED = (
    "random ops had seeds in copies of both models, of which the first runs were compared"
)

_CHANGING = (
    "a run of the original changes the next one: the first runs, which repeat, were compared"
)


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """A run of a written model, compared with the baseline.

    Attributes:
        settings: of the session.
        verdict: of the comparison.
        record: what the run produced.
    """

    settings: RuntimeSettings
    verdict: Validation
    record: RunRecord

    @property
    def is_unoptimized(self) -> bool:
        """Whether it ran without ONNX Runtime's optimization."""
        return self.settings.is_unoptimized

    @property
    def ran(self) -> bool:
        """Whether the run succeeded."""
        return self.record.failure is None


def compare_runs(baseline: Baseline, record: RunRecord) -> Validation:
    """Return the verdict on a run whose outputs were compared with the baseline's files."""
    # A failure on the first input set ends the run, which is then `record.failure`: `verdict_of` reports
    # it. On further input sets the failure is a result of the set.
    failure = next((inputs.failure for inputs in record.inputs if inputs.failure), "")
    if failure:
        note = f"the rewritten model does not run (error): {failure}"
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
) -> WrittenRun:
    """Run a written model on the baseline's inputs and compare its outputs.

    The run stops at the first outputs that differ, unless the baseline's own runs differ: then outputs
    that differ decide nothing.

    Args:
        baseline: the original's run.
        path: the written file.
        settings: of its session.
        graph: the file to which the runtime's own graph is written; None writes none.

    Raises:
        RuntimeUnavailableError: weights are missing.
    """
    require_weights(path)
    spec = compared_spec(baseline, path, settings, baseline.inputs)
    if baseline.is_repeatable:
        spec = replace(spec, stop="at a difference")
    if graph is not None:
        spec = replace(spec, graph=graph, collect=(*spec.collect, "graph"))
    record = run_model(spec, timeout=baseline.check.timeout)
    return WrittenRun(settings, compare_runs(baseline, record), record)


def compare_unrepeatable(
    baseline: Baseline, path: Path, settings: RuntimeSettings
) -> Validation:
    """Compare a written model with an original whose own runs gave different outputs.

    - The original has random ops: the first runs of copies of both models with fixed seeds are compared. If
      there are no such copies, or the original's copy does not repeat its first run, nothing can be compared.
    - The original repeats its first run in a new process: the first runs are compared.
    - The original does not repeat its first run: all runs are compared, with a tolerance widened by the
      differences between the original's own runs.

    ``path`` and ``settings`` are those of the written model. The original runs as the reference of the
    check asks: under the settings of the baseline, or without optimization.
    """
    is_unoptimized = baseline.check.reference == "unoptimized"
    original_settings = UNOPTIMIZED if is_unoptimized else baseline.settings
    with tempfile.TemporaryDirectory(prefix="memplan-first-runs-") as name:
        folder = Path(name)
        inputs = _with_output_folders(folder, "outputs", baseline.inputs)
        models: tuple[Path, Path] | None = (baseline.path, path)
        if baseline.random:
            # None: the models differ in their random nodes.
            models = seeded_twins(baseline.path, path, folder)
        if models is not None:
            verdict = _compare_first_runs(
                baseline, models, inputs, original_settings, settings
            )
            if verdict is not None:
                return verdict
        if baseline.random:
            return _nondeterministic(baseline)
        verdict = _compare_within_noise(baseline, path, settings, original_settings, folder)
        return replace(verdict, notes=(*verdict.notes, *baseline.notes))


def _compare_first_runs(
    baseline: Baseline,
    models: tuple[Path, Path],
    inputs: Sequence[InputSet],
    original_settings: RuntimeSettings,
    settings: RuntimeSettings,
) -> Validation | None:
    """Compare the first runs of two models; None if the first run of the original differs in a new process.

    Later runs differ from the first one, by random ops or because each run changes the next one. ``models`` are the
    original and the written model, or copies of them with seeds; ``settings`` are those of the written one. Outputs
    of the original are saved in the ``save_to`` folders of the ``inputs``.

    Raises:
        RuntimeUnavailableError: the original does not run.
    """
    original, written = models
    timeout = baseline.check.timeout
    saving = baseline.run_spec(original, original_settings, tuple(inputs))
    saved = run_model(_outputs_only(saving, runs=1), timeout=timeout)
    saved.require(f"{baseline.path}: the original's first run")
    # The runs below are compared with the files that were just saved.
    repeating = compared_spec(baseline, original, original_settings, inputs)
    repeated = run_model(_outputs_only(repeating, runs=1), timeout=timeout)
    if repeated.failure is not None or repeated.differences:
        return None
    comparing = compared_spec(baseline, written, settings, inputs)
    record = run_model(_outputs_only(comparing, runs=1), timeout=timeout)
    verdict = verdict_of(record, baseline.provider, baseline.check.tolerance)
    note = _SEEDED if baseline.random else _CHANGING
    return replace(verdict, notes=(*verdict.notes, note, *baseline.notes))


def _with_output_folders(
    folder: Path, name: str, inputs: Sequence[InputSet]
) -> tuple[InputSet, ...]:
    """Return input sets with new folders for their outputs, ``<name><number>``, inside a folder."""
    with_folders = []
    for number, input_set in enumerate(inputs):
        outputs = folder / f"{name}{number}"
        outputs.mkdir()
        with_folders.append(replace(input_set, save_to=outputs))
    return tuple(with_folders)


def _compare_within_noise(
    baseline: Baseline,
    path: Path,
    settings: RuntimeSettings,
    original_settings: RuntimeSettings,
    folder: Path,
) -> Validation:
    """Run the written model, and compare all its runs with the saved outputs of the original's first run.

    The tolerance is widened by the differences of the original's own runs.

    Args:
        baseline: the original's runs.
        path: the written model.
        settings: under which the written model runs.
        original_settings: under which the original runs. If the baseline has other settings, it runs again.
        folder: for the outputs of the original, if it runs again.
    """
    check = baseline.check
    # Each input set names the folder in which the outputs of the original's first run are saved.
    inputs, original_runs = baseline.inputs, baseline.record
    if original_settings != baseline.settings:
        inputs = _with_output_folders(folder, "noisy", inputs)
        saving = baseline.run_spec(baseline.path, original_settings, inputs)
        original_runs = run_model(
            _outputs_only(saving, runs=check.runs), timeout=check.timeout
        )
        original_runs.require(f"{baseline.path}: the original's own runs")
    # How the later runs of the original differ from its first one.
    noise = original_runs.differences
    tolerance = widened(check.tolerance, noise)
    comparing = replace(compared_spec(baseline, path, settings, inputs), tolerance=tolerance)
    written_runs = run_model(_outputs_only(comparing, runs=check.runs), timeout=check.timeout)
    return verdict_of(written_runs, baseline.provider, tolerance, noise)


def _outputs_only(spec: RunSpec, *, runs: int) -> RunSpec:
    """Return a spec that collects only outputs, and saves or compares those of all ``runs`` runs."""
    return replace(spec, collect=("outputs",), runs=runs, compared_runs=runs)


def widened(tolerance: Tolerance, noise: Sequence[Difference]) -> Tolerance:
    """Return a tolerance that also allows the differences between two runs of the original."""
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
    """Return the verdict on a written model's run: its differences, or its failure.

    ``noise`` are differences between runs of the original, by which the tolerance was widened.
    """
    failure = record.failure
    if failure is not None:
        note = f"the rewritten model does not run ({failure.how}): {failure.reason}"
        if failure.timed_out:
            note += ", and --timeout gives more"
        return _failure(provider, note)
    differences = record.differences
    notes: list[str] = []
    if noise:
        notes.append(f"two runs of the original differ in {len(noise)} outputs")
    if not tolerance.exact:
        notes.append(f"tolerance rtol={tolerance.rtol} atol={tolerance.atol}")
    return Validation(
        status="failed" if any(item.beyond for item in differences) else "passed",
        provider=provider,
        max_abs_diff=max((item.max_abs_diff for item in differences), default=0.0),
        bit_identical=not differences,
        differences=differences,
        notes=tuple(notes),
    )


def _failure(provider: str, note: str) -> Validation:
    """Return the verdict on a model that did not run, without ``max_abs_diff``."""
    return Validation("failed", provider, bit_identical=False, notes=(note,))


def _nondeterministic(baseline: Baseline) -> Validation:
    """Return the verdict that nothing can be compared, because the original draws random numbers."""
    note = (
        f"two runs of the original differ in {len(baseline.record.differences)} outputs, "
        f"because it draws random numbers ({', '.join(baseline.random)}): its outputs cannot "
        "be compared"
    )
    return Validation("nondeterministic", baseline.provider, notes=(note,))
