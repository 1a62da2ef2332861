"""Runs of models in worker processes: from a `RunSpec` to a `RunRecord`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from memplan_cli.core.bindings import given_text
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import (
    CPU,
    DEFAULT_TIMEOUT,
    Difference,
    Peaks,
    ProcessBytes,
    RuntimeSettings,
)
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.dims import canonical_dim
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.runs.prepared_models import missing_weights
from memplan_cli.runtime.workers.session_profile import Kernel
from memplan_cli.runtime.workers.spec import MEASURED_RUNS, RunSpec
from memplan_cli.runtime.workers.worker import start_job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.program import Shape
    from memplan_cli.runtime.workers.spec import Caller, RunConditions
    from memplan_cli.runtime.workers.worker import Job, Outcome

    RuntimeShapes = Mapping[str, tuple[str, Shape]]
    """Dtype and shape of values by name, as the runtime infers them."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    """The comparison of outputs on one input set.

    Attributes:
        differences: outputs that differ.
        failure: why the model failed on this input set; empty if it ran.
    """

    differences: tuple[Difference, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run of a `RunSpec` produced. Fields that were not collected are None.

    Attributes:
        spec: what was run.
        failure: how the run failed; None if it succeeded. A failed run has nothing else.
        outputs: names of the outputs that were saved or compared.
        inputs: the comparison on each input set that was run.
        peaks: counters of the arena, memory of the process, and time of a run.
        workspace: bytes that each node's kernel requests besides its outputs.
        kernels: for each input set, the kernels of its first run in the order in which they
            ended.
        shapes: what the runtime infers for values of its own graph, which is in ``spec.graph``.
    """

    spec: RunSpec
    failure: Outcome | None = None
    outputs: tuple[str, ...] = ()
    inputs: tuple[InputRecord, ...] = ()
    peaks: Peaks = field(default=Peaks(None, None))
    workspace: Mapping[str, int] | None = field(default=None, repr=False)
    kernels: tuple[tuple[Kernel, ...], ...] | None = field(default=None, repr=False)
    shapes: RuntimeShapes | None = field(default=None, repr=False)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences of outputs on all input sets."""
        return tuple(difference for record in self.inputs for difference in record.differences)

    def require(self, subject: str) -> RunRecord:
        """Return this record if the run succeeded.

        Raises:
            RuntimeTimeoutError: the process took too long.
            RuntimeUnavailableError: the run failed; the message begins with ``subject``.
        """
        if self.failure is not None:
            self.failure.require(subject)
        return self


def record_of(spec: RunSpec, outcome: Outcome) -> RunRecord:
    """Return the record of a run from the outcome of its job, whose result is that of `model_run.run`."""
    if not outcome.ok:
        return RunRecord(spec, outcome)
    answer: Any = outcome.result
    kernels = shapes = None
    if spec.collects("kernels"):
        kernels = tuple(tuple(Kernel(*kernel) for kernel in run) for run in answer["kernels"])
    if spec.collects("graph") and answer["types"] is not None:
        shapes = shapes_of_types(answer["types"])
    return RunRecord(
        spec,
        outputs=tuple(answer["outputs"]),
        inputs=tuple(
            InputRecord(differences_in(entry), entry["failure"]) for entry in answer["inputs"]
        ),
        peaks=_peaks_of(answer, spec.session.provider),
        workspace=answer["workspace"] if spec.collects("arena") else None,
        kernels=kernels,
        shapes=shapes,
    )


def _peaks_of(answer: Any, provider: str) -> Peaks:  # noqa: ANN401 - JSON
    """Return the measured bytes and the median times in the result of `model_run.run`."""
    process, milliseconds, effort = answer["process"], answer["milliseconds"], answer["effort"]
    if provider != CPU:
        effort = []  # kernels run on another device, and processor time leaves them out
    return replace(
        from_json(Peaks, answer["peaks"], "the job's result"),
        milliseconds=median(milliseconds) if milliseconds else None,
        processor_milliseconds=median(effort) if effort else None,
        process=from_json(ProcessBytes, process, "the job's result") if process else None,
    )


def differences_in(answer: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences in a worker's answer; none if the worker failed."""
    return tuple(
        from_json(Difference, entry, "the job's result")
        for entry in answer.get("differences", ())
    )


def shapes_of_types(types: object) -> RuntimeShapes:
    """Return the shapes in a worker's answer ``{name: [dtype, dims]}``, dims in canonical form."""
    shapes: dict[str, tuple[str, Shape]] = {}
    for name, (dtype, shape) in types.items():  # type: ignore[attr-defined]
        dims = (canonical_dim(dim) if isinstance(dim, str) else dim for dim in shape)
        shapes[name] = (dtype, tuple(dims))
    return shapes


_RUN_JOB = "memplan_cli.runtime.workers.model_run:run"


def run_model(spec: RunSpec, *, timeout: float = DEFAULT_TIMEOUT) -> RunRecord:
    """Run a model in a worker process and wait for it, for ``timeout`` seconds at most.

    A run that fails is a record with a ``failure``, not an exception.
    """
    with start_run(spec, timeout=timeout) as job:
        return record_of(spec, job.outcome())


def start_run(spec: RunSpec, *, timeout: float = DEFAULT_TIMEOUT) -> Job:
    """Start a run in a worker process and return its job; `record_of` reads the outcome."""
    return start_job(_RUN_JOB, {"spec": to_json(spec)}, timeout=timeout)


def require_weights(path: Path, model: ModelProto | None = None) -> None:
    """Raise an error if external data of a model is missing.

    ``model`` is the parsed file, if it is loaded already.

    Raises:
        RuntimeUnavailableError: the message names the missing file.
    """
    missing = missing_weights(path, model)
    if missing:
        folder = "the current folder" if str(path.parent) == "." else path.parent
        raise RuntimeUnavailableError(
            f"{path} cannot run: its weights file {missing[0]} is not in {folder}",
            hint="put the file there; --no-validate leaves the comparison out",
        )


def record_run(
    model: Path,
    settings: RuntimeSettings,
    conditions: RunConditions,
    *collect: str,
    runs: int = MEASURED_RUNS,
    caller: Caller = "drops outputs",
) -> RunRecord:
    """Run a model with deterministic settings, and return what ``collect`` names, such as its memory.

    Outputs are not compared. ``collect`` and ``caller`` are those of `RunSpec`; 0 runs only create the session.

    Raises:
        RuntimeUnavailableError: weights are missing, or the run failed.
    """
    require_weights(model)
    session = conditions.session(model, settings).deterministic()
    inputs = (conditions.input_set(model),)
    spec = RunSpec(session, inputs, collect, runs=runs, compared_runs=0, caller=caller)
    record = run_model(spec, timeout=conditions.timeout)
    inputs_text = given_text(conditions.binding.feeds)
    return record.require(f"{model} could not be measured{inputs_text}")


def process_of_run(
    model: Path,
    settings: RuntimeSettings,
    conditions: RunConditions,
    caller: Caller = "drops outputs",
) -> ProcessBytes | None:
    """Return the memory of a new process that runs only this model, `MEASURED_RUNS` times.

    ``caller`` tells whether the process still has the outputs of one run during the next run. None if the system
    does not report process memory.

    Raises:
        RuntimeUnavailableError: weights are missing, or the run failed.
    """
    return record_run(model, settings, conditions, "process", caller=caller).peaks.process
