"""Candidates for one provider: the graph as the runtime optimises it, in the order that needs least.

The runtime's own optimisation would undo an order, so it is done offline, before: the
optimised graph is dumped, ordered by what this runtime shares and keeps, and run as it
stands. Fusion can also cost memory, so the graph as it is competes, and the better stays.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.api.fallbacks import fell_back
from memplan_cli.api.files.model_file import (
    ModelFile,
    bind_whole,
    knowing,
    plan_model,
    source_of,
)
from memplan_cli.api.files.own_weights import (
    FUSED,
    UNFUSED,
    dump_name,
    refuse_foreign_weights,
)
from memplan_cli.api.files.reading import numbers_in, read_seen
from memplan_cli.api.files.rewriting import Rewriting
from memplan_cli.api.optimized import warned
from memplan_cli.core.results.rewrites import CANDIDATE_DIFFERED, WEIGHTS_UNPACKED, Fallback
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.onnx_io.shapes.bindings import Bindings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.api.candidates import OptimizeRequest
    from memplan_cli.api.optimized import Optimized
    from memplan_cli.api.verification import BackgroundBaseline
    from memplan_cli.core.program import Program
    from memplan_cli.onnx_io.shapes.bindings import Known
    from memplan_cli.runtime.graph.offline import Dump, DumpJob, Packing
    from memplan_cli.settings.settings import Settings

_READERS_COST = 256
"""Bytes that the shape of a tensor takes in an arena."""

_RUN = "the inputs of a run of the model"

_OF_ONE_RUN = f"sizes that data decides were read off {_RUN}; other data may need more"


class TargetCandidates:
    """The candidates for one provider of the installed runtime, in rounds.

    The first round has the runtime's graph, that without its costly fusions, and the graph as
    it is in the file, if that may need less. A further round follows if cut operands change the
    outputs, or if the runtime cannot run a file with packed weights.
    """

    def __init__(self, request: OptimizeRequest, baseline: BackgroundBaseline) -> None:
        """Check that the provider is there; plan nothing yet.

        Raises:
            RuntimeUnavailableError: the provider does not work here.
            ModelError: a file is in the way.
        """
        from memplan_cli.runtime.workers.session import resolve_provider

        self._provider = resolve_provider(request.settings.target)
        request.targets.refuse_weights(request.file)
        self._request, self._baseline = request, baseline
        self._file, self._targets = request.file, request.targets
        self._settings = request.settings
        self._room = tempfile.TemporaryDirectory(prefix="memplan-offline-")
        self._packing: Packing | None = None
        self._is_cut = False
        self._portable: Rewriting | None = None
        # What a run of the model showed where data decides sizes; most values of the runtime's
        # graph are the model's own.
        self._seen: Known = {}

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the graphs that the runtime wrote."""
        self._room.cleanup()

    def plan(self, result: Optimized | None) -> list[Rewriting]:
        """Return the candidates of the next round, after the result of the one before.

        None follow a result that stands.

        Raises:
            RuntimeUnavailableError: the weights are not there, or the model does not load.
            ModelError: a file is in the way.
        """
        from memplan_cli.runtime.graph.offline import Packing

        packing = self._next_packing(result)
        if packing is None:
            return []
        is_first, self._packing = self._packing is None, packing
        if is_first:
            self._request.progress("optimizing the graph for the runtime")
            self._settings = bind_whole(self._file, self._settings, self._request.trust)
        kinds = (FUSED,) if self._request.check is None else (FUSED, UNFUSED)
        with self._start_dump(packing, kinds) as dumping:
            if is_first and self._request.check is not None:
                self._plan_portable()  # while the runtime dumps
            dumps = dumping.result()
        self._is_cut = any(dump.cut for dump in dumps)
        candidates = self._planned(dumps)
        if result is not None and packing is Packing.AT_LOAD:
            candidates = [_with_fallback(each, result) for each in candidates]
        portable = self._portable
        if portable and _may_need_less(portable, candidates[0], self._provider):
            candidates.append(portable)
        return candidates

    def _next_packing(self, result: Optimized | None) -> Packing | None:
        """Return how weights are packed in the next round; None if there is no further one."""
        from memplan_cli.runtime.graph.offline import Packing, packing_for

        tell = self._request.progress
        if result is None:
            if self._request.check is None:
                return Packing.AT_LOAD
            return packing_for(self._provider, self._file.model)
        if self._is_cut and _lost(result):
            tell("writing the runtime's graph as it is: rewritten, it gives other outputs")
            return Packing.IN_FILE
        if result.model is not None or self._packing is Packing.AT_LOAD or not _broke(result):
            return None
        tell("packing weights at load: the file with packed ones does not run")
        return Packing.AT_LOAD

    def _plan_portable(self) -> None:
        """Plan the graph as it is in the file, and start the original."""
        plain = replace(self._settings, target="portable")
        planned = plan_model(self._file, plain, self._request.progress)
        self._portable = Rewriting(self._file, planned, plain, self._targets)
        if planned.settings.profile_shapes:
            self._seen = numbers_in(planned.program)
        self._baseline.start(self._file, self._settings)  # it begins when the dump is there

    def _start_dump(self, packing: Packing, kinds: Sequence[str]) -> DumpJob:
        """Start to dump the runtime's graph, and that without its costly fusions."""
        from memplan_cli.runtime.graph.offline import DumpJob

        taken = self._file.data_files
        names = [dump_name(self._targets.model, taken, kind) for kind in kinds]
        refuse_foreign_weights(self._targets.model, [f"{names[0]}.data"])
        folder = Path(self._room.name) / packing.name
        folder.mkdir()
        paths = [folder / name for name in names]
        dims = self._settings.dims
        return DumpJob(self._file.path, paths, self._provider, packing, dims)

    def _planned(self, dumps: Sequence[Dump]) -> list[Rewriting]:
        """Plan what was dumped."""
        refuse_foreign_weights(
            self._targets.model, [f"{dump.path.name}.data" for dump in dumps]
        )
        return [self._ordered(dump) for dump in dumps]

    def _ordered(self, dump: Dump) -> Rewriting:
        """Plan the dump, or the dump with readers for what nobody reads, if that may need less."""
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.onnx_io.runs.prepared_models import unread_outputs, with_readers
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
            _peak_as_it_stands(each, self._settings, self._provider)
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

        dims = self._settings.dims
        program = offline_program(file.path, dims, self._provider, dump.shapes)
        known = {var: told for var, told in self._seen.items() if var in program.vars}
        if not known:
            return program
        return read_seen(file.lazy, Bindings(dims), known, program, _RUN).program

    def _plan(self, dump: Dump, file: ModelFile, program: Program) -> Rewriting:
        from memplan_cli.api.rewrites import REWRITES
        from memplan_cli.planning.candidate import Runtime
        from memplan_cli.planning.planner import make_plan
        from memplan_cli.runtime.graph.offline import offline_metadata
        from memplan_cli.runtime.installed import required_version
        from memplan_cli.runtime.simulate.arena_order import order_for_arena

        settings, provider = self._settings, self._provider
        settle = partial(order_for_arena, dims=settings.dims, provider=provider)
        runtime = Runtime(runtime_aliasing(provider), settle)
        source = replace(source_of(self._file), block=dump.block)
        source = knowing(file.model, source, settings)
        if self._seen:
            source = replace(source, warnings=(*source.warnings, _OF_ONE_RUN))
            settings = replace(settings, profile_shapes=True)
        planned = make_plan(program, settings, source, REWRITES, runtime=runtime)
        return Rewriting(
            file,
            planned,
            self._settings,
            self._targets,
            original=self._file.path,
            notes=offline_metadata(required_version(), provider),
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
    from memplan_cli.runtime.simulate.predict import FREED_AT_ONCE, ExecutedGraph, predict

    executed = ExecutedGraph(program, settings.dims, provider=provider)
    return predict(executed, FREED_AT_ONCE).first_run_peak
