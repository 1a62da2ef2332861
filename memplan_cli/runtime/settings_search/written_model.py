"""A written model, and the settings that are predicted for it from its original's run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import Peaks, RuntimeSettings
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.graph.dumps import observed_graph
from memplan_cli.runtime.graph.recorded import graph_of_run, with_file_order
from memplan_cli.runtime.process.predict import (
    KnownProcess,
    predict_process_bytes,
    simulate_process,
)
from memplan_cli.runtime.profile.workspace import (
    costly_fusions,
    totals_by_rule,
    without_fusions,
)
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.run.compare import is_unoptimised
from memplan_cli.runtime.settings_search.choice import SettingsChoice
from memplan_cli.runtime.settings_search.predicted import (
    caveats,
    predict_settings,
    settings_for_sizes,
    without_pattern,
)
from memplan_cli.runtime.settings_search.speed import is_slower_as_written
from memplan_cli.runtime.simulate.predict import (
    RUN_AS_WRITTEN,
    ExecutedGraph,
    needs_run,
    predict,
)
from memplan_cli.runtime.simulate.regions import EXACT, OWN_INITIALIZERS
from memplan_cli.runtime.simulate.trace import weight_bytes
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.program import Program, Shape, VarId
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.runtime.run.baseline import Baseline

_EXACT, _EXACT_BYTES = 50, 2 << 20
"""A process is predicted within one part in so many, or so many bytes, whichever is more."""

_BY_PRIORITY = RuntimeSettings(
    session={"execution_order": "PRIORITY_BASED"},
    session_config=OWN_INITIALIZERS,
    arena=EXACT,
)


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A file that was written from an original, or the original itself under other settings.

    Attributes:
        path: the file, which may have a temporary name.
        program: what is in it, in its order; None if outputs alone are compared.
        as_written: whether the runtime must not optimise it.
        offline: whether it holds a graph that the runtime has optimised.
        for_range: whether it is planned for sizes within bounds.
        base: settings of a file that runs as it stands, which a search leaves as they are.
        verdict: on its outputs, if the original does not repeat itself and its first runs were
            compared.
    """

    path: Path
    program: Program | None = field(default=None, repr=False)
    as_written: bool = False
    offline: bool = False
    for_range: bool = False
    base: RuntimeSettings = RUN_AS_WRITTEN
    verdict: Validation | None = None


@dataclass(frozen=True, slots=True)
class BaselineGraph:
    """The graph that a baseline's session ran, and what is predicted of it."""

    executed: ExecutedGraph = field(repr=False)
    predicted: Peaks
    warnings: tuple[str, ...] = ()


def read_baseline_graph(baseline: Baseline) -> BaselineGraph:
    """Read the graph that a baseline's session ran, and predict its memory.

    Raises:
        RuntimeUnavailableError: its sizes depend on data, and it does not run again for them.
    """
    settings = baseline.settings
    executed = graph_of_run(baseline.record, baseline.dims)
    notes: tuple[str, ...] = ()
    if needs_run(executed) and executed.observed is None:
        conditions = RunConditions.of_check(baseline.check, baseline.binding)
        executed = observed_graph(baseline.path, settings, conditions)
        notes = (
            "nodes without names of their own: the original ran again for what data decides",
        )
    process = predict_process_bytes(
        stored_model(baseline.path),
        executed,
        settings,
        baseline.provider,
        KnownProcess(baseline.record.workspace),
    )
    predicted = replace(predict(executed, settings), process=process)
    return BaselineGraph(executed, predicted, (*caveats(executed), *notes))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of a written model's runs from the run of its original.

    Attributes:
        baseline: the original's run.
        graph: the graph that it ran.
        written: the written model.
        workspace: bytes that kernels request besides their outputs, by node of a file that runs
            as it stands; None takes those of the baseline.
    """

    baseline: Baseline
    graph: BaselineGraph
    written: WrittenModel
    workspace: Mapping[str, int] | None = None

    def executed(self, settings: RuntimeSettings) -> ExecutedGraph:
        """Return the graph that a session of the file is predicted to run."""
        return self.file() if is_unoptimised(settings) else self.optimised()

    def file(self) -> ExecutedGraph:
        """Return the file's own graph; what data decides is taken from the original's run.

        Of a graph that the runtime optimised offline, values keep their names.
        """
        provider = self.baseline.provider
        file = ExecutedGraph(self._program, self.baseline.dims, provider=provider)
        if not self.written.offline:
            return file
        before = self.graph.executed
        return replace(
            file, observed=before.observed, planner_shapes=_seen_by_name(before, file)
        )

    def optimised(self) -> ExecutedGraph:
        """Return the graph that the runtime is predicted to make of the file."""
        return with_file_order(self.graph.executed, self.baseline.nodes, self._program)

    def best(self) -> SettingsChoice:
        """Return the settings of the least predicted memory at about the original's time."""
        written = self.written
        if written.as_written or written.offline:
            return self.as_it_stands()
        if is_slower_as_written(self._program, self.baseline.dims, self.graph.executed):
            return self.under_optimisation()
        return min(self.choices(), key=self.rank)

    def choices(self) -> tuple[SettingsChoice, ...]:
        """Return the best settings by prediction with and without the runtime's optimisation."""
        if self.written.as_written or self.written.offline:
            return (self.as_it_stands(),)
        return self.under_optimisation(), self.as_it_stands()

    def choices_to_measure(self) -> tuple[SettingsChoice, ...]:
        """Return `choices`, and those that only a further run can tell something of.

        These are the optimised graph without fusions that cost workspace, and in the order by
        priority, for which the runtime does not tell the numbers of its nodes. Of equal ones
        the first is best: with optimisation, in which runs are shorter as a rule.

        Raises:
            RuntimeUnavailableError: the model does not load without these fusions.
        """
        if self.written.as_written or self.written.offline:
            return self.choices()
        optimised, as_it_stands = self.choices()
        by_priority = replace(
            optimised.settings.updated(_BY_PRIORITY), arena=_BY_PRIORITY.arena
        )
        more = [SettingsChoice(by_priority, Peaks(None, None), provider=optimised.provider)]
        fusions = costly_fusions(self.graph.executed.program)
        if fusions:
            conditions = RunConditions.of_check(self.baseline.check, self.baseline.binding)
            less_fused = observed_graph(
                self.written.path, without_fusions(fusions), conditions
            )
            base = settings_for_sizes(without_fusions(fusions), self.baseline.binding.assumed)
            choice = predict_settings(less_fused, base, self.baseline.record.workspace)
            more.insert(0, replace(choice, notes=(f"without {', '.join(fusions)}",)))
        return (optimised, *more, as_it_stands)

    def rank(self, choice: SettingsChoice) -> tuple[bool, int]:
        """Return the rank of a choice; constants that the runtime folds count twice.

        They are held all the time, at the peak and between runs.
        """
        unknown, size = choice.rank
        if not is_unoptimised(choice.settings):
            size += 2 * self._folded()
        return unknown, size

    def under_optimisation(self) -> SettingsChoice:
        """Return the best predicted settings with the runtime's optimisation."""
        base = settings_for_sizes(DEFAULTS, self.baseline.binding.assumed)
        return predict_settings(self.optimised(), base, self.baseline.record.workspace or {})

    def as_it_stands(self) -> SettingsChoice:
        """Return the best predicted settings without the runtime's optimisation."""
        executed = self.file()
        seen = self.workspace
        if seen is None:
            seen = self.baseline.record.workspace or {}
        # Nodes that the original's run did not have go by rules.
        workspace = totals_by_rule(executed.program, executed.dims) | dict(seen)
        base = settings_for_sizes(self.written.base, self.baseline.binding.assumed)
        if self.written.as_written and not self.written.offline:
            base = without_pattern(base)  # a budget is of tensors one by one
        return predict_settings(executed, base, workspace)

    @property
    def _program(self) -> Program:
        assert self.written.program is not None  # noqa: S101 - memory is predicted from it
        return self.written.program

    def _folded(self) -> int:
        """Return the bytes of constants that a session makes and the file does not have."""
        after, file = (
            weight_bytes(graph.program, graph.dims)
            for graph in (self.optimised(), self.file())
        )
        return max(after - file, 0)


def _seen_by_name(before: ExecutedGraph, file: ExecutedGraph) -> dict[VarId, Shape | None]:
    """Return the shapes that the runtime plans by, of values that both graphs have."""
    known = {
        before.program.vars[var].name: shape for var, shape in before.planner_shapes.items()
    }
    return {
        var.id: known[var.name]
        for var in file.program.vars.values()
        if not var.block and var.name in known
    }


@dataclass(frozen=True, slots=True)
class PredictedCost:
    """The predicted memory of a written model, in bytes.

    Attributes:
        unknown: whether its process cannot be predicted.
        process: the highest when loaded, the highest with runs, and the private bytes after
            them, together.
        arena: what the arena holds beside weights, and the peak of the first run.
    """

    unknown: bool
    process: int
    arena: int


def predicted_cost(
    baseline: Baseline, graph: BaselineGraph, written: WrittenModel
) -> PredictedCost:
    """Return the predicted memory of a written model, loading included.

    Its path is that of a file with the same weights. If the process cannot be predicted, the
    arena counts with its weights: each session packs its own there, while weights that were
    packed in the file are mapped.
    """
    prediction = Prediction(baseline, graph, written)
    choice = prediction.best()
    found = simulate_process(
        stored_model(written.path),
        prediction.executed(choice.settings),
        choice.settings,
        baseline.provider,
        KnownProcess(baseline.record.workspace, as_loaded=True),
    )
    unknown, least = choice.rank
    if found is not None:
        process = found.process
        total = process.load + process.run + process.private
        return PredictedCost(unknown=False, process=total, arena=least)
    peaks = baseline.record.peaks
    if unknown:
        least = 2 * (peaks.first_run_peak or 0)
    weights = 0 if written.offline else peaks.weights or 0
    return PredictedCost(unknown=True, process=least + weights, arena=least)


def ranked_by_cost(costs: Sequence[PredictedCost]) -> list[int]:
    """Return the indices of costs, the least first: by the process, if it can be predicted.

    Of those whose process equals the least one within the precision of the prediction, the
    lower arena is better.
    """
    least = min(((cost.unknown, cost.process) for cost in costs), default=(False, 0))
    most = least[1] + max(least[1] // _EXACT, _EXACT_BYTES)

    def rank(index: int) -> tuple[bool, bool, int, int]:
        cost = costs[index]
        beyond = cost.unknown != least[0] or cost.process > most
        first, second = cost.process, cost.arena
        return cost.unknown, beyond, *((first, second) if beyond else (second, first))

    return sorted(range(len(costs)), key=rank)
