"""A written model run under foreseen settings, and again where that run disagrees with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.results.report import RuntimeFacts
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.candidates import (
    SHORT_RUNS,
    Candidate,
    for_sizes,
    quicker,
    without_pattern,
)
from memplan_cli.runtime.facts import required_version, worse_by_default
from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN
from memplan_cli.runtime.graph.seen_graph import executed_of, reordered
from memplan_cli.runtime.graph.speed import is_slower_as_written
from memplan_cli.runtime.measuring.timing import is_far_slower
from memplan_cli.runtime.process.predict import Shown, process_of
from memplan_cli.runtime.profile.workspace import totals_by_rule
from memplan_cli.runtime.proofs.written import (
    Plain,
    Run,
    is_unoptimised,
    run_written,
    unoptimised_both,
)
from memplan_cli.runtime.simulate.predict import Executed, needs_run, predict
from memplan_cli.runtime.simulate.regions import ArenaChoice
from memplan_cli.runtime.simulate.trace import weight_bytes
from memplan_cli.runtime.steer import (
    DEFAULTS,
    Recommendation,
    foreseen,
    has_several_regions,
    held_under,
    held_without_weights,
    in_one_region,
    sources_of,
    with_best_arena,
)

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.program import Shape, VarId
    from memplan_cli.runtime.measuring.examine import Examined
    from memplan_cli.runtime.proofs.original import Original
    from memplan_cli.runtime.proofs.subjects import Before, Written

_WORTH = 0.98
"""Share of what an arena holds that must be left for another run to be worth it."""

_NOTICED = 1 << 18
"""Bytes below which another arena makes no other process: a session of nothing takes 8 MB."""


@dataclass(slots=True)
class Proof:
    """One written model's runs; each step takes the run so far and returns the one to go by."""

    original: Original
    before: Before
    written: Written
    folder: Path
    choice: Recommendation | None = None
    """What the last run was made with."""
    runs: int = 0
    read: tuple[Examined, Executed] | None = None
    """The graph of a run that was read."""
    only_as_written: bool = False
    """Whether it gives the original's bits as it stands alone."""
    plain: Plain | None = None
    """The original without optimisation, where outputs are to be those of it."""
    other_nodes: bool = False
    """Whether the runtime ran other nodes than the file's: operators that it writes out."""

    def first(self) -> Run:
        """Run the file under the settings that are foreseen to be best."""
        return self._run(self.foreseen())

    def foreseen(self) -> Recommendation:
        """Return the settings that are foreseen to be best."""
        if self.written.as_written or self.written.offline:
            return self._as_it_stands()
        program, dims = self.written.program, self.original.dims
        if is_slower_as_written(program, dims, self.before.executed):
            return self._optimised()
        optimised, as_it_stands = self._optimised(), self._as_it_stands()
        unknown, size = optimised.rank
        # What the runtime folds is held all the time, at the peak and between runs.
        optimised_rank = unknown, size + 2 * self._folded()
        return optimised if optimised_rank <= as_it_stands.rank else as_it_stands

    def _folded(self) -> int:
        """Return the bytes of constants that the file does not have, and a session makes of it."""
        graphs = (self._under_optimisation(), self._file())
        after, file = (weight_bytes(graph.program, graph.dims) for graph in graphs)
        return max(after - file, 0)

    def executed(self, settings: RuntimeSettings) -> Executed:
        """Return the graph that a session of the file is foreseen to run."""
        return self._file() if is_unoptimised(settings) else self._under_optimisation()

    def optimised(self) -> Run:
        """Run under the runtime's optimisation."""
        return self._run(self._optimised())

    def unoptimised(self, run: Run) -> Run:
        """Compare both without optimisation."""
        again = unoptimised_both(self.original, run, self.folder, self._against)
        self.only_as_written = again.as_written
        return again

    def _against(self, plain: Plain) -> Run:
        """Run the file as it stands, against the original as it ran without optimisation."""
        self.plain = plain
        return self._run(self._as_it_stands())

    def in_time(self, run: Run) -> tuple[Run, str]:
        """Run under optimisation instead where the file as it stands takes far longer."""
        bound = self.written.as_written or self.written.offline or self.only_as_written
        if bound or not run.as_written or run.seen is None:
            return run, ""
        if not is_far_slower(run.seen.peaks, self.original.seen.peaks):
            return run, ""
        before, other = self.choice, self.optimised()
        if other.seen is None or not (self.written.verdict or other.verdict).passed:
            self.choice = before
            return run, "as it stands, the written model takes far longer than the original"
        return other, "as it stands, the written model took longer than foreseen: it ran twice"

    def in_its_nodes(self, run: Run) -> tuple[Run, str]:
        """Run again for the runtime's graph where a file as it stands asked for more than it has.

        An operator without a kernel is written out, its nodes behind all others; a kernel that
        takes no 16 bits gets Casts.
        """
        if run.seen is None or run.seen.graph is not None or self.choice is None:
            return run, ""
        peak = predict(self._file(), run.settings).first_run_peak
        if peak is None or (run.seen.peaks.first_run_peak or 0) <= peak + _NOTICED:
            return run, ""
        self.other_nodes = True
        again = self._run(self.choice)
        if not self._is_same(run, again):
            self.other_nodes = False
            return run, ""
        return replace(again, verdict=run.verdict, as_written=run.as_written), (
            "the runtime runs nodes that the file does not have (operators that it writes out come "
            "behind all others): what is predicted goes by them, and the written model ran twice"
        )

    def in_its_arena(self, run: Run) -> tuple[Run, str]:
        """Run again where what the kernels asked for wants another arena than was foreseen."""
        if self.original.provider != CPU or run.seen is None or self.choice is None:
            return run, ""
        held = held_without_weights(run.seen.peaks)
        expected = self.choice.predicted.held
        least = min(int(_WORTH * held), held - _NOTICED)
        if expected is not None and least <= expected:
            return run, ""
        executed, workspace = self._after(run), run.seen.workspace
        better = with_best_arena(executed, run.settings, workspace)
        if better is None or (better.predicted.held or 0) >= least:
            return run, ""
        if better.settings.arena == run.settings.arena or has_several_regions(better):
            # When a kernel asks for its workspace is not known to the step, and two sessions of
            # one graph need not run its nodes in one order: one region bears both.
            better = in_one_region(better)
        before, again = self.choice, self._run(better)
        if not self._is_same(run, again) or _held(again) >= held:
            self.choice = before
            return run, ""
        why = "was" if expected is not None else "could not be"
        return replace(again, verdict=run.verdict, as_written=run.as_written), (
            f"the arena {why} foreseen{' otherwise' if why == 'was' else ''}: the written "
            "model ran twice"
        )

    def _is_same(self, run: Run, again: Run) -> bool:
        """Whether another run gave what this one gave, whose outputs were found right."""
        if self.written.verdict is not None:
            return again.seen is not None
        if self.only_as_written and run.seen is not None and again.seen is not None:
            # Where no plain outputs are there, both are as far from those of the defaults.
            return run.seen.differences == again.seen.differences
        return again.verdict.passed

    def facts(self, run: Run) -> RuntimeFacts:
        """Return the report's block."""
        assert run.seen is not None  # noqa: S101 - only what has run comes here
        provider, executed = self.original.provider, self._after(run)
        held = held_under(executed, run.settings, run.seen.workspace)
        process = process_of(
            stored_model(self.written.path),
            executed,
            run.settings,
            provider,
            Shown(run.seen.workspace, as_loaded=self.written.path != self.original.path),
        )
        peaks = predict(executed, run.settings)
        predicted = replace(peaks, held=held, process=process)
        return RuntimeFacts(
            name="onnxruntime",
            version=required_version(),
            provider=provider,
            predicted={"original": self.before.predicted, "optimized": predicted},
            observed={"original": self.original.seen.peaks, "optimized": run.seen.peaks},
            settings=run.settings,
            settings_sources=sources_of(run.settings) if run.seen.workspace else {},
        )

    def by_default(self, run: Run) -> tuple[str, ...]:
        """Warn where somebody who sets nothing would need more memory than before."""
        if self.written.as_written or self.written.offline:
            return ()
        executed = self._under_optimisation() if run.as_written else self._after(run)
        after = predict(executed, DEFAULTS)
        return worse_by_default(self.before.predicted, after)

    def for_other_sizes(self, run: Run) -> tuple[str, ...]:
        """Say where runs are longer for the sake of sizes other than those assumed."""
        if not self.original.binding.assumed or self.written.for_range or run.seen is None:
            return ()
        if self.written.as_written and not self.written.offline:
            return ()
        executed, held = self._after(run), held_without_weights(run.seen.peaks)
        now = Candidate(run.settings, run.seen.peaks, ArenaChoice(run.settings.arena, held))
        if quicker(executed, now, DEFAULTS, run.seen.workspace) is now:
            return ()
        return (SHORT_RUNS,)

    def _run(self, choice: Recommendation) -> Run:
        self.choice = choice
        self.runs += 1
        other = self.other_nodes or not is_unoptimised(choice.settings)
        needs_graph = other or needs_run(self._file())
        graph = self.folder / f"run{self.runs}.onnx" if needs_graph else None
        path, settings = self.written.path, choice.settings
        return run_written(self.original, path, settings, graph, self.plain)

    def _file(self) -> Executed:
        """Return the file as it stands; what data decides is foreseen from the original's run.

        The runtime's own graph has the same values whoever has it written.
        """
        dims, provider = self.original.dims, self.original.provider
        file = Executed(self.written.program, dims, provider=provider)
        if not self.written.offline:
            return file
        before = self.before.executed
        return replace(file, observed=before.observed, seen=_seen_by_name(before, file))

    def _under_optimisation(self) -> Executed:
        return reordered(self.before.executed, self.original.nodes, self.written.program)

    def _optimised(self) -> Recommendation:
        workspace = self.original.seen.workspace
        executed = self._under_optimisation()
        base = for_sizes(DEFAULTS, self.original.binding.assumed)
        return foreseen(executed, base, workspace)

    def _as_it_stands(self) -> Recommendation:
        executed, seen = self._file(), self.plain or self.original.seen
        # Nodes that the original's run did not have go by rules.
        workspace = totals_by_rule(executed.program, executed.dims) | dict(seen.workspace)
        base = for_sizes(RUN_AS_WRITTEN, self.original.binding.assumed)
        if self.written.as_written and not self.written.offline:
            base = without_pattern(base)  # a budget is of tensors one by one
        return foreseen(executed, base, workspace)

    def _after(self, run: Run) -> Executed:
        """Return the graph of a run; of a file that ran as it stands, the file's own."""
        if run.seen is None or run.seen.graph is None:
            return self._file()
        if self.read is None or self.read[0] is not run.seen:
            dims, path = self.original.dims, self.written.path
            graph = executed_of(run.seen, run.settings, dims, path)
            self.read = run.seen, replace(graph, provider=self.original.provider)
        return self.read[1]


def _seen_by_name(before: Executed, file: Executed) -> dict[VarId, Shape | None]:
    """Return the shapes by which the runtime's planner goes, of values that both graphs have."""
    known = {before.program.vars[var].name: shape for var, shape in before.seen.items()}
    return {
        var.id: known[var.name]
        for var in file.program.vars.values()
        if not var.block and var.name in known
    }


def _held(run: Run) -> int:
    return held_without_weights(run.seen.peaks) if run.seen else 0
