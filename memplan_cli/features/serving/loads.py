"""The load on the arena at each size of a model's requests: allocation traces of single runs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import CPU, DEFAULT_TIMEOUT, RuntimeSettings
from memplan_cli.errors import UnknownSizeError
from memplan_cli.features.serving.sizes import fit_formulas
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import Feeder
from memplan_cli.runtime.graph.dumps import (
    executed_graph,
    read_dump,
    runtime_shapes,
    write_dump,
)
from memplan_cli.runtime.profile.workspace import requests_from_totals
from memplan_cli.runtime.run.observe import observe_many
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.simulate.execution import SessionTraces, trace_session
from memplan_cli.runtime.simulate.predict import needs_run, session_traces, simulated_model
from memplan_cli.runtime.simulate.trace import UnknownBytesError, tensor_bytes
from memplan_cli.runtime.workers.spec import RunConditions, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.bindings import Binding, FeedSpec
    from memplan_cli.core.program import VarId
    from memplan_cli.features.serving.sizes import Extent, Point, SizeFormulas
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.runtime.simulate.trace import AllocationTrace

_MAX_SIMULATED_OPS = 1_000_000
"""Ops simulated for all sizes together, in each variant: some seconds."""

_KNOWN_POINTS = 24
"""Sizes at which the bytes of tensors are computed one by one, or observed in a run."""

_BATCH = 256
"""Sizes whose bytes are in memory together."""

PLAIN = RuntimeSettings(session={"enable_mem_pattern": False})


@dataclass(frozen=True, slots=True)
class Service:
    """A model whose requests have sizes within bounds.

    Attributes:
        model: the file, which must have its weights.
        extent: the sizes.
        binding: values of the other dims, and given inputs.
        timeout: seconds for a process that runs the model.
        base: settings that must not change.
    """

    model: Path
    extent: Extent
    binding: Binding
    timeout: float = DEFAULT_TIMEOUT
    base: RuntimeSettings = field(default_factory=RuntimeSettings)

    def dims(self, point: Point) -> dict[str, int]:
        """Return the value of every dim at a size."""
        return {**self.binding.dims, **self.extent.dims(point)}

    def conditions(self, point: Point) -> RunConditions:
        """Return how the model is run at a size."""
        binding = replace(self.binding, dims=self.dims(point))
        return RunConditions(CPU, binding, self.timeout)

    def specs(self, points: tuple[Point, ...]) -> tuple[tuple[FeedSpec, ...], ...]:
        """Return how to draw the inputs of requests of these sizes."""
        feeder = Feeder(load_model(self.model), self.binding.feeds)
        return tuple(feeder.specs(self.dims(point)) for point in points)


@dataclass(frozen=True, slots=True)
class SampledSizes:
    """The sizes that were looked at, and the executed graph at each of them.

    Attributes:
        executed: by size; few sizes, the largest first.
        others: further sizes, at which the bytes of tensors follow from those of the first.
        formulas: for these bytes; None if there are no further sizes.
        workspace: measured workspace of kernels at the largest size, taken for all sizes.
        measured: whether the workspace was measured.
    """

    executed: Mapping[Point, ExecutedGraph]
    others: tuple[Point, ...] = ()
    formulas: SizeFormulas | None = None
    workspace: Mapping[str, int] = field(default_factory=dict)
    measured: bool = False

    @property
    def count(self) -> int:
        """The number of sizes that were looked at."""
        return len({*self.executed, *self.others})

    def loads(self, settings: RuntimeSettings) -> dict[Point, SessionTraces]:
        """Return what requests of each of the first sizes allocate: the first, and later ones.

        Raises:
            UnknownSizeError: data decides a size.
        """
        return {point: self._load(one, settings) for point, one in self.executed.items()}

    def first_requests(self, settings: RuntimeSettings) -> Iterator[AllocationTrace]:
        """Yield what the first request of each size allocates, the largest size first."""
        yield from (load.first for load in self.loads(settings).values())
        if self.formulas is not None:
            yield from self._at_other_sizes(self.formulas, settings)

    def _load(self, executed: ExecutedGraph, settings: RuntimeSettings) -> SessionTraces:
        try:
            return session_traces(executed, settings, self.workspace)
        except UnknownBytesError as error:
            raise UnknownSizeError(
                f"the memory of {str(error)[:120]!r} is not known for any size of a request",
                hint="without --bounds, settings for one size can be found",
            ) from error

    def _at_other_sizes(
        self, formulas: SizeFormulas, settings: RuntimeSettings
    ) -> Iterator[AllocationTrace]:
        """Yield what a request of each further size allocates: the same tensors with other bytes.

        Nothing but a memory pattern depends on bytes. So one run is simulated in which the bytes
        of each tensor are its number, and then these are replaced.
        """
        first = next(iter(self.executed.values()))
        numbers = {var: number for number, var in enumerate(formulas.variables, start=1)}
        model = replace(simulated_model(first, settings), bytes=numbers, observed=None)
        requests = requests_from_totals(first.program, first.dims, self.workspace)
        fixed = [size for sizes in requests.values() for size in sizes]
        # The numbers of workspace follow those of the tensors.
        number = count(len(numbers) + 1)
        numbered = {
            name: tuple(islice(number, len(sizes))) for name, sizes in requests.items()
        }
        trace = trace_session(model, numbered).first
        for begin in range(0, len(self.others), _BATCH):
            table = formulas.at(self.others[begin : begin + _BATCH]).tolist()
            for row in table:
                sizes = [0, *row, *fixed]
                yield trace.resized([sizes[number] for number in trace.sizes])


def predict_sizes(service: Service) -> SampledSizes:
    """Return sizes with their executed graphs, without running the model.

    Raises:
        UnknownSizeError: data decides a size.
        RuntimeUnavailableError: the model does not load.
    """
    sample = _sample_by_symbols(service)
    if sample is None:
        raise UnknownSizeError(
            "sizes within the bounds are not known before a run",
            hint="--measure runs the model at some of them",
        )
    return with_further_sizes(sample, service.extent)


def measure_sizes(service: Service) -> SampledSizes:
    """Return sizes with their executed graphs, and workspace measured at the largest size.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    settings = service.base.updated(PLAIN)
    conditions = service.conditions(service.extent.largest)
    record = record_run(service.model, settings, conditions, "arena", runs=1)
    workspace = record.workspace or {}
    sample = _sample_by_symbols(service) or _sample_by_runs(service)
    sample = with_further_sizes(sample, service.extent)
    return replace(sample, workspace=workspace, measured=True)


def _sample_by_symbols(service: Service) -> SampledSizes | None:
    """Return some sizes whose bytes follow from expressions, or None if a run has to show some."""
    base = executed_graph(service.model, service.base, service.binding.dims)
    if needs_run(replace(base, dims=service.dims(service.extent.largest))):
        return None
    points = service.extent.points(_KNOWN_POINTS)
    return SampledSizes({p: replace(base, dims=service.dims(p)) for p in points})


def _sample_by_runs(service: Service) -> SampledSizes:
    """Run the model at some sizes, including the largest and corners, and return what runs show."""
    points = service.extent.points(_KNOWN_POINTS)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump, session = (
            Path(name) / "whole.onnx",
            SessionSpec(service.model, CPU, service.base),
        )
        write_dump(session, dump)
        shapes, dims = runtime_shapes(dump), service.binding.dims
        base = read_dump(dump, shapes, session, dims)
        specs, conditions = service.specs(points), service.conditions(points[0])
        runs = observe_many(dump, base.program, specs, conditions)
    pairs = zip(points, runs, strict=True)
    return SampledSizes(
        {p: replace(base, dims=service.dims(p), observed=run) for p, run in pairs}
    )


def with_further_sizes(sample: SampledSizes, extent: Extent) -> SampledSizes:
    """Add further sizes if formulas that fit the first ones give every tensor's bytes at them."""
    first = next(iter(sample.executed.values()))
    ops = tuple(walk(first.program.body))
    if len(sample.executed) == extent.count or any(op.bodies for _, op in ops):
        return sample
    names = tuple(dict.fromkeys(var for _, op in ops for var in op.outputs if var))
    formulas = fit_formulas({p: _bytes(one, names) for p, one in sample.executed.items()})
    if formulas is None:
        return sample
    others = extent.points(max(_MAX_SIMULATED_OPS // max(len(ops), 1), _KNOWN_POINTS))
    # The largest come first: an arena without room for them is rejected soon.
    further = (point for point in others if point not in sample.executed)
    kept = tuple(sorted(further, key=prod, reverse=True))
    return replace(sample, others=kept, formulas=formulas)


def _bytes(executed: ExecutedGraph, names: tuple[VarId, ...]) -> dict[VarId, int]:
    """Return the bytes of outputs of ops at one size, where they are known."""
    known = tensor_bytes(executed.program, executed.dims)
    seen = executed.observed.written if executed.observed else {}
    sizes = {var: seen[var][0].bytes if seen.get(var) else known.get(var) for var in names}
    return {var: size for var, size in sizes.items() if size is not None}
