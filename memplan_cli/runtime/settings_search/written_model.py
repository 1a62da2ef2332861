"""A written model, and the settings and memory predicted for it from its original's run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import Peaks, RuntimeSettings
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.graph.dumps import observed_graph
from memplan_cli.runtime.graph.recorded import graph_of_run, with_file_order
from memplan_cli.runtime.process.predict import (
    ProcessMeasurements,
    predict_process_bytes,
)
from memplan_cli.runtime.profile.workspace import (
    costly_fusions,
    totals_by_rule,
    without_fusions,
)
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.run.timing import is_slower_unoptimized
from memplan_cli.runtime.settings_search.predicted import (
    SettingsChoice,
    predict_settings,
    prediction_warnings,
    without_pattern,
    without_pattern_if_assumed,
)
from memplan_cli.runtime.simulate.predict import (
    RUN_AS_WRITTEN,
    ExecutedGraph,
    needs_observation,
    predict_peaks,
)
from memplan_cli.runtime.simulate.regions import EXACT, OWN_INITIALIZERS
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.program import Program
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.runtime.run.baseline import Baseline

_BY_PRIORITY = RuntimeSettings(
    session={"execution_order": "PRIORITY_BASED"},
    session_config=OWN_INITIALIZERS,
    arena=EXACT,
)
"""Settings of an order that is not predicted, and so with an arena that needs no prediction."""


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A file that was written from an original, or the original itself under other settings.

    Attributes:
        path: the file, which may have a temporary name.
        program: its graph, in the order of the file; None if only outputs are compared.
        spoiled_by_optimization: whether ONNX Runtime's optimization would undo its plan or change
            its outputs.
        optimized_offline: whether its graph is one that ONNX Runtime optimized before it was written.
        unoptimized_settings: settings of a run without optimization, from which a search begins.
        recorded_settings: settings in the metadata of the file, under which its outputs are compared if
            no memory is measured.
        known_verdict: the verdict on its outputs if they were compared before, because the original's own
            runs differ. Outputs of further runs are not compared then, so that graph optimization must
            stay on or off as in that comparison (`settings_of_comparison`).
    """

    path: Path
    program: Program | None = field(default=None, repr=False)
    spoiled_by_optimization: bool = False
    optimized_offline: bool = False
    unoptimized_settings: RuntimeSettings = RUN_AS_WRITTEN
    recorded_settings: RuntimeSettings | None = None
    known_verdict: Validation | None = None

    @property
    def unoptimized_only(self) -> bool:
        """Whether it must run without ONNX Runtime's optimization."""
        return self.spoiled_by_optimization or self.optimized_offline

    @property
    def may_keep_budget(self) -> bool:
        """Whether the plan may have copies of ops or chunks, which keep live tensors within a budget.

        This is judged by ``spoiled_by_optimization``, which such plans set: optimization would undo copies and chunks.
        """
        # Files that were optimized offline have it set with any plan. No copies or chunks are assumed for them.
        return self.spoiled_by_optimization and not self.optimized_offline


def must_be_unoptimized(baseline: Baseline, written: WrittenModel) -> bool:
    """Return whether a written model runs without graph optimization, for itself or for its reference."""
    return written.unoptimized_only or baseline.check.reference == "unoptimized"


def settings_of_comparison(baseline: Baseline, written: WrittenModel) -> RuntimeSettings:
    """Return the settings under which outputs of a written model are compared if no memory is measured."""
    if written.recorded_settings is not None:
        return written.recorded_settings
    if must_be_unoptimized(baseline, written):
        return written.unoptimized_settings
    return DEFAULTS


@dataclass(frozen=True, slots=True)
class BaselineGraph:
    """The graph that a baseline's session ran, and its predicted memory.

    Attributes:
        predicted: peaks, arena and process under the baseline's settings.
        warnings: about the prediction, for the report.
    """

    executed: ExecutedGraph = field(repr=False)
    predicted: Peaks
    warnings: tuple[str, ...] = ()


def read_baseline_graph(baseline: Baseline) -> BaselineGraph:
    """Read the graph that a baseline's session ran, and predict its memory.

    Raises:
        RuntimeUnavailableError: sizes depend on data, and a further run that records them fails.
    """
    settings = baseline.settings
    executed = graph_of_run(baseline.record, baseline.dims)
    notes: tuple[str, ...] = ()
    # The baseline's run has recorded sizes that depend on data, unless names of nodes are missing or occur
    # twice. The further run is one of the graph that ONNX Runtime optimized, with distinct names.
    if needs_observation(executed) and executed.observed is None:
        conditions = RunConditions.of_check(baseline.check, baseline.binding)
        executed = observed_graph(baseline.path, settings, conditions)
        notes = (
            "nodes have no distinct names: the original ran again to record sizes that depend on data",
        )
    process = predict_process_bytes(
        stored_model(baseline.path),
        executed,
        settings,
        ProcessMeasurements(baseline.record.workspace),
    )
    peaks = predict_peaks(executed, settings, baseline.record.workspace)
    predicted = replace(peaks, process=process)
    return BaselineGraph(executed, predicted, (*prediction_warnings(executed), *notes))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predictions for a written model, made from the run of its original.

    Attributes:
        baseline: the run of the original file.
        original: the graph that ONNX Runtime executed in that run, and its predicted memory.
        written: the file that memplan wrote.
    """

    baseline: Baseline
    original: BaselineGraph
    written: WrittenModel

    @property
    def unoptimized_only(self) -> bool:
        """Whether the written model must run without graph optimization."""
        return must_be_unoptimized(self.baseline, self.written)

    @property
    def may_run_either_way(self) -> bool:
        """Whether the written model may run with graph optimization and without it.

        If its outputs were compared before, with optimization, it must run so again.
        """
        return not self.unoptimized_only and self.written.known_verdict is None

    def graph_under(self, settings: RuntimeSettings) -> ExecutedGraph:
        """Return the graph that a session of the file is predicted to run."""
        return self.file_graph() if settings.is_unoptimized else self.optimized_graph()

    def file_graph(self) -> ExecutedGraph:
        """Return the graph of the written file: a session without optimization runs this graph."""
        provider = self.baseline.provider
        file = ExecutedGraph(self._program, self.baseline.dims, provider=provider)
        if not self.written.optimized_offline:
            return file
        # The file was written from the graph that the original's run executed. Variables of that graph have the same
        # ids in the file, so sizes, iteration counts and shapes that are known by id hold for the file too.
        source = self.original.executed
        return replace(file, observed=source.observed, planner_shapes=source.planner_shapes)

    def optimized_graph(self) -> ExecutedGraph:
        """Return the predicted graph that ONNX Runtime's optimization makes of the file."""
        return with_file_order(self.original.executed, self.baseline.nodes, self._program)

    def best_choice(self) -> SettingsChoice:
        """Return the settings of the least predicted memory with which runs take about the original's time.

        If both ways are allowed, a run without optimization is left out if it is estimated to be slower.
        """
        if self.may_run_either_way and is_slower_unoptimized(
            self._program, self.baseline.dims, self.original.executed
        ):
            return self.optimized_choice()
        # By predicted memory. Of equal choices the first is returned, which has optimization.
        return min(self.choices(), key=attrgetter("rank"))

    def choices(self) -> tuple[SettingsChoice, ...]:
        """Return the best predicted settings with optimization and those without; only one if the other is not allowed."""
        if self.may_run_either_way:
            return self.optimized_choice(), self.unoptimized_choice()
        if self.unoptimized_only:
            return (self.unoptimized_choice(),)
        return (self.optimized_choice(),)

    def choices_to_measure(self) -> tuple[SettingsChoice, ...]:
        """Return `choices`, and up to two further choices with optimization, each of which is to be run.

        One is the best predicted choice without fusions that cost workspace, if the optimized graph has any. In the
        other, the optimized graph runs in the order by priority. If the model may run only with optimization or only
        without, there are no further choices.

        Raises:
            RuntimeUnavailableError: the model does not load without these fusions.
        """
        choices = self.choices()
        if len(choices) == 1:
            return choices
        optimized, unoptimized = choices
        fusions = costly_fusions(self.original.executed.program)
        less_fused = (self._choice_without(fusions),) if fusions else ()
        # The order by priority is not predicted: it depends on node indices, which a written graph does not have.
        settings = optimized.settings.updated(_BY_PRIORITY)
        # `updated` has kept the size of the first region, which suits the order of `optimized` only.
        settings = replace(settings, arena=_BY_PRIORITY.arena)
        not_predicted = Peaks(first_run_peak=None, steady_peak=None)
        by_priority = SettingsChoice(settings, not_predicted, provider=optimized.provider)
        # The first of equal costs wins. Runs with optimization are usually shorter.
        return (optimized, *less_fused, by_priority, unoptimized)

    def _choice_without(self, fusions: tuple[str, ...]) -> SettingsChoice:
        """Return the best settings with optimization, but without these fusions; they are named in a note.

        Raises:
            RuntimeUnavailableError: the model does not load without them.
        """
        baseline, settings = self.baseline, without_fusions(fusions)
        conditions = RunConditions.of_check(baseline.check, baseline.binding)
        executed = observed_graph(self.written.path, settings, conditions)
        # Later runs may have other dims than those that are assumed. A memory pattern does not change the graph.
        base = without_pattern_if_assumed(settings, baseline.binding.assumed)
        choice = predict_settings(executed, base, baseline.record.workspace)
        return replace(choice, notes=(f"without {', '.join(fusions)}",))

    def optimized_choice(self) -> SettingsChoice:
        """Return the best predicted settings with the runtime's optimization."""
        base = without_pattern_if_assumed(DEFAULTS, self.baseline.binding.assumed)
        return predict_settings(
            self.optimized_graph(), base, self.baseline.record.workspace or {}
        )

    def unoptimized_choice(self) -> SettingsChoice:
        """Return the best predicted settings without the runtime's optimization."""
        executed = self.file_graph()
        # Bytes that the kernel of each node requests besides its outputs: as measured in a run of the original, if
        # the run had that node, else by rule. A run without optimization has the nodes of the file.
        run_of_original = self.baseline.unoptimized or self.baseline.record
        measured = run_of_original.workspace or {}
        workspace = {**totals_by_rule(executed.program, executed.dims), **measured}
        # The search begins with these settings. Later runs may have other dims than those that are assumed.
        base = without_pattern_if_assumed(
            self.written.unoptimized_settings, self.baseline.binding.assumed
        )
        if self.written.may_keep_budget:
            # The plan keeps live tensors within a budget. With a memory pattern, a session holds one block for all
            # tensors of a run, which may be larger than the budget (docs/decisions/0042-memory-pattern.md).
            base = without_pattern(base)
        return predict_settings(executed, base, workspace)

    @property
    def _program(self) -> Program:
        assert self.written.program is not None  # noqa: S101 - memory is predicted from it
        return self.written.program
