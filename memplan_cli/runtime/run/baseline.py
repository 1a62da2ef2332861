"""The baseline run: the run of an original model, with which written models are compared.

Its outputs are in files while a written model runs. Settings are predicted from the graph that it
ran.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.core.bindings import given_text
from memplan_cli.core.results.observations import UNOPTIMIZED, RuntimeSettings
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.runs.prepared_models import random_ops
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.run.run_model import record_of, require_weights, run_model, start_run
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.spec import (
    FULL,
    MEASURED_RUNS,
    InputSet,
    RunSpec,
    SessionSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ModelProto

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.runtime.run.run_model import RunRecord

DEFAULTS = RuntimeSettings()
"""The settings of a user who sets nothing."""

_KERNEL_FAILED = "while running"
"""Part of ONNX Runtime's message if a kernel fails, which other inputs may prevent. A failure to load has
other messages."""

_DRAWN_INPUTS_HINT = (
    "its inputs were drawn: --inputs FILE gives real ones; --no-validate runs nothing"
)


@dataclass(frozen=True, slots=True)
class UnoptimizedRun:
    """A run of the original without graph optimization, whose outputs are the reference.

    Attributes:
        workspace: bytes that kernels request besides their outputs, by node. They apply to the
            written model too, which has the same nodes.
        diff_from_defaults: the largest difference of its outputs from those of the run under the
            defaults.
    """

    workspace: Mapping[str, int] = field(repr=False)
    diff_from_defaults: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """A finished baseline run.

    Attributes:
        path: its file.
        check: where it ran and what was recorded; its provider is ONNX Runtime's name.
        binding: the dims of the run, and given inputs.
        folder: for its files and those of further runs; removed at the end of its `BaselineRun`.
        inputs: its input sets; their ``save_to`` folders contain the reference outputs.
        record: what the run produced.
        settings: of its session: the runtime's defaults, unless the file must not be optimized.
        random: operators of its nodes that draw random numbers.
        nodes: names of the nodes of its main graph, in order.
        notes: what the report says about the comparison.
        unoptimized: the second run, without graph optimization, if that is the reference of the check;
            else None.
    """

    path: Path
    check: Check
    binding: Binding
    folder: Path
    inputs: tuple[InputSet, ...]
    record: RunRecord = field(repr=False)
    settings: RuntimeSettings = DEFAULTS
    random: tuple[str, ...] = ()
    nodes: tuple[str, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    unoptimized: UnoptimizedRun | None = None

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of the execution provider."""
        return self.check.provider

    @property
    def dims(self) -> Mapping[str, int]:
        """Values of symbolic dims."""
        return self.binding.dims

    @property
    def is_repeatable(self) -> bool:
        """Whether its own runs gave bit-identical outputs."""
        return not self.record.differences

    def run_spec(
        self, model: Path, settings: RuntimeSettings, inputs: tuple[InputSet, ...]
    ) -> RunSpec:
        """Return a spec to run a model on inputs, as often and with the same measurements as the baseline."""
        # A file that memplan wrote is opened by `memplan_cli.load`, and the original by ONNX Runtime, as users open
        # them. This affects the measured memory: only `memplan_cli.load` returns free memory to the system.
        is_written_by_memplan = model != self.path
        session = SessionSpec(
            model, self.provider, settings, opened_by_memplan=is_written_by_memplan
        ).deterministic()
        spec = self.record.spec
        return replace(
            spec,
            session=session,
            inputs=inputs,
            # Unlike in the baseline's run, the graph that ONNX Runtime makes of the model is not saved.
            collect=tuple(item for item in spec.collect if item != "graph"),
            graph=None,
            outputs=self.record.outputs,  # the names of the outputs that are compared
            tolerance=self.check.tolerance,  # of differences from the saved outputs
        )


class BaselineRun:
    """A baseline run in a background process.

    Used as a context manager. At its end a run in progress is stopped, and the files of the
    result are removed.

    Attributes:
        path: the file that runs.
        check: what is asked of the run.
        binding: dims and inputs, with a value for each dim.
        _files: the folder of saved outputs and of the optimized graph.
        _random: the random ops of the model.
        _nodes: the names of its nodes.
        _settings: of the session.
        _spec: the run.
        _job: its process.
    """

    def __init__(
        self,
        path: Path,
        model: ModelProto,
        check: Check,
        binding: Binding,
        settings: RuntimeSettings = DEFAULTS,
    ) -> None:
        """Start the baseline run of an original: its file, and the same model parsed.

        ``binding`` has a value for each dim. The saved outputs go to a temporary folder, which `end` removes.

        Raises:
            RuntimeUnavailableError: weights or the provider are missing.
        """
        require_weights(path, model=model)
        self.path, self.check, self.binding = path, check, binding
        self._files = tempfile.TemporaryDirectory(prefix="memplan-baseline-")
        folder = Path(self._files.name)
        self._random = random_ops(model)
        self._nodes = tuple(node.name for node in model.graph.node)
        self._settings = settings
        spec = RunSpec(
            SessionSpec(path, resolve_provider(check.provider), settings).deterministic(),
            _input_sets(model, binding, folder),
            collect=("outputs",),
            runs=check.runs,
            compared_runs=check.runs,
        )
        if check.depth == "full":
            # Memory is measured too, which takes `MEASURED_RUNS`, even if fewer are compared.
            time = ("time",) if check.search == "measured" else ()
            spec = replace(
                spec,
                collect=(*FULL, *time),
                runs=max(MEASURED_RUNS, check.runs),
                graph=folder / "original.onnx",  # the optimized graph is written here
            )
        self._spec = spec
        self._job = start_run(spec, timeout=check.timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop the run if it is in progress, and remove the files."""
        self._job.end()
        self._files.cleanup()

    def result(self) -> Baseline:
        """Wait for the run and return its result.

        The run is on an input set at the dims of the binding, and on a second one at `second_dims`, if there are
        any. If the model does not run on the second set, the result has only the first one, and a note.

        Raises:
            RuntimeUnavailableError: the model does not run on the first set.
        """
        binding = self.binding
        record, second_failure = self._record_and_second_failure()
        self._require(record)
        inputs, notes = record.spec.inputs, list[str]()
        if second_failure:
            dims = binding_text(dict(sorted((second_dims(binding) or {}).items())))
            notes = [f"one shape only: the original does not run at {dims} ({second_failure})"]
            inputs = inputs[:1]
        baseline = Baseline(
            path=self.path,
            # The provider of the session is ONNX Runtime's name, that of the check may be ``auto``.
            check=replace(self.check, provider=self._spec.session.provider),
            binding=binding,
            folder=Path(self._files.name),
            inputs=inputs,
            record=record,
            settings=self._settings,
            random=self._random,
            nodes=self._nodes,
            notes=tuple(notes),
        )
        # Outputs that change from run to run need no reference here: `compare_unrepeatable` makes its own.
        if self.check.reference == "unoptimized" and baseline.is_repeatable:
            return _with_unoptimized_reference(baseline)
        return baseline

    def _require(self, record: RunRecord) -> None:
        """Raise a RuntimeUnavailableError if the run failed."""
        if record.failure is None:
            return
        dims = binding_text(dict(sorted(self.binding.dims.items()))) or "its dims"
        subject = f"{self.path} does not run at {dims}{given_text(self.binding.feeds)}"
        if _KERNEL_FAILED in record.failure.reason and not self.binding.feeds:
            message = f"{subject}: {record.failure.reason}"
            raise RuntimeUnavailableError(message, hint=_DRAWN_INPUTS_HINT)
        record.require(subject)

    def _record_and_second_failure(self) -> tuple[RunRecord, str]:
        """Wait for the run; return its record, and why it failed at the second sizes (empty if it did not).

        If the whole job failed, the reason may lie in the second sizes. Then the model is run again at the
        first sizes only, and the record is that of the second run.
        """
        record = record_of(self._spec, self._job.outcome())
        if record.failure is None:
            return record, record.inputs[1].failure if len(record.inputs) > 1 else ""
        if len(self._spec.inputs) == 1:
            return record, ""
        at_first_sizes = replace(self._spec, inputs=self._spec.inputs[:1])
        return run_model(at_first_sizes, timeout=self.check.timeout), record.failure.reason


def compared_spec(
    baseline: Baseline, path: Path, settings: RuntimeSettings, inputs: Sequence[InputSet]
) -> RunSpec:
    """Return the spec of a run whose outputs are compared with the saved outputs of input sets.

    Outputs that differ are saved in the `kept_folder` of their input set.
    """
    compared = tuple(
        replace(input_set, compare_with=input_set.save_to, save_to=kept_folder(input_set))
        for input_set in inputs
    )
    return baseline.run_spec(path, settings, compared)


def kept_folder(inputs: InputSet) -> Path:
    """Return the folder for outputs that differ from those of an input set. It is created if missing."""
    assert inputs.save_to is not None  # noqa: S101 - a baseline saves its outputs
    folder = inputs.save_to.with_name(f"{inputs.save_to.name}.other")
    folder.mkdir(exist_ok=True)
    return folder


def _with_unoptimized_reference(baseline: Baseline) -> Baseline:
    """Run the original without graph optimization; return the baseline with these outputs as reference.

    Outputs without optimization do not depend on the order of nodes, nor on copies of nodes. Under
    optimization, order and copies can decide what ONNX Runtime fuses, and fused kernels round differently.

    Raises:
        RuntimeUnavailableError: the original does not run without graph optimization.
    """
    spec = compared_spec(baseline, baseline.path, UNOPTIMIZED, baseline.inputs)
    # Only the outputs and the workspace of kernels (part of "arena") are wanted: the compared runs suffice.
    collect = tuple(item for item in spec.collect if item in ("outputs", "arena"))
    spec = replace(spec, collect=collect, runs=spec.compared_runs)
    record = run_model(spec, timeout=baseline.check.timeout)
    record.require(f"{baseline.path} without graph optimization")
    # Later runs are compared with the outputs in the `save_to` folders. If an output of this run differs from that of
    # the default run, this run has saved all outputs of the set in `kept_folder`: these are the reference then.
    inputs = tuple(
        replace(input_set, save_to=kept_folder(input_set)) if result.differences else input_set
        for input_set, result in zip(baseline.inputs, record.inputs, strict=True)
    )
    difference = max((item.max_abs_diff for item in record.differences), default=0.0)
    unoptimized = UnoptimizedRun(record.workspace or {}, difference)
    return replace(baseline, inputs=inputs, unoptimized=unoptimized)


def second_dims(binding: Binding) -> dict[str, int] | None:
    """Return the dims of a second input set, at which outputs are compared too; None if there is none.

    Dims with an assumed number have twice that number: sums of dims that were equal stay equal. Dims
    with bounds have another number within them, that of `Binding.second_numbers`. Other dims stay.
    """
    doubled = {
        name: 2 * binding.dims[name] for name in binding.assumed if name in binding.dims
    }
    second = {**binding.dims, **doubled, **binding.second_numbers}
    return None if second == binding.dims else second


def _input_sets(model: ModelProto, binding: Binding, folder: Path) -> tuple[InputSet, ...]:
    """Return an input set at the dims of a binding, and one at its `second_dims`, if there are any.

    Creates a folder for the outputs of each.
    """
    second = second_dims(binding)
    input_sets = []
    for number, dims in enumerate((binding.dims, *([second] if second else []))):
        outputs = folder / f"outputs{number}"
        outputs.mkdir()
        input_sets.append(InputSet(feed_specs(model, dims, binding.feeds), outputs))
    return tuple(input_sets)
