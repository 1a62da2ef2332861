"""What a model asks of its arena at each size of its requests."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import CPU, DEFAULT_TIMEOUT, RuntimeSettings
from memplan_cli.errors import UnknownSizeError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.feeds import Feeder
from memplan_cli.runtime.graph.executed import (
    executed_graph,
    read_graph,
    runtime_shapes,
    write_dump,
)
from memplan_cli.runtime.measuring.measure import Trial, workspace_of
from memplan_cli.runtime.measuring.observed import observe_many
from memplan_cli.runtime.simulation.predict import model_of, needs_run
from memplan_cli.runtime.simulation.requests import early_requests, most_in_use, requests_twice
from memplan_cli.runtime.simulation.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.bindings import Binding, FeedSpec
    from memplan_cli.runtime.serving.sequences import Box, Point
    from memplan_cli.runtime.simulation.predict import Executed

_WORK = 60_000
"""Ops simulated for all sizes together, in each variant: some seconds."""

_FEWEST, _MOST = 16, 4000
"""Sizes to look at, where there are as many."""

_MOST_RUN = 16
"""Sizes at which a model is run where its sizes are not known without."""

PLAIN = RuntimeSettings(session={"enable_mem_pattern": False})


@dataclass(frozen=True, slots=True)
class Service:
    """A model whose requests have sizes within bounds.

    Attributes:
        model: the file; its weights are there.
        box: the sizes.
        binding: numbers for the other dims, and inputs that were given.
        timeout: seconds for a process that runs it.
    """

    model: Path
    box: Box
    binding: Binding
    timeout: float = DEFAULT_TIMEOUT

    def dims(self, point: Point) -> dict[str, int]:
        """Return a number for every dim."""
        return {**self.binding.dims, **self.box.dims(point)}

    def trial(self, point: Point) -> Trial:
        """Return how to run it once at a size."""
        return Trial(
            CPU,
            self.dims(point),
            runs=1,
            timing_runs=0,
            timeout=self.timeout,
            feeds=self.binding.feeds,
        )

    def specs(self, points: tuple[Point, ...]) -> tuple[tuple[FeedSpec, ...], ...]:
        """Return how to draw the inputs of requests of given sizes."""
        feeder = Feeder(load_model(self.model), self.binding.feeds)
        return tuple(feeder.specs(self.dims(point)) for point in points)


@dataclass(frozen=True, slots=True)
class Load:
    """What one request asks of the arena.

    Attributes:
        first, later: the first of its size, and every one after it.
        early: the first, if kernels take their workspace before their outputs.
        live: the most bytes in use at once.
    """

    first: Trace
    later: Trace
    early: Trace
    live: int


@dataclass(frozen=True, slots=True)
class Served:
    """The sizes that were looked at, and the executed graph at each of them.

    Attributes:
        executed: by size.
        workspace: bytes of each kernel's workspace at the largest size, taken for all sizes.
        measured: whether a run said what the workspace is.
    """

    executed: Mapping[Point, Executed]
    workspace: Mapping[str, int] = field(default_factory=dict)
    measured: bool = False

    @property
    def points(self) -> tuple[Point, ...]:
        """Return the sizes."""
        return tuple(self.executed)

    def loads(self, settings: RuntimeSettings) -> dict[Point, Load]:
        """Return what requests of each size ask for under some settings."""
        return {point: self._load(one, settings) for point, one in self.executed.items()}

    def _load(self, executed: Executed, settings: RuntimeSettings) -> Load:
        model = model_of(executed, settings, CPU)
        first, later = requests_twice(model, self.workspace)
        trace = Trace.of(first)
        same = first == later
        early = Trace.of(early_requests(model, self.workspace)) if self.workspace else trace
        return Load(trace, trace if same else Trace.of(later), early, most_in_use(first))


def foreseen_service(service: Service) -> Served:
    """Return what is known of each size without a run.

    Raises:
        UnknownSizeError: data decides a size.
        RuntimeUnavailableError: the model does not load.
    """
    found = _by_symbols(service)
    if found is None:
        raise UnknownSizeError(
            "sizes within the bounds are not known before a run",
            hint="--measure runs the model at some of them",
        )
    return found


def observed_service(service: Service) -> Served:
    """Return what is known of each size, kernels' workspace measured at the largest.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    workspace = workspace_of(service.model, PLAIN, service.trial(service.box.largest))
    found = _by_symbols(service) or _by_runs(service)
    return replace(found, workspace=workspace, measured=True)


def _by_symbols(service: Service) -> Served | None:
    """Return all sizes from expressions; None where a run has to tell some of them."""
    base = executed_graph(service.model, RuntimeSettings(), service.binding.dims)
    if needs_run(replace(base, dims=service.dims(service.box.largest))):
        return None
    ops = max(sum(1 for _ in walk(base.program.body)), 1)
    points = service.box.points(min(max(_WORK // ops, _FEWEST), _MOST))
    return Served({p: replace(base, dims=service.dims(p)) for p in points})


def _by_runs(service: Service) -> Served:
    """Return what runs at some sizes show, the largest and the corners among them."""
    points = service.box.points(_MOST_RUN)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump, settings = Path(name) / "whole.onnx", RuntimeSettings()
        write_dump(service.model, dump, settings)
        base = read_graph(dump, runtime_shapes(dump), settings, service.binding.dims, service.model)
        runs = observe_many(dump, base.program, service.specs(points), service.trial(points[0]))
    return Served(
        {
            point: replace(base, dims=service.dims(point), observed=seen)
            for point, seen in zip(points, runs, strict=True)
        }
    )
