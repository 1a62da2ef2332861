"""For one provider: the graph as the runtime optimises it, in the order that needs least.

The runtime's own optimisation would undo an order, so it is done offline, before: the
optimised graph is dumped, ordered by what this runtime shares and keeps, and run as it
stands. Fusion can also cost memory, so the graph as it is competes, and the better stays.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.fallbacks import CANDIDATE_DIFFERED, WEIGHTS_UNPACKED, Fallback
from memplan_cli.core.results.observations import PROVIDERS
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError
from memplan_cli.shapes.bindings import Bindings
from memplan_cli.workflows.ahead import Ahead
from memplan_cli.workflows.best import best_candidate
from memplan_cli.workflows.candidates import (
    Candidate,
    Optimized,
    warned,
    write_unproved,
)
from memplan_cli.workflows.fallbacks import fell_back
from memplan_cli.workflows.files.model_file import ModelFile, knowing, plan_model, source_of
from memplan_cli.workflows.files.own_weights import (
    FUSED,
    UNFUSED,
    dump_name,
    refuse_foreign_weights,
)
from memplan_cli.workflows.files.reading import numbers_in, read_seen
from memplan_cli.workflows.files.rewriting import Rewriting, Targets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.check import Check
    from memplan_cli.core.program import Program
    from memplan_cli.runtime.graph.offline import Dump, Dumping, Packing
    from memplan_cli.settings.settings import Settings
    from memplan_cli.shapes.bindings import Known

_READERS_COST = 256
"""Bytes that the shape of a tensor takes in an arena."""

_RUN = "the inputs of a run of the model"

_OF_ONE_RUN = f"sizes that data decides were read off {_RUN}; other data may need more"


def optimize_for_target(
    file: ModelFile,
    settings: Settings,
    targets: Targets,
    check: Check | None,
    progress: Callable[[str], None],
) -> Optimized:
    """Optimise a model for one provider of the installed runtime.

    Raises:
        RuntimeUnavailableError: the provider or the weights are not there.
        SettingsError: the models were to be compared on another provider.
        ModelError: a file is in the way or cannot be written.
    """
    from memplan_cli.runtime.graph.offline import Packing
    from memplan_cli.runtime.workers.session import resolve_provider

    allowed = ("auto", settings.target, PROVIDERS[settings.target])
    if check is not None and check.provider not in allowed:
        raise SettingsError(
            f"a model for {settings.target} is proved there, not on {check.provider}",
            hint="leave the provider out",
        )
    provider = resolve_provider(settings.target)
    targets.refuse_weights(file)
    with tempfile.TemporaryDirectory(prefix="memplan-offline-") as folder:
        progress("optimizing the graph for the runtime")
        graphs = _Graphs(file, settings, targets, Path(folder), provider)
        if check is None:
            with graphs.begun(Packing.AT_LOAD, (FUSED,)) as dumping:
                return write_unproved(graphs.planned(dumping.result())[0])
        check = replace(check, provider=settings.target)
        with Ahead(check) as ahead:
            return _proved(graphs, check, ahead, progress)


def _proved(
    graphs: _Graphs, check: Check, ahead: Ahead, progress: Callable[[str], None]
) -> Optimized:
    """Prove the best graph, with weights packed in the file where that can be had and runs."""
    from memplan_cli.runtime.graph.offline import Packing, packing_for

    file, provider = graphs.file, graphs.provider
    packing = packing_for(provider, file.model)
    plain = replace(graphs.settings, target="portable")
    with graphs.begun(packing) as dumping:
        planned = plan_model(file, plain, progress)
        portable = Rewriting(file, planned, plain, graphs.targets)
        if planned.settings.profile_shapes:
            graphs = replace(graphs, seen=numbers_in(planned.program))
        ahead.begin(file, graphs.settings)  # when the dump is there
        dumps = dumping.result()
    prove = partial(_best, portable=portable, check=check, ahead=ahead, progress=progress)
    done = prove(graphs.planned(dumps))
    if any(dump.cut for dump in dumps) and _lost(done):
        progress("writing the runtime's graph as it is: rewritten, it gives other outputs")
        with graphs.begun(Packing.IN_FILE) as dumping:
            dumps = dumping.result()
        done = prove(graphs.planned(dumps))
    if done.model is not None or packing is Packing.AT_LOAD or not _broke(done):
        return done
    progress("packing weights at load: the file with packed ones does not run")
    with graphs.begun(Packing.AT_LOAD) as dumping:
        dumps = dumping.result()
    return prove([_with_fallback(rewriting, done) for rewriting in graphs.planned(dumps)])


def _best(
    fused: Sequence[Rewriting],
    portable: Rewriting,
    check: Check,
    ahead: Ahead,
    progress: Callable[[str], None],
) -> Optimized:
    """Prove the best of the runtime's graphs and of the graph as it is."""
    graphs = list(fused)
    if _may_need_less(portable, graphs[0], PROVIDERS[check.provider]):
        graphs.append(portable)
    return best_candidate(
        [Candidate(rewriting, check, progress) for rewriting in graphs], ahead
    )


def _with_fallback(rewriting: Rewriting, failed: Optimized) -> Rewriting:
    """Return a rewriting that says why its weights are not packed into the file."""
    found = failed.plan.report.validation
    why = found.notes[0] if found is not None and found.notes else "the file does not run"
    lost = Fallback(WEIGHTS_UNPACKED, "weights are not packed into the file", why)
    planned = replace(rewriting.planned, plan=fell_back(rewriting.planned.plan, lost))
    return replace(rewriting, planned=planned)


def _lost(done: Optimized) -> bool:
    """Whether no graph of the runtime's, or not the best one, gave the original's outputs."""
    codes = {fallback.code for fallback in done.plan.report.fallbacks}
    return done.model is None or CANDIDATE_DIFFERED in codes


def _broke(done: Optimized) -> bool:
    """Whether a written model did not run, which says nothing of its outputs."""
    found = done.plan.report.validation
    return found is not None and found.status == "failed" and found.max_abs_diff is None


@dataclass(frozen=True, slots=True)
class _Graphs:
    """The graphs that the runtime makes of one model.

    Attributes:
        file: the model.
        settings: what decides the plans.
        targets: where files go.
        folder: for what the runtime writes.
        provider: for which it is made.
        seen: what a run of the model showed, where data decides sizes: most values of the
            runtime's graph are the model's own.
    """

    file: ModelFile
    settings: Settings
    targets: Targets
    folder: Path
    provider: str
    seen: Known = field(default_factory=dict)

    def begun(self, packing: Packing, kinds: Sequence[str] = (FUSED, UNFUSED)) -> Dumping:
        """Start to dump the runtime's graph, and that without its costly fusions."""
        from memplan_cli.runtime.graph.offline import Dumping

        taken = self.file.data_files
        names = [dump_name(self.targets.model, taken, kind) for kind in kinds]
        refuse_foreign_weights(self.targets.model, [f"{names[0]}.data"])
        folder = self.folder / packing.name
        folder.mkdir()
        paths = [folder / name for name in names]
        dims = self.settings.dims
        return Dumping(self.file.path, paths, self.provider, packing, dims)

    def planned(self, dumps: Sequence[Dump]) -> list[Rewriting]:
        """Plan what was dumped."""
        refuse_foreign_weights(
            self.targets.model, [f"{dump.path.name}.data" for dump in dumps]
        )
        return [self._ordered(dump) for dump in dumps]

    def _ordered(self, dump: Dump) -> Rewriting:
        """Plan the dump, or the dump with readers for what nobody reads, if that may need less."""
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.onnx_io.runs.runnable import unread_outputs, with_readers
        from memplan_cli.onnx_io.writing.verify import graph_differences

        path = dump.path
        file = ModelFile.of(path, load_model(path))
        program = self._program(dump, file)
        sizes = {
            v.name: size_of(v.shape, v.dtype) for v in program.vars.values() if not v.block
        }
        worth = [
            name
            for name in unread_outputs(file.model)
            if (size := sizes.get(name)) is not None and size.coefficient > _READERS_COST
        ]
        if not worth:
            return self._plan(dump, file, program)
        copy = path.with_name(f"{path.stem}.read{path.suffix}")
        copy.write_bytes(with_readers(file.model, worth).SerializeToString())
        read = ModelFile.of(copy, load_model(copy))
        as_read = self._program(dump, read)
        before, after = (
            _peak_as_it_stands(each, self.settings, self.provider)
            for each in (program, as_read)
        )
        # What is freed at once leaves room that only another order may use.
        costs = _READERS_COST * len(worth)
        worse = before is not None and after is not None and after > before + costs
        if worse or graph_differences(file.model, read.model):
            return self._plan(dump, file, program)
        note = f"{len(worth)} outputs that nobody reads are read by a Shape node, which frees them"
        found = self._plan(dump, read, as_read)
        planned = replace(found.planned, plan=warned(found.planned.plan, note))
        return replace(found, planned=planned)

    def _program(self, dump: Dump, file: ModelFile) -> Program:
        from memplan_cli.runtime.graph.offline import offline_program

        dims = self.settings.dims
        program = offline_program(file.path, dims, self.provider, dump.shapes)
        known = {var: told for var, told in self.seen.items() if var in program.vars}
        if not known:
            return program
        return read_seen(file.lazy, Bindings(dims), known, program, _RUN).program

    def _plan(self, dump: Dump, file: ModelFile, program: Program) -> Rewriting:
        from memplan_cli.planning.choosing.candidate import Runtime
        from memplan_cli.planning.planner import make_plan
        from memplan_cli.runtime.graph.arena_order import order_for_arena
        from memplan_cli.runtime.graph.offline import offline_metadata
        from memplan_cli.runtime.installed import required_version

        settings, provider = self.settings, self.provider
        settle = partial(order_for_arena, dims=settings.dims, provider=provider)
        runtime = Runtime(runtime_aliasing(provider), settle)
        source = replace(source_of(self.file), block=dump.block)
        source = knowing(file.model, source, settings)
        if self.seen:
            source = replace(source, warnings=(*source.warnings, _OF_ONE_RUN))
            settings = replace(settings, profile_shapes=True)
        planned = make_plan(program, settings, source, runtime=runtime)
        return Rewriting(
            file,
            planned,
            self.settings,
            self.targets,
            original=self.file.path,
            notes=offline_metadata(required_version(), provider),
        )


def runtime_aliasing(provider: str) -> Aliasing:
    """Return the operators that share bytes in the runtime, as they were probed."""
    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.runtime.profile.in_place import load_table

    table = load_table(provider)
    return Aliasing(frozenset(table.alias), table.in_place)


def _may_need_less(one: Rewriting, other: Rewriting, provider: str) -> bool:
    """Whether running one rewriting as it stands is not predicted to need as much or more."""
    first, second = (
        _peak_as_it_stands(rewriting.planned.program, rewriting.settings, provider)
        for rewriting in (one, other)
    )
    return first is None or second is None or first < second


def _peak_as_it_stands(program: Program, settings: Settings, provider: str) -> int | None:
    """Return the first run's peak in bytes, of a file that is run in its own order."""
    from memplan_cli.runtime.graph.offline import FREED_AT_ONCE
    from memplan_cli.runtime.simulate.predict import Executed, predict

    executed = Executed(program, settings.dims, provider=provider)
    return predict(executed, FREED_AT_ONCE).first_run_peak
