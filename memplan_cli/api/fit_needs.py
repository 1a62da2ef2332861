"""The memory that one model needs for many values of a dim: planned, predicted, and run.

The model is read and ordered once. Its plan for all values gives formulas of the need. At single
values it is planned exactly, in the same order of nodes, and the process is predicted. If sizes
depend on data, each value is run instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.api.rewrites import REWRITES
from memplan_cli.core.binding_options import (
    RUN_OPTION,
    dim_option,
    input_shapes,
    suggested_numbers,
)
from memplan_cli.core.progress import Detail
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.selection import free_dims
from memplan_cli.core.symbolic.dims import bind_dim, binding_text
from memplan_cli.errors import (
    ModelError,
    RuntimeUnavailableError,
    SettingsError,
    UnknownSizeError,
)
from memplan_cli.planning.candidate import Source
from memplan_cli.planning.fit import Growth, Need
from memplan_cli.planning.planner import make_plan
from memplan_cli.planning.totals import input_bytes, output_bytes, summed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.memory import Memory
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.weights.stored import StoredModel
    from memplan_cli.planning.fit import Point
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.settings.settings import Settings

_SOURCE = Source(path="", sha256="", graph_sha256="")
"""The source of plans that are never written."""

_SUGGESTED_NUMBER = 64
"""The number that a hint suggests for a dim that data decides."""


@dataclass(slots=True)
class ModelNeeds:
    """The memory needs of a model at values of one dim; each is computed once.

    Attributes:
        program: the model in its planned order, symbolic in the dim.
        settings: of the plans, which keep the order of ``program``.
        totals: bytes of one plan for all values, see `_totals`; empty if unknown.
        warnings: what all needs depend on.
        limit: the memory size in bytes. A need above it may be too small: it may lack what only a run
            or a prediction tells.
        process: predicts the process; None: the planned tensors are counted.
        observed_plans: plans at the sizes of runs; None: formulas tell all sizes.
        growth: extrapolates the needs of large values, if needs take runs.
        known: the needs by value; None for a value that cannot fit.
    """

    dim: str
    program: Program
    settings: Settings
    totals: Mapping[str, int]
    warnings: tuple[str, ...]
    limit: int
    progress: Progress | None
    process: ProcessPrediction | None
    observed_plans: ObservedPlans | None
    growth: Growth = field(init=False)
    known: dict[int, Need | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.growth = Growth(self._compute)

    def at(self, value: int) -> Need | None:
        """Return the need at a value of the dim, which is computed once and stored in ``known``.

        None if the value cannot fit: some size exceeds 64 bits, or the model does not run with the value.
        """
        if value in self.known:
            return self.known[value]
        if self.progress:
            self.progress(Detail(f"planning {self.dim}={value}"))
        # If data decides sizes, the plan is made from a run, or the process is predicted from one.
        plan_takes_run = self.observed_plans is not None
        process_takes_run = self.process is not None and self.process.model_to_run is not None
        if plan_takes_run or process_takes_run:
            # A run at a large value may take minutes, and more memory than the limit. So small values
            # are run, and the needs of large ones are extrapolated from them.
            self.known[value] = self.growth.need(value)
        else:
            self.known[value] = self._compute(value)
        return self.known[value]

    def _compute(self, value: int) -> Need | None:
        """Return the need at a value: of the plan, and of the process if that has to fit.

        None if some size exceeds 64 bits, or if the model does not run with the value.
        """
        dims = {self.dim: value}
        try:
            program = bind_program(self.program, dims)
            memory = make_plan(program, self.settings, _SOURCE, REWRITES).plan.report.memory
            need = _need_of_known_sizes(memory)
            if self.observed_plans:
                # Sizes that depend on data counted as 0. A value that is too large even so is not run.
                if need.weights + need.planned > self.limit:
                    return need
                memory = self.observed_plans.memory(dims)  # runs the model
                need = _need_of_known_sizes(memory)
        except ModelError:
            return None
        if self.process is None:
            return need
        return replace(need, process=self.process.highest_bytes(dims))

    def notes(self, point: Point | None) -> tuple[str, ...]:
        """Return the conditions of an answer. ``point`` is None if no value fits, or if values were run."""
        observed = self.observed_plans.warnings if self.observed_plans else ()
        notes = (*self.warnings, *observed)
        if point is None or not self.growth.is_extrapolated(point.dims[self.dim]):
            return notes
        extrapolated = (
            f"{binding_text(point.dims)} was not run: its need is extrapolated from runs at up to "
            f"{self.growth.largest_sample}; --confirm runs it"
        )
        return (*notes, extrapolated)


def _need_of_known_sizes(memory: Memory) -> Need:
    """Return the need of a plan's memory, in which unknown sizes count as 0."""
    return Need(
        weights=memory.weights,
        inputs=memory.inputs or 0,
        outputs=memory.outputs or 0,
        planned=memory.planned or 0,
    )


def read_needs(
    file: ModelFile,
    settings: Settings,
    dim: str,
    limit: int,
    of: str,
    progress: Progress | None,
) -> ModelNeeds:
    """Read and order a model, and return what computes its memory needs at numbers of ``dim``.

    The bytes of the plan are a formula of ``dim``. If data decides sizes, they are read from a run per number.

    Args:
        file: the model.
        settings: numbers or bounds of the other dims, and settings of the plan.
        dim: the dim to search, which stays symbolic.
        limit: the memory size in bytes that the needs will be compared with.
        of: what has to fit: ``process``, ``tensors``, or ``auto``: the process if it is predictable.
        progress: called with each stage.

    Raises:
        SettingsError: the model has no such dim, or another dim has no number.
        UnknownSizeError: sizes depend on data, and a run does not tell them.
        MemplanError: the model is wrong.
    """
    from memplan_cli.api.models.binding import assumption_notes
    from memplan_cli.api.models.resolve_sizes import free_dim_names, resolve_all_but

    resolved = resolve_all_but(file.lazy, file.path, settings, dim)
    bound_settings, program = resolved.settings, resolved.loaded.program
    dims_of_inputs = free_dim_names(file.lazy, bound_settings)
    # The search gives ``dim`` a number. Only a run gives one to other dims that are in no input.
    dims_of_run = _dims_by_data(program, dims_of_inputs, bound_settings) - {dim}
    _check_dims(program, (dim, *dims_of_run), bound_settings)
    planned = make_plan(program, bound_settings, _SOURCE, REWRITES, progress=progress)
    # Bytes of the plan as a formula of ``dim``, such as 4096*dim + 64; empty if a size is unknown.
    formula = _totals(planned.program, planned.plan, bound_settings)
    observed_plans = None
    if dims_of_run or not formula:
        formula = {}  # data decides some sizes: a run per number shows them
        observed_plans = ObservedPlans(file.lazy, file.path, bound_settings)
        # A model whose runs do not tell all sizes is refused now, by a run at the number 1.
        observed_plans.memory({dim: 1})
    process, process_notes = _process_that_has_to_fit(file.path, dim, bound_settings, of)
    notes = (*assumption_notes(bound_settings), *process_notes)
    return ModelNeeds(
        dim=dim,
        program=planned.program,
        # The nodes of ``planned.program`` are ordered already.
        settings=replace(bound_settings, order="keep"),
        totals=formula,
        warnings=(*resolved.loaded.warnings, *notes),
        limit=limit,
        progress=progress,
        process=process,
        observed_plans=observed_plans,
    )


def _process_that_has_to_fit(
    path: Path, dim: str, settings: Settings, of: str
) -> tuple[ProcessPrediction | None, tuple[str, ...]]:
    """Return the prediction of the process, and notes; None if tensors have to fit instead.

    ``of`` is what has to fit: ``auto`` stands for the process, or for tensors if there is no prediction.
    """
    if of == "tensors":
        return None, ()
    try:
        return process_prediction(path, dim, settings), ()
    except (RuntimeUnavailableError, UnknownSizeError) as error:
        if of == "process":
            raise
        return None, (f"the planned tensors are counted: {error.message}",)


def bind_program(program: Program, dims: Mapping[str, int]) -> Program:
    """Return a program with numbers for symbols of its shapes."""
    bound_vars = {
        identity: var
        if var.shape is None or not any(isinstance(dim, str) for dim in var.shape)
        else var._replace(shape=tuple(bind_dim(dim, dims) for dim in var.shape))
        for identity, var in program.vars.items()
    }
    return replace(program, vars=bound_vars)


def _dims_by_data(
    program: Program, input_dims: Sequence[str], settings: Settings
) -> frozenset[str]:
    """Return the symbols that are no dims of inputs and have no bounds: data decides them.

    Empty if settings forbid runs: then every symbol needs a number.
    """
    names = free_dims(program, ()) if settings.run else ()
    return frozenset(names) - {*input_dims, *settings.bounds}


def _check_dims(program: Program, without_number: tuple[str, ...], settings: Settings) -> None:
    """Refuse a free dim without a number or bounds, unless its name is in ``without_number``.

    Raises:
        SettingsError: there is such a dim, or a name in ``without_number`` is no free dim.
    """
    # Returns all free dims. An error is raised for a name in ``requested`` that is no free dim.
    names = free_dims(program, requested=without_number)
    allowed = {*without_number, *settings.bounds}
    missing = [name for name in names if name not in allowed]
    if not missing:
        return
    usual = suggested_numbers(input_shapes(program))
    numbers = " ".join(
        dim_option(name, usual.get(name, _SUGGESTED_NUMBER)) for name in missing
    )
    raise SettingsError(f"dim {missing[0]!r} has no value", hint=f"{numbers} gives numbers")


def _totals(program: Program, plan: Plan, settings: Settings) -> dict[str, int]:
    """Return weights, inputs, outputs and arenas together, in bytes by product of dims.

    ``{"1": 64, "batch": 4096}`` is ``4096*batch + 64`` bytes: ``"1"`` is the product of no dims. Empty
    if the size of some input, output or intermediate is neither a number nor a formula.
    """
    inputs = input_bytes(program, settings.bounds)
    outputs = output_bytes(program, settings.bounds)
    if inputs is None or outputs is None or plan.report.coverage < 1.0:
        return {}
    weights = {"1": plan.report.memory.weights}
    heights = ({arena.unit: arena.height} for arena in plan.arenas)
    return dict(sorted(summed(weights, inputs, outputs, *heights).items()))


@dataclass(slots=True)
class ObservedPlans:
    """Plans of a model whose sizes depend on data, at the sizes that runs observe.

    Attributes:
        settings: what binds its other dims.
        run_warnings: the warnings of the first call of `memory` that had some.
        last_failure: the dims of the last call of `memory` that left a size unknown, and why; empty if none did.
    """

    source: LazyModel
    path: Path
    settings: Settings
    run_warnings: tuple[str, ...] = ()
    last_failure: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the plans depend on."""
        failures = [f"taken not to fit: {self.last_failure}"] if self.last_failure else []
        return (*self.run_warnings, *failures)

    def memory(self, dims: Mapping[str, int]) -> Memory:
        """Return the memory of the model's plan at these dims, with sizes that a run observed.

        Sets ``run_warnings``, or ``last_failure`` if a size is unknown.

        Raises:
            UnknownSizeError: the size of some intermediate, input or output is unknown, since the run failed
                or the settings forbid it.
        """
        from memplan_cli.api.models.resolve_sizes import resolve_sizes

        settings = replace(self.settings, dims={**self.settings.dims, **dims})
        resolved = resolve_sizes(self.source, self.path, settings)
        program = resolved.loaded.program
        plan = make_plan(program, resolved.settings, _SOURCE, REWRITES).plan
        unknown = _unknown_size(plan)
        if unknown is None:
            self.run_warnings = self.run_warnings or resolved.loaded.warnings
            return plan.report.memory
        tensor, plan_reason = unknown
        reason = resolved.run_failure or plan_reason  # a failed run causes that of the plan
        self.last_failure = f"{binding_text(dims)}, for {reason}"
        raise UnknownSizeError(
            f"the size of {tensor} is not known: {reason}",
            hint="" if self.settings.run else RUN_OPTION,
        )


def _unknown_size(plan: Plan) -> tuple[str, str] | None:
    """Return a tensor whose size a plan lacks, and why, as texts; None if all sizes are known."""
    for tensor in plan.report.unplanned:
        # Tensors that the user excluded are unplanned too, but have a size and a place in the plan.
        if tensor.name not in plan.by_id:
            return repr(tensor.name), tensor.reason
    memory = plan.report.memory
    if memory.inputs is None or memory.outputs is None:
        return "an input or output", "data decides it"
    return None


@dataclass(frozen=True, slots=True)
class ProcessPrediction:
    """Predicts the process of a model at values of its dims.

    Attributes:
        executed: the graph that ONNX Runtime runs, with symbolic sizes.
        settings: the numbers of the other dims, and inputs.
        model_to_run: the model to run for sizes that depend on data; None: no size does.
    """

    stored: StoredModel
    executed: ExecutedGraph
    settings: Settings
    model_to_run: Path | None = None

    def highest_bytes(self, dims: Mapping[str, int]) -> int | None:
        """Predict the highest memory of a process that keeps the outputs of each run until the next one, in bytes.

        None if the prediction at these dims is not possible, for the reason of `prediction_obstacle`.
        """
        from memplan_cli.runtime.process.predict import predict_process_bytes

        process = predict_process_bytes(self.stored, self.graph_at(dims), RuntimeSettings())
        if process is None:
            return None
        kept_bytes = process.kept or 0  # None only if a process was measured, not predicted
        return process.run + kept_bytes

    def graph_at(self, dims: Mapping[str, int]) -> ExecutedGraph:
        """Return the executed graph with sizes in numbers at these dimensions.

        If data decides sizes, the model is run for it, with ONNX Runtime's default settings on the CPU:
        those of the process that is predicted.
        """
        from memplan_cli.core.bindings import Binding
        from memplan_cli.runtime.graph.dumps import observed_graph
        from memplan_cli.runtime.workers.spec import RunConditions

        every_dim = {**self.settings.dims, **dims}
        if self.model_to_run is None:
            # Numbers for the dims give a number for every symbolic size.
            return replace(self.executed, dims=every_dim)
        binding = Binding(every_dim, self.settings.inputs.feeds or {})
        return observed_graph(
            self.model_to_run, RuntimeSettings(), RunConditions(CPU, binding)
        )


def process_prediction(path: Path, dim: str, settings: Settings) -> ProcessPrediction:
    """Return the prediction of the process that runs a model, as tried at a small value of the dim.

    The model is loaded, and run if data decides sizes and the settings allow runs.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load or run.
        UnknownSizeError: the process cannot be predicted.
    """
    from memplan_cli.onnx_io.weights.stored import stored_model
    from memplan_cli.runtime.graph.dumps import executed_graph
    from memplan_cli.runtime.process.predict import prediction_obstacle
    from memplan_cli.runtime.run.baseline import DEFAULTS

    executed = executed_graph(path, DEFAULTS, settings.dims)
    prediction = ProcessPrediction(stored_model(path), executed, settings)
    # A process that can be predicted at one value can be at any. The run at the smallest value is the shortest.
    tried = {dim: _smallest_value(executed, dim, settings.dims)}
    if prediction.highest_bytes(tried) is not None:
        return prediction
    prediction_with_runs = replace(prediction, model_to_run=path)
    if settings.run and prediction_with_runs.highest_bytes(tried) is not None:
        return prediction_with_runs
    # A run only adds sizes. Other obstacles, such as an operator, are the same with a run and without.
    obstacle = prediction_obstacle(prediction.graph_at(tried), RuntimeSettings())
    raise UnknownSizeError(
        f"the process of {path} cannot be predicted: {obstacle}",
        hint="--of tensors uses the memory of the plan instead",
    )


def _smallest_value(executed: ExecutedGraph, dim: str, dims: Mapping[str, int]) -> int:
    """Return the smallest power of two for ``dim`` at which as many sizes are known as at 1,024.

    Negative sizes count as unknown: the height of an unpadded Conv's output is negative at height 1. Sizes that data
    decides are unknown at each value. ``dims`` has the numbers of the other dims.
    """
    from memplan_cli.runtime.simulate.trace import tensor_bytes

    def known_sizes(value: int) -> int:
        """Return how many sizes are known: a negative one is not."""
        return len(tensor_bytes(executed.program, {**dims, dim: value}))

    values = [1 << exponent for exponent in range(11)]
    most = known_sizes(values[-1])
    return next(value for value in values if known_sizes(value) >= most)
