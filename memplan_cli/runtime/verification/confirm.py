"""A written model run under predicted settings, and again where the run contradicts them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU
from memplan_cli.core.results.report import RuntimeFacts
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.graph.recorded import graph_of_run, with_recorded_order
from memplan_cli.runtime.installed import required_version
from memplan_cli.runtime.process.predict import KnownProcess, predict_process_bytes
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.run.compare import (
    UnoptimisedRun,
    WrittenRun,
    compare_original_unoptimised,
    is_unoptimised,
    run_original_unoptimised,
    run_written,
    unoptimised_note,
)
from memplan_cli.runtime.run.timing import is_far_slower
from memplan_cli.runtime.settings_search.choice import (
    held_without_weights,
    settings_from_runs,
)
from memplan_cli.runtime.settings_search.predicted import (
    SHORT_RUNS,
    has_several_regions,
    in_one_region,
    predict_arena,
    predict_held,
    would_have_pattern,
)
from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_run, predict

if TYPE_CHECKING:
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.runtime.run.record import RunRecord
    from memplan_cli.runtime.settings_search.choice import SettingsChoice
    from memplan_cli.runtime.settings_search.written_model import Prediction

_WORTH = 0.98
"""Another run is worth it if it leaves at most this share of what the arena holds."""

_NOTICED = 1 << 18
"""Bytes below which another arena makes no other process: a session of nothing takes 8 MB."""


class Confirmation:
    """The runs of one written model, from the first under predicted settings to the reported one.

    Attributes:
        prediction: of the written model.
        choice: the settings of the reported run.
        run: the reported run.
        notes: what the report says about the runs.
    """

    def __init__(self, prediction: Prediction, choice: SettingsChoice) -> None:
        """Run the written model under a choice.

        Args:
            prediction: of the written model.
            choice: the settings.

        Raises:
            RuntimeUnavailableError: the written model's weights are missing.
        """
        self.prediction, self.notes = prediction, list(choice.notes)
        self._baseline, self._written = prediction.baseline, prediction.written
        self._folder = Path(tempfile.mkdtemp(dir=self._baseline.folder))
        self._runs = 0
        self._graph: tuple[RunRecord, ExecutedGraph] | None = None
        self._reference: UnoptimisedRun | None = None
        self._only_as_written = False
        self._has_other_nodes = False
        self.run = self._run(choice)

    @property
    def verdict(self) -> Validation:
        """Return the verdict on the written model's outputs."""
        return self._written.verdict or self.run.verdict

    @property
    def passed(self) -> bool:
        """Return whether the model ran and its outputs are right."""
        return self.run.ran and self.verdict.passed

    def confirm(self, progress: Progress) -> None:
        """Run the model again where its run contradicts what was predicted, and note why.

        Args:
            progress: told which comparison begins.
        """
        if self._written.verdict is None and self.run.has_other_outputs:
            self._compare_otherwise(progress)
        if self.passed:
            self._optimise_if_far_slower()
            self._confirm_memory()

    def confirm_at_level(self, progress: Progress) -> None:
        """Confirm the run as `confirm` does, but never at another optimisation level.

        A search that runs the model at both levels compares their outputs and times itself.
        """
        other = self._written.verdict is None and self.run.has_other_outputs
        if other and self.run.as_written:
            self._compare_otherwise(progress)
        if self.passed:
            self._confirm_memory()

    def _confirm_memory(self) -> None:
        self._read_graph_of_other_nodes()
        self._fit_arena()

    def _run(self, choice: SettingsChoice) -> WrittenRun:
        self.choice = choice
        self._runs += 1
        settings = choice.settings
        file = self.prediction.file()
        wants_graph = self._has_other_nodes or not is_unoptimised(settings) or needs_run(file)
        graph = self._folder / f"run{self._runs}.onnx" if wants_graph else None
        reference = self._reference.inputs if self._reference else None
        return run_written(
            self._baseline, self._written.path, settings, graph=graph, reference=reference
        )

    def _compare_otherwise(self, progress: Progress) -> None:
        """Compare again a model whose outputs differ, where optimisation may be the reason."""
        if self._written.path == self._baseline.path:
            if self.run.as_written:
                self.run = self._run(self.prediction.under_optimisation())
                self.notes.append(
                    "optimisation off gave other bits than the defaults: it ran twice"
                )
            return
        if self._written.offline:
            return
        progress("comparing both models without the runtime's optimisation")
        first, choice = self.run, self.choice
        if first.as_written:
            verdict = compare_original_unoptimised(self._baseline, first)
            again = replace(first, verdict=verdict)
        else:
            self._reference = run_original_unoptimised(self._baseline)
            if self._reference is None:
                return
            self.prediction = replace(self.prediction, workspace=self._reference.workspace)
            again = self._run(self.prediction.as_it_stands())
        if again.verdict.status != "passed":
            self.choice = choice
            return
        note = unoptimised_note(first.verdict)
        verdict = replace(again.verdict, notes=(*again.verdict.notes, note))
        self.run = replace(again, verdict=verdict, as_written=True)
        self._only_as_written = True

    def _optimise_if_far_slower(self) -> None:
        """Run with the runtime's optimisation if the file as it stands takes far longer."""
        written, run = self._written, self.run
        bound = written.as_written or written.offline or self._only_as_written
        if bound or not run.as_written:
            return
        if not is_far_slower(run.record.peaks, self._baseline.record.peaks):
            return
        choice, other = self.choice, self._run(self.prediction.under_optimisation())
        if other.ran and (written.verdict or other.verdict).passed:
            self.run = other
            note = "as it stands, the written model took longer than foreseen: it ran twice"
        else:
            self.choice = choice
            note = "as it stands, the written model takes far longer than the original"
        self.notes.append(note)

    def _read_graph_of_other_nodes(self) -> None:
        """Run again for the runtime's graph if a file as it stands requested more than it has.

        An operator without a kernel is written out, its nodes behind all others; a kernel that
        takes no 16 bits gets Casts.
        """
        run = self.run
        if run.record.spec.graph is not None:
            return
        peak = predict(self.prediction.file(), run.settings).first_run_peak
        if peak is None or (run.record.peaks.first_run_peak or 0) <= peak + _NOTICED:
            return
        self._has_other_nodes = True
        again = self._run(self.choice)
        if not self._is_same(again):
            self._has_other_nodes = False
            return
        self._take(
            again,
            "the runtime runs nodes that the file does not have (operators that it writes out come "
            "behind all others): what is predicted goes by them, and the written model ran twice",
        )

    def _fit_arena(self) -> None:
        """Run again if what the kernels requested wants another arena than was predicted."""
        if self._baseline.provider != CPU:
            return
        run, choice = self.run, self.choice
        held = held_without_weights(run.record.peaks)
        expected = choice.predicted.held
        least = min(int(_WORTH * held), held - _NOTICED)
        if expected is not None and least <= expected:
            return
        better = predict_arena(self.executed(), run.settings, run.record.workspace or {})
        if better is None or (better.predicted.held or 0) >= least:
            return
        if better.settings.arena == run.settings.arena or has_several_regions(better):
            # When a kernel requests its workspace is not known to the step, and two sessions of
            # one graph need not run its nodes in one order: one region bears both.
            better = in_one_region(better)
        again = self._run(better)
        if not self._is_same(again) or held_without_weights(again.record.peaks) >= held:
            self.choice = choice
            return
        why = "was foreseen otherwise" if expected is not None else "could not be foreseen"
        self._take(again, f"the arena {why}: the written model ran twice")

    def _take(self, again: WrittenRun, note: str) -> None:
        """Report another run of a model whose outputs were found right, and say why."""
        verdict, as_written = self.run.verdict, self.run.as_written
        self.run = replace(again, verdict=verdict, as_written=as_written)
        self.notes.append(note)

    def _is_same(self, again: WrittenRun) -> bool:
        """Return whether another run has the outputs of the reported one."""
        if self._written.verdict is not None:
            return again.ran
        if self._only_as_written and again.ran:
            # Compared with the outputs of the defaults, both differ from them alike.
            return self.run.record.differences == again.record.differences
        return again.verdict.passed

    def executed(self) -> ExecutedGraph:
        """Return the graph of the reported run; without one that was read, the file's own."""
        record = self.run.record
        if record.failure is not None or record.spec.graph is None:
            return self.prediction.file()
        if self._graph is None or self._graph[0] is not record:
            graph = graph_of_run(record, self._baseline.dims)
            if settings_from_runs(self.run.settings).get("session.execution_order"):
                graph = with_recorded_order(graph, record) or graph
            self._graph = record, graph
        return self._graph[1]

    def facts(self) -> RuntimeFacts:
        """Return the report's runtime block."""
        baseline, run, executed = self._baseline, self.run, self.executed()
        workspace = run.record.workspace or {}
        as_loaded = self._written.path != baseline.path
        process = predict_process_bytes(
            stored_model(self._written.path),
            executed,
            run.settings,
            baseline.provider,
            KnownProcess(workspace, as_loaded=as_loaded),
        )
        predicted = replace(
            predict(executed, run.settings),
            held=predict_held(executed, run.settings, workspace),
            process=process,
        )
        return RuntimeFacts(
            name="onnxruntime",
            version=required_version(),
            provider=baseline.provider,
            predicted={"original": self.prediction.graph.predicted, "optimized": predicted},
            observed={"original": baseline.record.peaks, "optimized": run.record.peaks},
            settings=run.settings,
            settings_sources=settings_from_runs(run.settings) if workspace else {},
        )

    def warning_by_default(self) -> tuple[str, ...]:
        """Return a warning if a user who sets nothing would need more memory than before."""
        if self._written.as_written or self._written.offline:
            return ()
        executed = self.prediction.optimised() if self.run.as_written else self.executed()
        old = self.prediction.graph.predicted.first_run_peak
        new = predict(executed, DEFAULTS).first_run_peak
        if old is None or new is None or new <= old:
            return ()
        warning = (
            f"under the runtime's default settings the written model needs {new} bytes at its "
            f"peak, the original {old}: run it with the settings of this report"
        )
        return (warning,)

    def note_on_short_runs(self) -> tuple[str, ...]:
        """Return a note if runs take longer only because sizes were assumed."""
        written, run = self._written, self.run
        if not self._baseline.binding.assumed or written.for_range:
            return ()
        if written.as_written and not written.offline:
            return ()
        held, workspace = held_without_weights(run.record.peaks), run.record.workspace or {}
        wanted = would_have_pattern(self.executed(), run.settings, held, workspace)
        return (SHORT_RUNS,) if wanted else ()
