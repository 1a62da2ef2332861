"""Allocation traces of a model at some sizes of its requests."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, DEFAULT_TIMEOUT, RuntimeSettings
from memplan_cli.errors import UnknownSizeError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import Feeder
from memplan_cli.runtime.graph.dumps import dump_whole_graph, executed_graph
from memplan_cli.runtime.run.observe import observe_many
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.simulate.predict import needs_observation, session_traces
from memplan_cli.runtime.simulate.trace import UnknownBytesError
from memplan_cli.runtime.workers.spec import RunConditions, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.bindings import Binding, FeedSpec
    from memplan_cli.features.serving.sizes import Extent, Point
    from memplan_cli.runtime.simulate.execution import SessionTraces
    from memplan_cli.runtime.simulate.predict import ExecutedGraph

_SAMPLED_SIZES = 24
"""Sizes of requests in a sample: the largest, the corners of the bounds, and drawn ones."""

NO_MEMORY_PATTERN = RuntimeSettings(session={"enable_mem_pattern": False})


@dataclass(frozen=True, slots=True)
class Service:
    """A model whose requests have sizes within bounds.

    Attributes:
        model: the file, which must have its weights.
        extent: the sizes.
        binding: values of the dims that have no bounds, and given inputs.
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
    """Sizes of requests to simulate, with the executed graph at each of them.

    Attributes:
        executed: for each size, the graph that ONNX Runtime executes, with the dims of this size.
            The largest size comes first.
        workspace: bytes of each kernel's workspace, measured at the largest size and used for all;
            None if it was not measured.
    """

    executed: Mapping[Point, ExecutedGraph]
    workspace: Mapping[str, int] | None = None

    def traces(self, settings: RuntimeSettings) -> dict[Point, SessionTraces]:
        """Return the allocations of the first and of later requests, by size.

        Raises:
            UnknownSizeError: the bytes of a tensor depend on data.
        """
        return {
            size: self._session_traces(graph, settings)
            for size, graph in self.executed.items()
        }

    def _session_traces(
        self, executed: ExecutedGraph, settings: RuntimeSettings
    ) -> SessionTraces:
        """Return the allocations of the first and of later runs of an executed graph.

        Raises:
            UnknownSizeError: the bytes of a tensor depend on data.
        """
        try:
            return session_traces(executed, settings, self.workspace or {})
        except UnknownBytesError as error:
            raise UnknownSizeError(
                f"the memory of {str(error)[:120]!r} is not known for any size of a request",
                hint="without --bounds, settings for one size can be found",
            ) from error


def predict_sizes(service: Service) -> SampledSizes:
    """Return a sample of the request sizes within the bounds, with the graph that would be executed at each.

    ONNX Runtime optimizes the graph but does not run it, so no workspace is measured.

    Raises:
        UnknownSizeError: the size of a tensor depends on data.
        RuntimeUnavailableError: the model does not load.
    """
    sample = _sample_by_symbols(service)
    if sample is None:
        raise UnknownSizeError(
            "the sizes of some tensors within the bounds are unknown before a run",
            hint="--measure runs the model at some of them",
        )
    return sample


def measure_sizes(service: Service) -> SampledSizes:
    """Return a sample of the request sizes within the bounds, with the executed graphs and measured workspace.

    The workspace of kernels is measured in a run at the largest size. The model is run at the other sizes
    only if bytes of tensors depend on data.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    # Without a memory pattern, as with nearly all settings that are compared.
    settings = service.base.updated(NO_MEMORY_PATTERN)
    conditions = service.conditions(service.extent.largest)
    # To collect "arena" measures the workspace of each kernel too.
    record = record_run(service.model, settings, conditions, "arena", runs=1)
    sample = _sample_by_symbols(service)
    if sample is None:
        sample = _sample_by_runs(service)
    return replace(sample, workspace=record.workspace)


def _sample_by_symbols(service: Service) -> SampledSizes | None:
    """Return some sizes at which all bytes follow from the graph; None if some depend on a run."""
    base = executed_graph(service.model, service.base, service.binding.dims)
    if needs_observation(replace(base, dims=service.dims(service.extent.largest))):
        return None
    points = service.extent.points(_SAMPLED_SIZES)
    return SampledSizes({point: replace(base, dims=service.dims(point)) for point in points})


def _sample_by_runs(service: Service) -> SampledSizes:
    """Run the model at some sizes, and return these sizes with the bytes observed in the runs.

    The graph that a session executes is dumped to a file, which is then run once at each size.
    """
    points = service.extent.points(_SAMPLED_SIZES)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump = Path(name) / "whole.onnx"
        session = SessionSpec(service.model, CPU, service.base)
        # One dump serves all sizes: `binding.dims` lacks the dims with bounds, so these stay symbols.
        dumped = dump_whole_graph(session, dump, service.binding.dims)
        specs = service.specs(points)
        # Only the provider and time limit in the conditions are used. These are the same at all sizes.
        conditions = service.conditions(points[0])
        runs = observe_many(dump, dumped.program, specs, conditions, str(service.model))
    graph_at = {
        point: replace(dumped, dims=service.dims(point), observed=run)
        for point, run in zip(points, runs, strict=True)
    }
    return SampledSizes(graph_at)
