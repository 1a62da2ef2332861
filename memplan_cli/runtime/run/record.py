"""What a run of a `RunSpec` produced, as the parent process receives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import CPU, Difference, Peaks, ProcessBytes
from memplan_cli.core.symbolic.dims import canonical_dim

if TYPE_CHECKING:
    from memplan_cli.core.program import Shape
    from memplan_cli.runtime.workers.spec import RunSpec
    from memplan_cli.runtime.workers.worker import Outcome

    RuntimeShapes = Mapping[str, tuple[str, Shape]]
    """Dtype and shape of values by name, as the runtime infers them."""

Kernel = Sequence[Any]
"""One kernel of a run: its node's name, ``[type, dims]`` of what it read and of what it wrote,
and the microsecond at which it began."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    """The comparison of outputs on one input set; ``failure`` says why the model failed on it."""

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
        shapes: what the runtime infers of its own graph, which lies in ``spec.graph``.
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
        """Return the differences of outputs on all input sets."""
        return tuple(each for one in self.inputs for each in one.differences)

    def require(self, what: str) -> RunRecord:
        """Return this record if the run succeeded.

        Raises:
            RuntimeTimeoutError: the process took too long.
            RuntimeUnavailableError: the run failed; the message begins with ``what``.
        """
        if self.failure is not None:
            self.failure.require(what)
        return self


def record_of(spec: RunSpec, outcome: Outcome) -> RunRecord:
    """Return the record of a worker's answer."""
    if not outcome.ok:
        return RunRecord(spec, outcome)
    answer: Any = outcome.result
    peaks = from_json(Peaks, answer["peaks"], "the job's result")
    process = answer["process"]
    times, effort = answer["milliseconds"], answer["effort"]
    on_cpu = spec.session.provider == CPU
    peaks = replace(
        peaks,
        milliseconds=median(times) if times else None,
        effort=median(effort) if effort and on_cpu else None,
        process=from_json(ProcessBytes, process, "the job's result") if process else None,
    )
    return RunRecord(
        spec,
        outputs=tuple(answer["outputs"]),
        inputs=tuple(
            InputRecord(differences_in(one), one["failure"]) for one in answer["inputs"]
        ),
        peaks=peaks,
        workspace=answer["workspace"] if spec.collects("arena") else None,
        kernels=(
            tuple(tuple(run) for run in answer["kernels"])
            if spec.collects("kernels")
            else None
        ),
        shapes=(
            shapes_of_types(answer["types"])
            if spec.collects("graph") and answer["types"] is not None
            else None
        ),
    )


def differences_in(answer: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences in a worker's answer; none if the worker failed."""
    return tuple(
        from_json(Difference, each, "the job's result")
        for each in answer.get("differences", ())
    )


def shapes_of_types(types: object) -> RuntimeShapes:
    """Return the shapes in a worker's answer ``{name: [dtype, dims]}``, dims in canonical form."""
    shapes: dict[str, tuple[str, Shape]] = {}
    for name, (dtype, shape) in types.items():  # type: ignore[attr-defined]
        dims = (canonical_dim(dim) if isinstance(dim, str) else dim for dim in shape)
        shapes[name] = (dtype, tuple(dims))
    return shapes
