"""What a model asks of its arena at each size of its requests."""

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
from memplan_cli.runtime.serving.formulas import fitted
from memplan_cli.runtime.simulation.ledger import UnknownBytesError
from memplan_cli.runtime.simulation.predict import model_of, needs_run, run_under
from memplan_cli.runtime.simulation.requests import most_in_use, requests_of
from memplan_cli.runtime.simulation.tensor_bytes import tensor_bytes
from memplan_cli.runtime.simulation.trace import Request, Trace
from memplan_cli.runtime.simulation.workspace import as_requested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.bindings import Binding, FeedSpec
    from memplan_cli.core.program import VarId
    from memplan_cli.runtime.serving.formulas import Formulas
    from memplan_cli.runtime.serving.sequences import Extent, Point
    from memplan_cli.runtime.simulation.predict import Executed

_WORK = 1_000_000
"""Ops simulated for all sizes together, in each variant: some seconds."""

_FIRST = 24
"""Sizes at which tensors' bytes are worked out one by one, or a model is run for them."""

_AT_ONCE = 256
"""Sizes whose bytes lie in memory together."""

PLAIN = RuntimeSettings(session={"enable_mem_pattern": False})


@dataclass(frozen=True, slots=True)
class Service:
    """A model whose requests have sizes within bounds.

    Attributes:
        model: the file; its weights are there.
        extent: the sizes.
        binding: numbers for the other dims, and inputs that were given.
        timeout: seconds for a process that runs it.
        base: settings that have to stay as they are.
    """

    model: Path
    extent: Extent
    binding: Binding
    timeout: float = DEFAULT_TIMEOUT
    base: RuntimeSettings = field(default_factory=RuntimeSettings)

    def dims(self, point: Point) -> dict[str, int]:
        """Return a number for every dim."""
        return {**self.binding.dims, **self.extent.dims(point)}

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
        live: the most bytes in use at once.
    """

    first: Trace
    later: Trace
    live: int


@dataclass(frozen=True, slots=True)
class Served:
    """The sizes that were looked at, and the executed graph at each of them.

    Attributes:
        executed: by size; few sizes, the largest first.
        others: further sizes, whose tensors' bytes follow from those of the first.
        formulas: of these bytes; None where there are no further sizes.
        workspace: bytes of each kernel's workspace at the largest size, taken for all sizes.
        measured: whether a run said what the workspace is.
    """

    executed: Mapping[Point, Executed]
    others: tuple[Point, ...] = ()
    formulas: Formulas | None = None
    workspace: Mapping[str, int] = field(default_factory=dict)
    measured: bool = False

    @property
    def count(self) -> int:
        """Return how many sizes were looked at."""
        return len({*self.executed, *self.others})

    def loads(self, settings: RuntimeSettings) -> dict[Point, Load]:
        """Return what requests of the first sizes ask for under some settings."""
        return {point: self._load(one, settings) for point, one in self.executed.items()}

    def largest(self, settings: RuntimeSettings) -> tuple[Request, ...]:
        """Return what the first request of the largest size asks for."""
        executed = next(iter(self.executed.values()))
        return run_under(executed, settings, self.workspace).requests

    def every(self, settings: RuntimeSettings) -> Iterator[Trace]:
        """Yield what the first request of each size asks for."""
        yield from (load.first for load in self.loads(settings).values())
        if self.formulas is not None:
            yield from self._others(self.formulas, settings)

    def _load(self, executed: Executed, settings: RuntimeSettings) -> Load:
        try:
            run = run_under(executed, settings, self.workspace)
        except UnknownBytesError as error:
            raise UnknownSizeError(
                f"what {str(error)[:120]!r} takes is not known, whatever the size of a request",
                hint="settings for one size are found without --bounds",
            ) from error
        trace = Trace.of(run.requests)
        same = run.requests == run.then
        return Load(trace, trace if same else Trace.of(run.then), most_in_use(run.requests))

    def _others(self, formulas: Formulas, settings: RuntimeSettings) -> Iterator[Trace]:
        """Yield the requests of further sizes: the same ones, of other bytes.

        Nothing but a memory pattern goes by bytes, so a run in which each tensor's bytes are
        its number shows which request is for which tensor.
        """
        first = next(iter(self.executed.values()))
        numbers = {var: at for at, var in enumerate(formulas.variables, start=1)}
        model = replace(model_of(first, settings), bytes=numbers, observed=None)
        asked = as_requested(first.program, first.dims, self.workspace)
        fixed = [size for sizes in asked.values() for size in sizes]
        # Workspace has the numbers behind all tensors' that stand for its bytes.
        number = count(len(numbers) + 1)
        ends = {name: tuple(islice(number, len(sizes))) for name, sizes in asked.items()}
        run = requests_of(model, ends)
        for begin in range(0, len(self.others), _AT_ONCE):
            table = formulas.at(self.others[begin : begin + _AT_ONCE]).tolist()
            for row in table:
                sizes = [0, *row, *fixed]
                yield Trace.of([_sized(request, sizes) for request in run])


def _sized(request: Request, sizes: list[int]) -> Request:
    return request if request.size < 0 else Request(request.ticket, sizes[request.size])


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
    return with_others(found, service.extent)


def observed_service(service: Service) -> Served:
    """Return what is known of each size, kernels' workspace measured at the largest.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    workspace = workspace_of(
        service.model, service.base.updated(PLAIN), service.trial(service.extent.largest)
    )
    found = _by_symbols(service) or _by_runs(service)
    return replace(with_others(found, service.extent), workspace=workspace, measured=True)


def _by_symbols(service: Service) -> Served | None:
    """Return some sizes from expressions; None where a run has to tell some bytes."""
    base = executed_graph(service.model, service.base, service.binding.dims)
    if needs_run(replace(base, dims=service.dims(service.extent.largest))):
        return None
    points = service.extent.points(_FIRST)
    return Served({p: replace(base, dims=service.dims(p)) for p in points})


def _by_runs(service: Service) -> Served:
    """Return what runs at some sizes show, the largest and the corners among them."""
    points = service.extent.points(_FIRST)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump, settings = Path(name) / "whole.onnx", service.base
        write_dump(service.model, dump, settings)
        shapes, dims = runtime_shapes(dump), service.binding.dims
        base = read_graph(dump, shapes, settings, dims, service.model)
        specs, trial = service.specs(points), service.trial(points[0])
        runs = observe_many(dump, base.program, specs, trial)
    pairs = zip(points, runs, strict=True)
    return Served({p: replace(base, dims=service.dims(p), observed=run) for p, run in pairs})


def with_others(found: Served, extent: Extent) -> Served:
    """Add further sizes where those seen tell every tensor's bytes at all of them."""
    first = next(iter(found.executed.values()))
    ops = tuple(walk(first.program.body))
    if len(found.executed) == extent.count or any(op.bodies for _, op in ops):
        return found
    names = tuple(dict.fromkeys(var for _, op in ops for var in op.outputs if var))
    formulas = fitted({p: _bytes(one, names) for p, one in found.executed.items()})
    if formulas is None:
        return found
    others = extent.points(max(_WORK // max(len(ops), 1), _FIRST))
    # Those that need most come first: what has no room for them is given up soon.
    left = (point for point in others if point not in found.executed)
    kept = tuple(sorted(left, key=prod, reverse=True))
    return replace(found, others=kept, formulas=formulas)


def _bytes(executed: Executed, names: tuple[VarId, ...]) -> dict[VarId, int]:
    """Return the bytes of what ops make at one size; tensors of unknown bytes are left out."""
    known = tensor_bytes(executed.program, executed.dims)
    seen = executed.observed.written if executed.observed else {}
    sizes = {var: seen[var][0].bytes if seen.get(var) else known.get(var) for var in names}
    return {var: size for var, size in sizes.items() if size is not None}
