"""Runs of a written model that confirm its settings.

The model runs under predicted settings. It runs again, with the runtime's optimization, if that run has other
outputs or takes longer than allowed. Each further run is stated in a note. A search by measurement runs every
choice.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.results.observations import CPU, IdleArena
from memplan_cli.core.results.report import RAN_AGAIN, RuntimeSummary
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.graph.recorded import graph_of_run, with_recorded_order
from memplan_cli.runtime.installed import required_version
from memplan_cli.runtime.process.predict import ProcessMeasurements, predict_process_bytes
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.run.compare import WrittenRun, run_written
from memplan_cli.runtime.run.timing import (
    is_slower,
    release_time_ratio,
    seems_slower,
    time_ratio,
)
from memplan_cli.runtime.settings_search.predicted import (
    has_unpredictable_order,
    held_without_weights,
    peak_plus_arena,
    released_between_runs,
)
from memplan_cli.runtime.simulate.predict import (
    ExecutedGraph,
    needs_observation,
    predict_peaks,
)

if TYPE_CHECKING:
    from memplan_cli.core.check import Search
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import TimeRatio, Validation
    from memplan_cli.runtime.settings_search.predicted import SettingsChoice
    from memplan_cli.runtime.settings_search.written_model import Prediction

_MAX_RISE = 1.02
"""The highest memory of a run may rise by this factor if its arena is released between runs."""

_WORTH_RELEASING = 1 << 20
"""Bytes of an arena from which it is worth a run to find out what releasing it costs. An empty session has
1.4 MB of private memory."""


class Confirmation:
    """The runs of one written model, from the first under predicted settings to the reported one.

    Attributes:
        choice: the settings of the reported run.
        run: the reported run.
        time: how much longer a run takes than the original's; None: not longer than allowed, or not timed.
        idle: what the arena does between runs; None: both ways were not compared.
        notes: what the report says about the runs.
        prediction: the predictions for the written model.
        _baseline: the original's run.
        _written: the written model.
        _graphs: the graphs that `executed_graph` has read, by the file that a run wrote.
    """

    def __init__(self, prediction: Prediction, choice: SettingsChoice) -> None:
        """Run the written model under a choice of settings. This is the reported run until another replaces it.

        Raises:
            RuntimeUnavailableError: the written model's weights are missing.
        """
        self.prediction, self.notes = prediction, list(choice.notes)
        self._baseline, self._written = prediction.baseline, prediction.written
        self._graphs: dict[Path, ExecutedGraph] = {}
        self.time: TimeRatio | None = None  # set by `optimize_if_rejected`
        self.idle: IdleArena | None = None  # set by `choose_idle_arena`
        self.choice = choice
        self.run = self._run(choice)

    @property
    def verdict(self) -> Validation:
        """The verdict on the outputs of the reported run."""
        return self._verdict_on(self.run)

    @property
    def passed(self) -> bool:
        """Whether the model ran and its outputs equal the original's."""
        return self._has_passed(self.run)

    def optimize_if_rejected(self) -> None:
        """Run the model with the runtime's optimization if its outputs differ, or if it is slower than allowed.

        Updates ``choice``, ``run`` and ``notes``, and ``time`` if the outputs are equal. A model that is optimized
        already, or must not be, is only timed again, if it seems slower.
        """
        may_be_optimized = self.run.is_unoptimized and not self.prediction.unoptimized_only
        if may_be_optimized and self.verdict.has_other_outputs:
            self._optimize_for_equal_outputs()
        # ``passed`` is that of the current run. A model with other outputs is rejected, however fast it is.
        if self.passed:
            self._measure_time_and_optimize_if_slower()  # optimizes only if ``may_be_optimized`` is true

    def choose_idle_arena(self, progress: Progress) -> None:
        """Compare an arena that is kept between runs with one that is released; set ``idle``, and report the better run.

        `Check.idle` may ask for one of the two. With ``keep`` nothing is compared. With ``release`` the run that
        releases the arena is reported, unless that run fails. By default (None) that run is reported if it saves
        enough and costs little. A small arena, or one that is not on the CPU, is then kept without a comparison.
        """
        asked = self._baseline.check.idle
        is_small = held_without_weights(self.run.record.peaks) < _WORTH_RELEASING
        if asked == "keep" or (asked is None and (is_small or self._baseline.provider != CPU)):
            return
        progress("comparing an arena that is kept between runs with one that is released")
        run = self._releasing_run()
        if run is None:  # it failed
            return
        self.idle = self._idle_decision(run)
        if asked == "release" or (self.idle is not None and self.idle.after_run == "release"):
            self._report_releasing(run)

    def release_arena(self) -> None:
        """Report a run that releases the arena at its end, whatever it costs, if it has the same outputs."""
        run = self._releasing_run()
        if run is not None:
            self._report_releasing(run)

    def _releasing_run(self) -> WrittenRun | None:
        """Return a run that releases the arena at its end; None if it fails or has other outputs.

        Then a note says so, if the check asks for the release.
        """
        run = self._run(released_between_runs(self.choice))
        if self._has_passed(run):
            return run
        if self._baseline.check.idle == "release":
            self.notes.append(
                "the arena is kept between runs: no run that releases it passed the comparison"
            )
        return None

    def _idle_decision(self, releasing: WrittenRun) -> IdleArena | None:
        """Return what the arena does after each run, with the memory and time of both ways.

        It is released if the check asks for that. By default it is released if that frees at least
        `_WORTH_RELEASING` bytes between runs, the highest memory of a run rises by at most 2 %, and a run takes at
        most 5 % longer. ``releasing`` is a run that releases the arena; the reported run keeps it. None if the memory
        of the processes was not measured.
        """
        check, spec = self._baseline.check, releasing.record.spec
        kept, released = self.run.record.peaks.process, releasing.record.peaks.process
        if kept is None or released is None:
            return None
        time = release_time_ratio(spec.session, spec.inputs[0], check.timeout)
        saves_enough = kept.private - released.private >= _WORTH_RELEASING
        is_as_fast = time is not None and not time.is_slower
        costs_little = released.run <= kept.run * _MAX_RISE and is_as_fast
        is_released = check.idle == "release" or (saves_enough and costs_little)
        return IdleArena("release" if is_released else "keep", kept, released, time)

    def _report_releasing(self, run: WrittenRun) -> None:
        """Report a run that releases the arena, with the verdict of the present one."""
        self.choice = released_between_runs(self.choice)
        self.run = replace(run, verdict=self.run.verdict)

    def _verdict_on(self, run: WrittenRun) -> Validation:
        """Return the verdict on a run: its own, unless the verdict was known before."""
        return self._written.known_verdict or run.verdict

    def _has_passed(self, run: WrittenRun) -> bool:
        """Return whether a run did not fail and its outputs equal the original's."""
        return run.ran and self._verdict_on(run).passed

    def _run(self, choice: SettingsChoice) -> WrittenRun:
        """Run the written model under a choice of settings, and return the run.

        The run also writes the graph that ONNX Runtime executes, if predictions need it: with
        optimization, or if sizes depend on data.
        """
        graph: Path | None = None
        if not choice.settings.is_unoptimized or needs_observation(
            self.prediction.file_graph()
        ):
            graph = Path(tempfile.mkdtemp(dir=self._baseline.folder)) / "graph.onnx"
        return run_written(self._baseline, self._written.path, choice.settings, graph=graph)

    def _optimize_for_equal_outputs(self) -> None:
        """Run with the runtime's optimization after a run without it had other outputs than the original.

        By default the original runs with fused kernels, which round differently. The written model may need the
        same kernels for the same outputs.
        """
        self.choice = self.prediction.optimized_choice()
        self.run = self._run(self.choice)
        self.notes.append(
            "without optimization the outputs differ from those of the defaults: the model "
            f"{RAN_AGAIN} with optimization"
        )

    def _measure_time_and_optimize_if_slower(self) -> None:
        """Set ``time``, and replace the reported run by one with optimization if runs take longer than allowed.

        The reported run stays if it is optimized already, or must not be. It also stays if the run with
        optimization fails, has other outputs, or takes longer than allowed too.
        """
        self.time = self._time_if_suspect(self.run)  # None: not slower, at first sight
        is_slow = self.time is not None and self.time.is_slower
        must_stay = self.prediction.unoptimized_only or not self.run.is_unoptimized
        if not is_slow or must_stay:
            return
        choice = self.prediction.optimized_choice()
        optimized_run = self._run(choice)
        if not self._has_passed(optimized_run):
            return
        time = self._time_if_suspect(optimized_run)
        is_slow_too = time is not None and time.is_slower
        if is_slow_too:
            return
        self.run, self.choice, self.time = optimized_run, choice, time
        self.notes.append(
            f"without optimization the written model takes longer than allowed: it {RAN_AGAIN} with optimization"
        )

    def _time_if_suspect(self, run: WrittenRun) -> TimeRatio | None:
        """Return the time of a run relative to the original's; None if it does not seem slower, or was not timed.

        The runs that measured memory were timed too (`Peaks.milliseconds`). They are few: only if they
        seem slower are both models timed in turn.
        """
        before, after = self._baseline.record, run.record
        if not seems_slower(after.peaks, before.peaks):
            return None
        timeout = self._baseline.check.timeout
        sessions = before.spec.session, after.spec.session
        return time_ratio(*sessions, before.spec.inputs[0], timeout)

    def executed_graph(self) -> ExecutedGraph:
        """Return the graph that the reported run wrote, or the file's own graph if it wrote none."""
        record = self.run.record
        file = record.spec.graph
        if record.failure is not None or file is None:
            return self.prediction.file_graph()
        if file not in self._graphs:
            self._graphs[file] = self._graph_of_run()
        return self._graphs[file]

    def _graph_of_run(self) -> ExecutedGraph:
        """Return the graph that the reported run wrote, with all that predictions from it need.

        That is, besides the ops: the sizes, branches and iteration counts that depend on data, as observed in the
        run, and the recorded order of the ops, if their order cannot be predicted.
        """
        run = self.run
        graph = graph_of_run(run.record, self._baseline.dims)
        if needs_observation(graph) and graph.observed is None:
            # Node names are missing or occur twice, so nothing was observed in this run. The baseline's run of the
            # original observed the same sizes, and the predicted graph has them.
            predicted_graph = self.prediction.graph_under(run.settings)
            graph = replace(graph, observed=predicted_graph.observed)
        if has_unpredictable_order(run.settings):
            # Without names of nodes no order is recorded, and the order of the dump is the best guess.
            graph = with_recorded_order(graph, run.record) or graph
        return graph

    def runtime_summary(self) -> RuntimeSummary:
        """Return the runtime block of the report: predicted and observed memory, and settings.

        Its key ``original`` has the memory of the baseline run, ``optimized`` that of the reported run of the
        written model.
        """
        baseline, run = self._baseline, self.run
        graph = self.executed_graph()  # of the reported run
        workspace = run.record.workspace or {}
        # Users open a written file with `memplan_cli.load`, and the original's own file with ONNX Runtime.
        opened_by_memplan = self._written.path != baseline.path
        process = predict_process_bytes(
            stored_model(self._written.path),
            graph,
            run.settings,
            ProcessMeasurements(workspace, opened_by_memplan=opened_by_memplan),
        )
        predicted = replace(predict_peaks(graph, run.settings, workspace), process=process)
        return RuntimeSummary(
            name="onnxruntime",
            version=required_version(),
            provider=baseline.provider,
            predicted={"original": self.prediction.original.predicted, "optimized": predicted},
            observed={"original": baseline.record.peaks, "optimized": run.record.peaks},
            settings=run.settings,
            time=self.time,
            idle=self.idle,
        )

    def warning_by_default(self) -> tuple[str, ...]:
        """Return a warning if the written model needs more memory than the original at default settings.

        Both peaks are predicted. A file that must run without optimization gets no warning: it must not run
        at default settings.
        """
        if self.prediction.unoptimized_only:
            return ()
        # By default ONNX Runtime optimizes the graph of the written model. The reported run shows that graph,
        # unless it was a run without optimization.
        written_graph = (
            self.prediction.optimized_graph()
            if self.run.is_unoptimized
            else self.executed_graph()
        )
        written_peak = predict_peaks(written_graph, DEFAULTS).first_run_peak
        original_peak = self.prediction.original.predicted.first_run_peak
        if original_peak is None or written_peak is None or written_peak <= original_peak:
            return ()
        warning = (
            f"under the runtime's default settings the written model needs {written_peak} bytes at "
            f"its peak, the original {original_peak}: run it with the settings of this report"
        )
        return (warning,)


def confirm_prediction(
    prediction: Prediction, search: Search, progress: Progress
) -> Confirmation:
    """Choose the settings of a written model, and return the runs that confirm them.

    The search ``measured`` runs the model once under each choice, and returns the run with the lowest
    `measured_cost`, of equal ones the first. Any other search runs only the best predicted choice. If this choice
    does not optimize the graph, and outputs differ or runs are slower than allowed, the model runs once more, with
    optimization.

    Raises:
        RuntimeUnavailableError: the written model's weights are missing.
    """
    if search != "measured":
        progress("running the written model")
        confirmation = Confirmation(prediction, prediction.best_choice())  # runs the model
        confirmation.optimize_if_rejected()
        return confirmation
    # Some of these choices optimize the graph already, so no run is repeated with optimization.
    choices = prediction.choices_to_measure()
    confirmations: list[Confirmation] = []
    for number, choice in enumerate(choices, 1):
        progress(f"running the written model, settings {number} of {len(choices)}")
        confirmations.append(Confirmation(prediction, choice))
    return min(confirmations, key=measured_cost)


class MeasuredCost(NamedTuple):
    """The cost of a confirmed choice of settings; lower is better, first by rank.

    Attributes:
        rank: 0 for settings within the allowed time; 1 for settings with which a run takes over 5 %
            longer than the original's; 2 for settings with which no run passed.
        amount: compared at equal rank, so its unit depends on the rank.
    """

    rank: int
    amount: float


def measured_cost(confirmation: Confirmation) -> MeasuredCost:
    """Return the cost of a confirmed choice of settings, by which choices are compared.

    - No run passed: rank 2.
    - A run takes over 5 % longer than the original's: rank 1, and the milliseconds of a run.
    - Any other: rank 0, and the observed bytes at the peak and in the arena.
    """
    if not confirmation.passed:
        return MeasuredCost(rank=2, amount=0.0)
    baseline = confirmation.prediction.baseline
    before, after = baseline.record, confirmation.run.record
    # These times are of two processes, one after the other. If the later one seems slower, runs of both models
    # in turn decide.
    if is_slower(after.peaks, before.peaks):
        ratio = time_ratio(
            before.spec.session,
            after.spec.session,
            before.spec.inputs[0],
            baseline.check.timeout,
        )
        # None: the clock was too coarse, so the recorded times decide.
        if ratio is None or ratio.is_slower:
            # Processor times are measured on the CPU only.
            time = after.peaks.processor_milliseconds
            time = after.peaks.milliseconds if time is None else time
            return MeasuredCost(rank=1, amount=time or 0.0)
    return MeasuredCost(rank=0, amount=float(peak_plus_arena(after.peaks)))
