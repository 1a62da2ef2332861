"""Finding sizes with which a model runs, by running it: one process tries several input sets."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import UNOPTIMIZED
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import RuntimeMissingError
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.spec import InputSet, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.bindings import Known
    from memplan_cli.onnx_io.shapes.numbered_nodes import NumberedModel
    from memplan_cli.runtime.workers.session_profile import Kernel

_TIMEOUT = 90.0
"""Seconds for loading the model and all input sets together."""

_SECONDS = 30.0
"""Seconds after which no further input set is begun."""

_LOAD_FAILURES = (
    "Load model from",
    "This is an invalid model",
    "Could not find an implementation",
    "during initialization",
)
"""Parts of ONNX Runtime's messages for a model that does not load, whatever its inputs."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The input sets with which a model runs.

    Attributes:
        ran: indices of input sets with which it runs: the first of them, or all.
        reasons: why it does not run with others, or why none could be tried.
        known: shapes of values in a run with the first of ``ran``; empty if none were recorded.
    """

    ran: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    known: Known = field(default_factory=dict)

    @property
    def loaded(self) -> bool:
        """Whether the model loads, so that it may run with other inputs."""
        first_reason = self.reasons[0] if self.reasons else ""
        return not any(words in first_reason for words in _LOAD_FAILURES)


def first_that_runs(
    model: Path,
    input_sets: Sequence[Sequence[FeedSpec]],
    observed: NumberedModel | None = None,
) -> ProbeResult:
    """Run a model with one input set after the other until one runs.

    Args:
        model: the model's file; its external weights must exist.
        input_sets: each with the specs of all inputs.
        observed: a copy of the model with numbered nodes, which is run with the set that runs, to record the
            shapes of values; None records no shapes.
    """
    if observed is not None and len(input_sets) == 1:
        # Only the copy is run. If it fails, `_with_shapes` returns the failure instead of this result.
        return _with_shapes(ProbeResult(ran=(0,)), model, input_sets[0], observed)
    result = _probe(model, input_sets, stop="at a set that runs")
    if observed is None or not result.ran:
        return result
    return _with_shapes(result, model, input_sets[result.ran[0]], observed)


def all_that_run(model: Path, input_sets: Sequence[Sequence[FeedSpec]]) -> ProbeResult:
    """Run a model with each input set."""
    return _probe(model, input_sets, stop="never")


def _probe(model: Path, input_sets: Sequence[Sequence[FeedSpec]], stop: str) -> ProbeResult:
    """Run a model once with each input set, in one process.

    Args:
        model: the model's file; its external weights must exist.
        input_sets: the input sets, in the order of the runs.
        stop: as in `RunSpec`: ``at a set that runs`` leaves out the sets after the first that runs,
            ``never`` runs all.

    Returns:
        The sets that ran and the reasons of those that failed. Sets that were left out, also because
        `_SECONDS` have passed, are in neither.

    Raises:
        RuntimeMissingError: ONNX Runtime is not installed.
    """
    if not input_sets:
        return ProbeResult()
    spec = RunSpec(
        _session(model),
        tuple(InputSet(tuple(specs)) for specs in input_sets),
        collect=(),
        stop=stop,
        failures="recorded",
        seconds=_SECONDS,
    )
    record = run_model(spec, timeout=_TIMEOUT)
    if record.failure is not None:  # of the whole process: no input set has a result
        if record.failure.how == "missing":
            raise RuntimeMissingError
        # Reports must not depend on the folder of a model.
        reason = record.failure.reason.replace(str(model.absolute()), model.name)
        return ProbeResult(reasons=(reason,))
    failures = [input_record.failure for input_record in record.inputs]  # "" for sets that ran
    return ProbeResult(
        ran=tuple(index for index, failure in enumerate(failures) if not failure),
        reasons=tuple(failure for failure in failures if failure),
    )


def _with_shapes(
    result: ProbeResult, model: Path, specs: Sequence[FeedSpec], copy: NumberedModel
) -> ProbeResult:
    """Return ``result`` with the shapes of values, from a run of a copy of the model with numbered nodes.

    If the copy does not run, only the reason is returned: the shapes are missing then. ``model`` is the
    original's file, whose folder has the weights.
    """
    with tempfile.TemporaryDirectory(prefix="memplan-trial-") as folder:
        # The folder of the model may be read-only, so the copy is written elsewhere.
        file = Path(folder) / "model.onnx"
        file.write_bytes(copy.data)
        session = _session(file, model.absolute().parent)
        spec = RunSpec(session, (InputSet(tuple(specs)),), ("kernels",), runs=1)
        record = run_model(spec, timeout=_TIMEOUT)
    if record.failure is not None:
        return ProbeResult(reasons=(copy.with_original_names(record.failure.reason),))
    kernels = [kernel for run in record.kernels or () for kernel in run]  # there is one run
    return replace(result, known=_largest_shapes(copy, kernels))


def _largest_shapes(copy: NumberedModel, kernels: Iterable[Kernel]) -> Known:
    """Return dtype and shape of every value in the kernels of a run, by its id in the copy.

    A kernel in a loop runs several times: each dim is the largest that the value had. Values of dtypes without a
    fixed size, such as strings, are left out.
    """
    shapes: dict[str, tuple[str, Shape]] = {}
    for kernel in kernels:
        for value_ids, tensors in (
            (copy.reads.get(kernel.node), kernel.read),
            (copy.writes.get(kernel.node), kernel.wrote),
        ):
            # None: ONNX Runtime has inserted the node. The tensors may be fewer than the ids, because freed weights
            # are not recorded: it is unknown then which tensor belongs to which id.
            if value_ids is None or len(value_ids) != len(tensors):
                continue
            for value_id, (runtime_type, shape) in zip(value_ids, tensors, strict=True):
                earlier = shapes.get(value_id)
                largest = tuple(shape) if earlier is None else _largest(earlier[1], shape)
                shapes[value_id] = (dtype_of(runtime_type), largest)
    return {key: (dtype, shape) for key, (dtype, shape) in shapes.items() if dtype in BITS}


def _largest(first: Shape, second: Sequence[int]) -> Shape:
    """Return the larger size of each dim of two shapes; the second shape if the ranks differ."""
    if len(first) != len(second):
        return tuple(second)
    pairs = zip(first, second, strict=True)
    return tuple(max(old, new) for old, new in pairs if isinstance(old, int))


def _session(model: Path, weights: Path | None = None) -> SessionSpec:
    """Return a session without optimization, which costs more time than one run saves."""
    return SessionSpec(
        model.absolute(), resolve_provider("auto"), UNOPTIMIZED, weights_folder=weights
    )
