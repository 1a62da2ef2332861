"""The run of an original model that written models are compared with.

Its outputs lie in files while a written model runs, and its graph as the runtime optimises it is
what settings are predicted on.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.core.bindings import given_text
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.runs.prepared_models import random_ops
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.run.record import record_of
from memplan_cli.runtime.run.run_model import require_weights, run_model, start_run
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.spec import FULL, InputSet, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.runtime.run.record import RunRecord

RUNS = 3
"""The first grows the arena, the second makes the memory pattern, the third is steady."""

DEFAULTS = RuntimeSettings()
"""The settings of a user who sets nothing."""

_IN_A_NODE = "while running"
"""What ONNX Runtime writes if a kernel fails, as opposed to loading."""

_DRAWN = "its inputs were drawn: --inputs FILE gives real ones; --no-validate runs nothing"


@dataclass(frozen=True, slots=True)
class Baseline:
    """An original model that has run.

    Attributes:
        path: its file.
        check: how it ran, with ONNX Runtime's name of the provider.
        binding: the dims of the run, and inputs that were given.
        folder: for its files and those of further runs, until the block of its `BaselineRun` ends.
        inputs: its input sets, whose ``save_to`` folders have its outputs.
        record: what the run produced.
        settings: of its session: the runtime's defaults, unless the file must run as it stands.
        random: its ops that draw random numbers.
        nodes: names of the nodes of its main graph, in its order.
        notes: what the report says about the comparison.
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

    @property
    def provider(self) -> str:
        """Return ONNX Runtime's name of the provider that it ran on."""
        return self.check.provider

    @property
    def dims(self) -> Mapping[str, int]:
        """Return the numbers of dims."""
        return self.binding.dims

    @property
    def repeats(self) -> bool:
        """Return whether its own runs gave the same bits."""
        return not self.record.differences

    def run_spec(
        self, model: Path, settings: RuntimeSettings, inputs: tuple[InputSet, ...]
    ) -> RunSpec:
        """Return how a model is run as this one was, graph and its collection left out."""
        session = SessionSpec(
            model, self.provider, settings, as_loaded=model != self.path
        ).deterministic()
        return replace(
            self.record.spec,
            session=session,
            inputs=inputs,
            collect=tuple(c for c in self.record.spec.collect if c != "graph"),
            outputs=self.record.outputs,
            tolerance=self.check.tolerance,
            graph=None,
        )


class BaselineRun:
    """The run of an original model, in the background until its result is needed.

    With the block in which this is used a run that is under way ends, and the files of the
    result go.
    """

    def __init__(
        self,
        path: Path,
        model: ModelProto,
        check: Check,
        binding: Binding,
        settings: RuntimeSettings = DEFAULTS,
    ) -> None:
        """Start the run.

        Args:
            path: the file.
            model: the parsed file.
            check: where it runs, and what is recorded.
            binding: a number for each dim, and inputs that were given.
            settings: of the session.

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
        full = check.depth == "full"
        time = ("time",) if check.search == "measured" else ()
        self._spec = RunSpec(
            SessionSpec(path, resolve_provider(check.provider), settings).deterministic(),
            _input_sets(model, binding, folder),
            collect=(*FULL, *time) if full else ("outputs",),
            runs=max(RUNS, check.runs) if full else check.runs,
            compared_runs=check.runs,
            graph=folder / "original.onnx" if full else None,
        )
        self._job = start_run(self._spec, timeout=check.timeout)

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the run if it is under way still, and remove the files."""
        self.end()

    def end(self) -> None:
        """End the run if it is under way still, and remove the files."""
        self._job.end()
        self._files.cleanup()

    def result(self) -> Baseline:
        """Wait for the run and return its result.

        Raises:
            RuntimeUnavailableError: the model does not run.
        """
        binding, spec = self.binding, self._spec
        record = record_of(spec, self._job.outcome())
        if record.failure is not None and len(spec.inputs) > 1:
            # The second sizes may be what the process cannot bear.
            spec = replace(spec, inputs=spec.inputs[:1])
            record = run_model(spec, timeout=self.check.timeout)
        if record.failure is not None:
            at = binding_text(dict(sorted(binding.dims.items()))) or "its dims"
            what = f"{self.path} does not run at {at}{given_text(binding.feeds)}"
            if _IN_A_NODE in record.failure.reason and not binding.feeds:
                raise RuntimeUnavailableError(f"{what}: {record.failure.reason}", hint=_DRAWN)
            record.require(what)
        inputs, notes = spec.inputs, list[str]()
        if len(record.inputs) > 1 and record.inputs[1].failure:
            other = binding_text(dict(sorted((second_dims(binding) or {}).items())))
            failure = record.inputs[1].failure
            notes = [f"one shape only: the original does not run at {other} ({failure})"]
            inputs = inputs[:1]
        return Baseline(
            path=self.path,
            check=replace(self.check, provider=spec.session.provider),
            binding=binding,
            folder=Path(self._files.name),
            inputs=inputs,
            record=record,
            settings=self._settings,
            random=self._random,
            nodes=self._nodes,
            notes=tuple(notes),
        )


def second_dims(binding: Binding) -> dict[str, int] | None:
    """Return dims with twice the assumed numbers, which keeps sums equal; None if none is."""
    other = {name: 2 * binding.dims[name] for name in binding.assumed if name in binding.dims}
    return {**binding.dims, **other} if other else None


def _input_sets(model: ModelProto, binding: Binding, folder: Path) -> tuple[InputSet, ...]:
    """Return the inputs at the dims of a binding, and at second ones if dims were assumed."""
    second = second_dims(binding)
    every = (binding.dims, *([second] if second else []))
    found = []
    for number, dims in enumerate(every):
        outputs = folder / f"outputs{number}"
        outputs.mkdir()
        found.append(InputSet(feed_specs(model, dims, binding.feeds), outputs))
    return tuple(found)
