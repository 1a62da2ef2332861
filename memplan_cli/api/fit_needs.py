"""The memory that one model needs for many values of its dims: planned, predicted, and run.

The model is read and ordered once. Its plan for all values gives formulas of the need. At single
values it is planned exactly, in the same order of nodes, and the process is predicted. If sizes
depend on data, each value is run instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, Literal, NamedTuple

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
from memplan_cli.planning.fit import Confirmation, Growth, Need, guess_from_totals
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
    from memplan_cli.planning.fit import Point, Question
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.settings.settings import Settings

_SOURCE = Source(path="", sha256="", graph_sha256="")
"""The source of plans that are never written."""

_MAX_CONFIRMING_RUNS = 12
"""After so many runs the search for a value that fits ends, and the last run is the result."""

_HOPELESS = 2
"""At so many times the limit, the need of the plan shows that the process does not fit either.

The process of a smaller plan is predicted, which takes longer: it may need less than its plan.
"""

_DIM_BY_DATA = 64
"""The number that a hint suggests for a dim that data decides."""

_NOT_PREDICTED = "the process could not be predicted, and the planned tensors are counted"


@dataclass(slots=True)
class ModelNeeds:
    """The memory needs of a model at bindings of some of its dims; each is computed once.

    Attributes:
        program: the model in its planned order, symbolic in these dims.
        settings: of the plans, which keep the order of ``program``.
        totals: bytes of one plan for all values, see `_totals`; empty if unknown.
        warnings: what all needs depend on.
        limit: the memory size in bytes. A need above it may be too small: it may lack what only a run
            or a prediction tells.
        growing_dim: the dim whose small values are run, while larger ones are extrapolated; None:
            no value takes a run.
        process: predicts the process; None: the planned tensors are counted.
        by_run: plans at the sizes of runs, if data decides sizes that no dim of the search tells.
        growth: extrapolates by ``growing_dim``; None without it.
        known: needs by binding.
    """

    program: Program
    settings: Settings
    totals: Mapping[str, int]
    warnings: tuple[str, ...]
    limit: int
    growing_dim: str | None = None
    progress: Progress | None = None
    process: ProcessPrediction | None = None
    by_run: NeedsByRun | None = None
    growth: Growth | None = field(init=False, default=None)
    known: dict[tuple[tuple[str, int], ...], Need | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.growing_dim is not None:
            self.growth = Growth(self.compute, self.growing_dim)

    def at(self, dims: Mapping[str, int]) -> Need | None:
        """Return the need at a binding; None if it cannot fit, for one of the reasons of `compute`.

        The result is stored in ``known``.
        """
        key = tuple(sorted(dims.items()))
        if key not in self.known:
            if self.progress:
                self.progress(Detail(f"planning {binding_text(dict(key))}"))
            compute = self.growth.need if self.growth else self.compute
            self.known[key] = compute(dims)
        return self.known[key]

    def compute(self, dims: Mapping[str, int]) -> Need | None:
        """Return the need of a plan at a binding, with its process if that may fit; None counts as not fitting.

        If data decides sizes, the model is run for them. None if the run does not tell all of them (the reason
        is in ``by_run.failed``), or if sizes exceed 64 bits.

        Raises:
            UnknownSizeError: an input or output has an unknown size, and no run is made for the sizes.
        """
        try:
            program = bind_program(self.program, dims)
            memory = make_plan(program, self.settings, _SOURCE, REWRITES).plan.report.memory
        except ModelError:  # sizes exceed 64 bits
            return None
        if self.by_run:
            # It does not fit, whatever a run would tell.
            if memory.weights + (memory.planned or 0) > self.limit:
                return _need_of_known_sizes(memory)
            try:
                memory = self.by_run.memory(dims)
            except ModelError:  # or `UnknownSizeError`: the run does not tell all sizes
                return None
        if None in (memory.inputs, memory.outputs, memory.planned):
            raise UnknownSizeError("an input's or output's size is not known for some dims")
        need = _need_of_known_sizes(memory)
        if self.process is None or need.total > _HOPELESS * self.limit:
            return need
        return replace(need, process=self.process.highest_bytes(dims))

    def guess(self, question: Question) -> int:
        """Return the largest value that fits by the formulas; 1 if they are unknown."""
        return guess_from_totals(self.totals, question) if self.totals else 1

    def notes(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Return what answers depend on."""
        by_run = self.by_run.warnings if self.by_run else ()
        extrapolated = self.growth.extrapolation_notes(points) if self.growth else ()
        return (*self.warnings, *by_run, *extrapolated)


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
    searched_dims: tuple[str, ...],
    limit: int,
    of: str,
    progress: Progress | None,
) -> ModelNeeds:
    """Read and order a model, and prepare what computes its needs.

    A need is an exact plan at a binding, and a prediction of the process if that has to fit. If data
    decides sizes, the model is run at the binding for its plan, its prediction or both. Only small
    values are then run, and the needs of larger ones are extrapolated.

    Args:
        file: the model.
        settings: numbers or bounds of the other dims, and settings of the plan.
        searched_dims: the dims that stay symbolic, at least one; the first is the dim that grows.
        limit: the memory size in bytes that the needs will be compared with.
        of: what has to fit: ``process``, ``tensors``, or ``auto``: the process if it can be
            predicted.
        progress: called with each stage.

    Raises:
        SettingsError: the model has no such dim, or another dim has no number.
        UnknownSizeError: sizes depend on data, and a run does not tell them.
        MemplanError: the model is wrong.
    """
    from memplan_cli.api.models.binding import assumption_notes
    from memplan_cli.api.models.resolve_sizes import free_dim_names, resolve_all_but

    resolved = resolve_all_but(file.lazy, file.path, settings, searched_dims)
    bound_settings, program = resolved.settings, resolved.loaded.program
    free_input_dims = free_dim_names(file.lazy, bound_settings)
    by_data = _dims_by_data(program, free_input_dims, bound_settings)
    _check_dims(program, (*searched_dims, *by_data), bound_settings)
    planned = make_plan(program, bound_settings, _SOURCE, REWRITES, progress=progress)
    # A searched dim has a number at each binding, also if data would decide it in a run.
    dims_to_observe = set(by_data) - set(searched_dims)
    by_run = None
    if dims_to_observe or _has_unknown_sizes(program, planned.plan):
        by_run = NeedsByRun(file.lazy, file.path, bound_settings)
        # Called to raise now if runs do not tell the sizes.
        by_run.memory(dict.fromkeys(searched_dims, 1))
    process, notes = predict_process_of(file.path, of, searched_dims, bound_settings)
    # A run at a large value may take minutes, and more memory than the limit.
    takes_runs = bool(by_run or (process and process.model_to_run))
    return ModelNeeds(
        program=planned.program,
        # The nodes of ``planned.program`` are ordered already.
        settings=replace(bound_settings, order="keep"),
        totals={} if by_run else _totals(planned.program, planned.plan, bound_settings),
        warnings=(*resolved.loaded.warnings, *assumption_notes(bound_settings), *notes),
        limit=limit,
        growing_dim=searched_dims[0] if takes_runs else None,
        progress=progress,
        process=process,
        by_run=by_run,
    )


def _has_unknown_sizes(program: Program, plan: Plan) -> bool:
    """Whether the size of some intermediate, input or output is neither a number nor a formula."""
    interface_bytes = input_bytes(program), output_bytes(program)
    return plan.report.coverage < 1.0 or None in interface_bytes


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
) -> tuple[str, ...]:
    """Return the symbols that are no dims of inputs and have no bounds: data decides them.

    Empty if settings forbid runs: then every symbol needs a number.
    """
    names = free_dims(program, ()) if settings.run else ()
    return tuple(name for name in names if name not in {*input_dims, *settings.bounds})


def _check_dims(program: Program, without_number: tuple[str, ...], settings: Settings) -> None:
    """Refuse a free dim without a number or bounds, unless its name is in ``without_number``.

    Raises:
        SettingsError: there is such a dim, or a name in ``without_number`` is no free dim.
    """
    names = free_dims(program, without_number)  # raises for names that are no free dims
    allowed = {*without_number, *settings.bounds}
    missing = [name for name in names if name not in allowed]
    if not missing:
        return
    usual = suggested_numbers(input_shapes(program))
    numbers = " ".join(dim_option(name, usual.get(name, _DIM_BY_DATA)) for name in missing)
    hint = f"{numbers} gives numbers"
    if len(missing) == 1:
        hint += f"; --dim {quote(f'{missing[0]}=?')} looks for it"
    raise SettingsError(f"dim {missing[0]!r} has no value", hint=hint)


def _totals(program: Program, plan: Plan, settings: Settings) -> dict[str, int]:
    """Return weights, inputs, outputs and arenas together, in bytes by product of dims.

    ``{"1": 64, "batch": 4096}`` is ``4096*batch + 64`` bytes: ``"1"`` is the product of no dims. Empty
    if an input or output has no size.
    """
    inputs = input_bytes(program, settings.bounds)
    outputs = output_bytes(program, settings.bounds)
    if inputs is None or outputs is None:
        return {}
    weights = {"1": plan.report.memory.weights}
    heights = ({arena.unit: arena.height} for arena in plan.arenas)
    return dict(sorted(summed(weights, inputs, outputs, *heights).items()))


@dataclass(slots=True)
class NeedsByRun:
    """The needs of a model whose sizes depend on data: planned at the sizes of runs.

    Attributes:
        settings: what binds its other dims.
        run_warnings: the first warnings of a successful call of `memory`.
        failed: the last dims at which some size stayed unknown, and why; empty if there are none.
    """

    source: LazyModel
    path: Path
    settings: Settings
    run_warnings: tuple[str, ...] = ()
    failed: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the needs depend on."""
        failures = [f"taken not to fit: {self.failed}"] if self.failed else []
        return (*self.run_warnings, *failures)

    def memory(self, dims: Mapping[str, int]) -> Memory:
        """Return the memory of the model's plan at these dims, with sizes that a run observed.

        If the settings do not allow runs (``run`` is False), only the sizes that inference finds are known.
        The first warnings of a successful call are kept in `run_warnings`, the reason of the last failure
        in `failed`.

        Raises:
            UnknownSizeError: the size of some intermediate is still unknown.
        """
        from memplan_cli.api.models.resolve_sizes import resolve_sizes

        settings = replace(self.settings, dims={**self.settings.dims, **dims})
        resolved = resolve_sizes(self.source, self.path, settings)
        program = resolved.loaded.program
        report = make_plan(program, resolved.settings, _SOURCE, REWRITES).plan.report
        if report.coverage < 1.0:
            first = next(iter(report.unplanned))
            # The plan only knows that there is no size, and not why the run failed.
            reason = resolved.run_failure or first.reason
            self.failed = f"{binding_text(dims)}, for {reason}"
            raise UnknownSizeError(
                f"the size of {first.name!r} is not known: {reason}",
                hint="" if self.settings.run else RUN_OPTION,
            )
        if not self.run_warnings:
            self.run_warnings = resolved.loaded.warnings
        return report.memory


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
        """Predict the highest memory of the process at these dimensions, in bytes, with kept outputs.

        None if the prediction is not possible; `obstacle` gives the reason.
        """
        from memplan_cli.runtime.process.predict import predict_process_bytes

        process = predict_process_bytes(self.stored, self._at(dims), RuntimeSettings())
        return process.run + (process.kept or 0) if process else None

    def obstacle(self, dims: Mapping[str, int]) -> str:
        """Return the reason why the process cannot be predicted at these dimensions."""
        from memplan_cli.runtime.process.predict import prediction_obstacle

        return prediction_obstacle(self._at(dims), RuntimeSettings())

    def _at(self, dims: Mapping[str, int]) -> ExecutedGraph:
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


def predict_process_of(
    path: Path, of: str, searched_dims: Sequence[str], settings: Settings
) -> tuple[ProcessPrediction | None, tuple[str, ...]]:
    """Return a prediction of the process that runs a model, and notes for the user.

    ``of`` is what has to fit a memory size. With ``tensors`` no process is predicted, and the prediction is
    None. If the process cannot be predicted, it is None too with ``auto``, and a note says why; with
    ``process`` this is an error.

    Raises:
        RuntimeUnavailableError: ``of`` is ``process``, and the model does not load.
        UnknownSizeError: ``of`` is ``process``, and it cannot be predicted.
    """
    if of == "tensors":
        return None, ()
    try:
        prediction = _load_prediction(path, settings)
    except RuntimeUnavailableError as error:
        if of == "process":
            raise
        return None, (f"{_NOT_PREDICTED}: {error.message}",)
    # If the process can be predicted at one value of the dims, it can be at any. With 1, a run that the
    # prediction may take is the shortest.
    smallest = dict.fromkeys(searched_dims, 1)
    if prediction.highest_bytes(smallest) is not None:
        return prediction, ()
    # A run observes the sizes that depend on data.
    if settings.run:
        prediction_by_run = replace(prediction, model_to_run=path)
        if prediction_by_run.highest_bytes(smallest) is not None:
            return prediction_by_run, ()
    # A run that does not help shows that no size is missing: then both predictions lack the same.
    reason = prediction.obstacle(smallest)
    if of == "process":
        raise UnknownSizeError(
            f"the process of {path} cannot be predicted: {reason}",
            hint="--of tensors uses the memory of the plan instead",
        )
    return None, (f"{_NOT_PREDICTED}: {reason}",)


def _load_prediction(path: Path, settings: Settings) -> ProcessPrediction:
    """Load a model in a process, for the graph that a session executes."""
    from memplan_cli.onnx_io.weights.stored import stored_model
    from memplan_cli.runtime.graph.dumps import executed_graph
    from memplan_cli.runtime.run.baseline import DEFAULTS

    executed = executed_graph(path, DEFAULTS, settings.dims)
    return ProcessPrediction(stored_model(path), executed, settings)


class TakenMemory(NamedTuple):
    """The bytes that a run took: of the ``process``, or of ONNX Runtime's ``arena``."""

    bytes: int
    of: Literal["process", "arena"]


@dataclass(frozen=True, slots=True)
class ConfirmationRuns:
    """Runs of the unchanged model with ONNX Runtime's defaults; the outputs of the run before are kept.

    Attributes:
        provider: ONNX Runtime's name of the provider.
        settings: numbers of the other dims, and inputs.
    """

    model: Path
    provider: str
    settings: Settings

    def taken(self, dims: Mapping[str, int]) -> TakenMemory:
        """Run the model at a binding with the defaults of a user; return the memory that the run took.

        It is the highest memory of the process, or, if this is unknown, what the arena reserved. On
        other providers than the CPU it is the arena's, as a process does not show the memory of a
        device.

        Raises:
            RuntimeUnavailableError: the run fails, or neither memory is known.
        """
        from memplan_cli.core.bindings import Binding
        from memplan_cli.runtime.run.baseline import DEFAULTS
        from memplan_cli.runtime.run.run_model import process_of_run, record_run
        from memplan_cli.runtime.simulate.regions import EXACT_UNSPLIT
        from memplan_cli.runtime.workers.spec import RunConditions

        binding = Binding(dims, self.settings.inputs.feeds or {})
        conditions = RunConditions(self.provider, binding)
        if self.provider == CPU:
            process = process_of_run(self.model, DEFAULTS, conditions, caller="keeps outputs")
            if process is not None:
                return TakenMemory(process.run, "process")
        # The one setting that is no default: an arena that grows by powers of two would hold up to
        # twice of what is needed. The run records the counters of the arena (`RunSpec`).
        settings = RuntimeSettings(arena=EXACT_UNSPLIT)
        record = record_run(self.model, settings, conditions, "arena", caller="keeps outputs")
        held = record.peaks.held
        if held is None:
            raise RuntimeUnavailableError(
                f"the memory of a run on {self.provider} is not known: it reports no arena"
            )
        return TakenMemory(held, "arena")


def confirm(question: Question, point: Point, runs: ConfirmationRuns) -> Confirmation:
    """Run the predicted answer, then smaller values until one fits; return the last run.

    It may be one that does not fit: of value 1, or after `_MAX_CONFIRMING_RUNS` runs.

    Raises:
        RuntimeUnavailableError: a run fails for another reason than its size.
    """
    value = point.dims[question.symbol]
    input_bytes_per_value = point.inputs / value
    for number in range(1, _MAX_CONFIRMING_RUNS + 1):
        dims = {**runs.settings.dims, **point.dims, question.symbol: value}
        taken = runs.taken(dims)
        inputs = int(input_bytes_per_value * value)
        without_overhead = taken.bytes + inputs
        confirmation = Confirmation(
            dims=dims,
            provider=runs.provider,
            taken=taken.bytes,
            inputs=inputs,
            of=taken.of,
            runs=number,
            total=without_overhead + question.overhead,
        )
        if confirmation.total <= question.memory or value == 1:
            break
        # As if the bytes without the overhead were proportional to the value. ``question.limit`` is
        # the memory size without the overhead.
        value = max(1, min(value - 1, value * question.limit // without_overhead))
    return confirmation
