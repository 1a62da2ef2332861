"""Allocation traces of a model at many sizes of its requests.

The executed graph is read or observed at a few sizes. At many more, the bytes of tensors follow from
polynomials that fit the first sizes exactly.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from itertools import count, islice, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import CPU, DEFAULT_TIMEOUT, RuntimeSettings
from memplan_cli.errors import UnknownSizeError
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
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from memplan_cli.core.bindings import Binding, FeedSpec
    from memplan_cli.core.program import VarId
    from memplan_cli.features.serving.sizes import Extent, Point
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.runtime.simulate.trace import AllocationTrace

_MAX_SIMULATED_OPS = 1_000_000
"""Limit of simulated ops, summed over all sizes, in each variant: some seconds."""

_KNOWN_POINTS = 24
"""Sizes at which the bytes of tensors are computed one by one, or observed in a run."""

_BATCH = 256
"""Number of sizes whose bytes are computed together."""

_MAX_POWER, _MAX_DEGREE = 2, 3
"""Highest power of one dim in a tensor's size, and of all dims together (scores of attention)."""

_SPARE_POINTS = 4
"""Points beyond the number of unknowns, so that a polynomial that fits them all is no accident."""

NO_MEMORY_PATTERN = RuntimeSettings(session={"enable_mem_pattern": False})


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
    """Sizes of requests to simulate, with the executed graph at some of them.

    Attributes:
        executed: the executed graph by size, for a few sizes, the largest first.
        others: further sizes, whose bytes of tensors are given by formulas.
        formulas: formulas that fit the bytes at the first sizes; None without further sizes.
        workspace: measured bytes of kernels' workspace at the largest size, used for all sizes.
        workspace_measured: whether the workspace was measured.
    """

    executed: Mapping[Point, ExecutedGraph]
    others: tuple[Point, ...] = ()
    formulas: SizeFormulas | None = None
    workspace: Mapping[str, int] = field(default_factory=dict)
    workspace_measured: bool = False

    @property
    def count(self) -> int:
        """The number of sizes to simulate."""
        return len({*self.executed, *self.others})

    def traces(self, settings: RuntimeSettings) -> dict[Point, SessionTraces]:
        """Return the allocations of the first and of later requests, by size, without `others`.

        Raises:
            UnknownSizeError: the bytes of a tensor depend on data.
        """
        return {
            size: self._session_traces(graph, settings)
            for size, graph in self.executed.items()
        }

    def first_requests(self, settings: RuntimeSettings) -> Iterator[AllocationTrace]:
        """Yield the allocations of the first request of each size, `others` included.

        The largest size comes first.
        """
        yield from (traces.first for traces in self.traces(settings).values())
        if self.formulas is not None:
            yield from self._at_other_sizes(self.formulas, settings)

    def _session_traces(
        self, executed: ExecutedGraph, settings: RuntimeSettings
    ) -> SessionTraces:
        """Return the allocations of the first and of later runs of an executed graph.

        Raises:
            UnknownSizeError: the bytes of a tensor depend on data.
        """
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
        """Yield the allocations of a request of each further size: equal steps with other bytes.

        The order of allocations does not depend on bytes, if no memory pattern is planned. So one
        run is simulated in which tensor k has k bytes. For each size, k is then replaced by the
        bytes of tensor k. Kernels' workspaces are numbered after the tensors, and keep their bytes.
        """
        first = next(iter(self.executed.values()))
        numbers = {var: number for number, var in enumerate(formulas.variables, start=1)}
        model = replace(simulated_model(first, settings), bytes=numbers, observed=None)
        requests = requests_from_totals(first.program, first.dims, self.workspace)
        workspace_bytes = [size for sizes in requests.values() for size in sizes]
        next_numbers = count(len(numbers) + 1)
        numbered_workspace = {
            name: tuple(islice(next_numbers, len(sizes))) for name, sizes in requests.items()
        }
        trace = trace_session(model, numbered_workspace).first
        for begin in range(0, len(self.others), _BATCH):
            table = formulas.at(self.others[begin : begin + _BATCH]).tolist()
            for row in table:
                sizes = [0, *row, *workspace_bytes]  # numbers begin at 1
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
            "the sizes of some tensors within the bounds are unknown before a run",
            hint="--measure runs the model at some of them",
        )
    return with_further_sizes(sample, service.extent)


def measure_sizes(service: Service) -> SampledSizes:
    """Return sizes with their executed graphs, and workspace measured at the largest size.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    settings = service.base.updated(NO_MEMORY_PATTERN)
    conditions = service.conditions(service.extent.largest)
    record = record_run(service.model, settings, conditions, "arena", runs=1)
    workspace = record.workspace or {}
    sample = _sample_by_symbols(service) or _sample_by_runs(service)
    sample = with_further_sizes(sample, service.extent)
    return replace(sample, workspace=workspace, workspace_measured=True)


def _sample_by_symbols(service: Service) -> SampledSizes | None:
    """Return some sizes at which all bytes follow from the graph; None if some depend on a run."""
    base = executed_graph(service.model, service.base, service.binding.dims)
    if needs_run(replace(base, dims=service.dims(service.extent.largest))):
        return None
    points = service.extent.points(_KNOWN_POINTS)
    return SampledSizes({point: replace(base, dims=service.dims(point)) for point in points})


def _sample_by_runs(service: Service) -> SampledSizes:
    """Run the model at some sizes, and return these sizes with the bytes observed in the runs."""
    points = service.extent.points(_KNOWN_POINTS)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump = Path(name) / "whole.onnx"
        session = SessionSpec(service.model, CPU, service.base)
        write_dump(session, dump)
        shapes, dims = runtime_shapes(dump), service.binding.dims
        base = read_dump(dump, shapes, session, dims)
        # ``specs`` has the dims of each run; all else in the conditions is the same for all.
        specs, conditions = service.specs(points), service.conditions(points[0])
        runs = observe_many(dump, base.program, specs, conditions)
    pairs = zip(points, runs, strict=True)
    return SampledSizes(
        {point: replace(base, dims=service.dims(point), observed=run) for point, run in pairs}
    )


def with_further_sizes(sample: SampledSizes, extent: Extent) -> SampledSizes:
    """Add further sizes, if polynomials give the bytes of every tensor at the first ones.

    Nothing is added to models with subgraphs, in which more than the bytes may depend on the size, or if all
    sizes are in the sample already.
    """
    first = next(iter(sample.executed.values()))
    ops = [op for _, op in walk(first.program.body)]
    if len(sample.executed) == extent.count or any(op.bodies for op in ops):
        return sample
    variables = tuple(dict.fromkeys(var for op in ops for var in op.outputs if var))
    formulas = fit_formulas(
        {size: _output_bytes(graph, variables) for size, graph in sample.executed.items()}
    )
    if formulas is None:
        return sample
    max_sizes = max(_MAX_SIMULATED_OPS // max(len(ops), 1), _KNOWN_POINTS)
    further = [size for size in extent.points(max_sizes) if size not in sample.executed]
    # The largest come first: a region that is too small for them is rejected early.
    further.sort(key=prod, reverse=True)
    return replace(sample, others=tuple(further), formulas=formulas)


def _output_bytes(executed: ExecutedGraph, variables: tuple[VarId, ...]) -> dict[VarId, int]:
    """Return the bytes of variables at one size: observed ones, else those of their shapes.

    Variables of unknown size are left out. Without subgraphs each variable is written once in a run.
    """
    inferred = tensor_bytes(executed.program, executed.dims)
    observed = executed.observed.written if executed.observed else {}
    sizes: dict[VarId, int] = {}
    for var in variables:
        size = observed[var][0].bytes if observed.get(var) else inferred.get(var)
        if size is not None:
            sizes[var] = size
    return sizes


@dataclass(frozen=True, slots=True)
class SizeFormulas:
    """Polynomials in the dims of requests, one for the bytes of each tensor.

    The bytes of tensor j are the sum over monomials i of ``coefficients[i, j]`` times the product
    of ``(dim / scale) ** power`` over all dims.

    Attributes:
        variables: the tensors.
        powers: the exponent of each dim, for each monomial.
        scale: the number by which each dim is divided first, so that powers stay small and the fit exact.
        coefficients: a row for each monomial and a column for each tensor.
    """

    variables: tuple[VarId, ...]
    powers: tuple[Point, ...]
    scale: Point
    coefficients: NDArray[np.float64]

    def at(self, points: Sequence[Point]) -> NDArray[np.int64]:
        """Return the bytes of each tensor (column) at each size (row)."""
        values = _monomials(points, self.powers, self.scale) @ self.coefficients
        return np.rint(values).astype(np.int64)


def fit_formulas(sizes: Mapping[Point, Mapping[VarId, int]]) -> SizeFormulas | None:
    """Return polynomials that give exactly the bytes of every tensor at every given size.

    ``sizes`` has the bytes of tensors by size of the request. None if there are too few sizes for a
    conclusion, if the sizes do not have the same tensors, or if no polynomials fit: bytes that are rounded
    (strides, pooling) are none.
    """
    points, rows = tuple(sizes), list(sizes.values())
    variables = tuple(rows[0])
    powers = tuple(
        exponents
        for exponents in product(range(_MAX_POWER + 1), repeat=len(points[0]))
        if sum(exponents) <= _MAX_DEGREE
    )
    has_too_few = len(points) < len(powers) + _SPARE_POINTS
    if has_too_few or any(row.keys() != rows[0].keys() for row in rows):
        return None
    scale = tuple(max(*numbers, 1) for numbers in zip(*points, strict=True))
    expected = np.array([[row[var] for var in variables] for row in rows], np.float64)
    coefficients, *_ = np.linalg.lstsq(_monomials(points, powers, scale), expected, rcond=None)
    formulas = SizeFormulas(variables, powers, scale, coefficients.astype(np.float64))
    is_exact = np.array_equal(formulas.at(points), expected.astype(np.int64))
    return formulas if is_exact else None


def _monomials(
    points: Sequence[Point], powers: Sequence[Point], scale: Point
) -> NDArray[np.float64]:
    """Return each monomial (column) of the scaled dims at each size (row)."""
    values = np.array(points, np.float64) / np.array(scale, np.float64)
    monomials: NDArray[np.float64] = np.prod(
        values[:, None, :] ** np.array(powers, np.float64)[None, :, :], axis=2
    )
    return monomials
