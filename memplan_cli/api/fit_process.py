"""The process of one model for many values of its dims: predicted, and run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.errors import RuntimeUnavailableError, UnknownSizeError
from memplan_cli.planning.fit import Confirmation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.onnx_io.weights.stored import StoredModel
    from memplan_cli.planning.fit import Point, Question
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.settings.settings import Settings

_MOST_RUNS = 12
"""Values that are run at most until one fits."""

_LEFT_OUT = "the process could not be predicted, and the planned tensors are counted"


@dataclass(frozen=True, slots=True)
class ProcessSearch:
    """A model's graph as the runtime has it, and its file."""

    stored: StoredModel
    executed: ExecutedGraph
    settings: Settings
    loaded: ProcessBytes | None = None
    """What its session took when it was made: the same whatever the values are."""
    runs: Path | None = None
    """The model to run for the sizes that its data decides; None where none are."""

    def highest(self, dims: Mapping[str, int]) -> int | None:
        """Predict the highest memory of the process at these dimensions, in bytes.

        None if the prediction is not possible; `obstacle` gives the reason.
        """
        from memplan_cli.runtime.process.predict import KnownProcess, predict_process_bytes

        found = predict_process_bytes(
            self.stored,
            self._at(dims),
            RuntimeSettings(),
            known=KnownProcess(loaded=self.loaded),
        )
        return found.run if found else None

    def obstacle(self, dims: Mapping[str, int]) -> str:
        """Return the reason why the process cannot be predicted at these dimensions."""
        from memplan_cli.runtime.process.predict import prediction_obstacle

        return prediction_obstacle(self._at(dims), RuntimeSettings())

    def _at(self, dims: Mapping[str, int]) -> ExecutedGraph:
        from memplan_cli.core.bindings import Binding
        from memplan_cli.runtime.graph.dumps import observed_graph
        from memplan_cli.runtime.workers.spec import RunConditions

        every = {**self.settings.dims, **dims}
        if self.runs is None:
            return replace(self.executed, dims=every)
        binding = Binding(every, self.settings.inputs.feeds or {})
        return observed_graph(self.runs, RuntimeSettings(), RunConditions(CPU, binding))


def process_search(
    path: Path, of: str, unknown: Sequence[str], settings: Settings
) -> tuple[ProcessSearch | None, tuple[str, ...]]:
    """Return what predicts the process of a model; None, and why, where nothing can.

    Args:
        path: the model.
        of: ``process`` where nothing else will do, ``tensors``, or ``auto``.
        unknown: the dims that are looked for.
        settings: they give numbers to the others.

    Raises:
        RuntimeUnavailableError: it was asked for, and the model does not load.
        UnknownSizeError: it was asked for, and it cannot be told.
    """
    if of == "tensors":
        return None, ()
    try:
        found = _search(path, settings)
    except (RuntimeUnavailableError, ImportError) as error:
        if of == "process":
            raise
        return None, (f"{_LEFT_OUT}: {error}",)
    smallest = dict.fromkeys(unknown, 1)
    for search in (found, *([replace(found, runs=path)] if settings.run else [])):
        if search.highest(smallest) is not None:
            return search, ()
    why = found.obstacle(smallest)
    if of == "process":
        raise UnknownSizeError(
            f"the process of {path} cannot be predicted: {why}",
            hint="--of tensors goes by what the plan needs",
        )
    return None, (f"{_LEFT_OUT}: {why}",)


def _search(path: Path, settings: Settings) -> ProcessSearch:
    from memplan_cli.core.bindings import Binding
    from memplan_cli.onnx_io.weights.stored import stored_model
    from memplan_cli.runtime.graph.dumps import executed_graph
    from memplan_cli.runtime.run.baseline import DEFAULTS
    from memplan_cli.runtime.run.run_model import process_of_load
    from memplan_cli.runtime.workers.spec import RunConditions

    executed = executed_graph(path, DEFAULTS, settings.dims)
    binding = Binding(settings.dims, settings.inputs.feeds or {})
    loaded = process_of_load(path, DEFAULTS, RunConditions(CPU, binding))
    return ProcessSearch(stored_model(path), executed, settings, loaded)


@dataclass(frozen=True, slots=True)
class Runs:
    """How values are run: the model as it is, under the runtime's defaults."""

    model: Path
    provider: str
    settings: Settings

    def taken(self, dims: Mapping[str, int]) -> tuple[int, str]:
        """Return what a run takes: the highest of its process, or what its arena reserves."""
        from memplan_cli.core.bindings import Binding
        from memplan_cli.runtime.run.run_model import observe_run, process_of_run
        from memplan_cli.runtime.simulate.regions import EXACT_UNSPLIT
        from memplan_cli.runtime.workers.spec import RunConditions

        binding = Binding(dims, self.settings.inputs.feeds or {})
        conditions = RunConditions(self.provider, binding)
        process = None
        if self.provider == CPU:
            process = process_of_run(self.model, RuntimeSettings(), conditions)
        if process is not None:
            return process.run, "process"
        settings = RuntimeSettings(arena=EXACT_UNSPLIT)
        record = observe_run(self.model, settings, conditions, "arena")
        return record.peaks.held or 0, "arena"


def confirm(question: Question, point: Point, runs: Runs) -> Confirmation:
    """Run the answer, and smaller values until one fits; return the last that was run.

    Raises:
        RuntimeUnavailableError: a run fails for another reason than its size.
    """
    value = point.dims[question.symbol]
    each = point.need.inputs / value
    for number in range(1, _MOST_RUNS + 1):
        dims = {**runs.settings.dims, **point.dims, question.symbol: value}
        taken, of = runs.taken(dims)
        inputs = int(each * value)
        seen = Confirmation(dims, runs.provider, taken, inputs, of, number)
        total = taken + inputs
        if total <= question.limit or value == 1:
            break
        value = max(1, min(value - 1, value * question.limit // total))
    return seen
