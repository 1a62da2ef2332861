"""For one provider: the graph as the runtime optimises it, in the order that needs least.

The runtime's own optimisation would undo an order, so it is done offline, before: the
optimised graph is dumped, ordered by what this runtime shares and keeps, and run as it
stands. Fusion can also cost memory, so the graph as it is competes, and the better stays.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.fallbacks import WEIGHTS_UNPACKED, Fallback
from memplan_cli.core.results.observations import CPU, PROVIDERS
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError
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
from memplan_cli.workflows.files.rewriting import Rewriting, Targets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.runtime.graph.offline import Dump, Packing
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.compare import Check

_READERS_COST = 256
"""Bytes that the shape of a tensor takes in an arena."""


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
            return write_unproved(graphs.planned(Packing.AT_LOAD, (FUSED,))[0])
        check = replace(check, provider=settings.target)
        plain = replace(settings, target="portable")
        portable = Rewriting(file, plan_model(file, plain, progress), plain, targets)
        packing = Packing.IN_FILE if provider == CPU else Packing.AT_LOAD
        done = _best(graphs.planned(packing), portable, check, provider, progress)
        if done.model is not None or packing is Packing.AT_LOAD or not _broke(done):
            return done
        progress("packing weights at load: the file with packed ones does not run")
        unpacked = [_with_fallback(r, done) for r in graphs.planned(Packing.AT_LOAD)]
        return _best(unpacked, portable, check, provider, progress)


def _best(
    fused: Sequence[Rewriting],
    portable: Rewriting,
    check: Check,
    provider: str,
    progress: Callable[[str], None],
) -> Optimized:
    """Prove the best of the runtime's graphs and of the graph as it is."""
    graphs = list(fused)
    if _may_need_less(portable, graphs[0], provider):
        graphs.append(portable)
    return best_candidate([Candidate(rewriting, check, progress) for rewriting in graphs])


def _with_fallback(rewriting: Rewriting, failed: Optimized) -> Rewriting:
    """Return a rewriting that says why its weights are not packed into the file."""
    found = failed.plan.report.validation
    why = found.notes[0] if found is not None and found.notes else "the file does not run"
    lost = Fallback(WEIGHTS_UNPACKED, "weights are not packed into the file", why)
    planned = replace(rewriting.planned, plan=fell_back(rewriting.planned.plan, lost))
    return replace(rewriting, planned=planned)


def _broke(done: Optimized) -> bool:
    """Whether a written model did not run, which says nothing of its outputs."""
    found = done.plan.report.validation
    return found is not None and found.status == "failed" and found.max_abs_diff is None


@dataclass(frozen=True, slots=True)
class _Graphs:
    """The graphs that the runtime makes of one model."""

    file: ModelFile
    settings: Settings
    targets: Targets
    folder: Path
    provider: str

    def planned(
        self, packing: Packing, kinds: Sequence[str] = (FUSED, UNFUSED)
    ) -> list[Rewriting]:
        """Dump and plan the runtime's graph, and that without its costly fusions."""
        from memplan_cli.runtime.graph.offline import optimise_offline

        taken = self.file.data_files
        names = [dump_name(self.targets.model, taken, kind) for kind in kinds]
        refuse_foreign_weights(self.targets.model, [f"{names[0]}.data"])
        folder = self.folder / packing.name
        folder.mkdir()
        paths = [folder / name for name in names]
        dumps = optimise_offline(self.file.path, paths, self.provider, packing)
        refuse_foreign_weights(
            self.targets.model, [f"{dump.path.name}.data" for dump in dumps]
        )
        return [self._ordered(dump) for dump in dumps]

    def _ordered(self, dump: Dump) -> Rewriting:
        """Plan the dump, and the dump with readers for what nobody reads; return the better."""
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.onnx_io.runs.runnable import unread_outputs, with_readers
        from memplan_cli.onnx_io.writing.verify import graph_differences

        path = dump.path
        model = load_model(path)
        plain = self._plan(dump, ModelFile.of(path, model))
        vars_ = plain.planned.program.vars.values()
        sizes = {v.name: size_of(v.shape, v.dtype) for v in vars_ if not v.block}
        worth = [
            name
            for name in unread_outputs(model)
            if (size := sizes.get(name)) is not None and size.coefficient > _READERS_COST
        ]
        if not worth:
            return plain
        copy = path.with_name(f"{path.stem}.read{path.suffix}")
        copy.write_bytes(with_readers(model, worth).SerializeToString())
        read = self._plan(dump, ModelFile.of(copy, load_model(copy)))
        changed = graph_differences(model, read.file.model)
        if changed or not _may_need_less(read, plain, self.provider):
            return plain
        note = f"{len(worth)} outputs that nobody reads are read by a Shape node, which frees them"
        planned = replace(read.planned, plan=warned(read.planned.plan, note))
        return replace(read, planned=planned)

    def _plan(self, dump: Dump, file: ModelFile) -> Rewriting:
        from memplan_cli.planning.choosing.candidate import Runtime
        from memplan_cli.planning.planner import make_plan
        from memplan_cli.runtime.facts import required_version
        from memplan_cli.runtime.graph.offline import offline_metadata, offline_program
        from memplan_cli.runtime.graph.settle import settled

        dims, provider = self.settings.dims, self.provider
        program = offline_program(file.path, dims, provider, dump.shapes)
        runtime = Runtime(
            runtime_aliasing(provider), partial(settled, dims=dims, provider=provider)
        )
        source = replace(source_of(self.file), block=dump.block)
        source = knowing(file.model, source, self.settings)
        planned = make_plan(program, self.settings, source, runtime=runtime)
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
    from memplan_cli.runtime.probe import load_table

    table = load_table(provider)
    return Aliasing(frozenset(table.alias), table.in_place)


def _may_need_less(one: Rewriting, other: Rewriting, provider: str) -> bool:
    """Whether running one rewriting as it stands is not predicted to need as much or more."""
    first, second = (_predicted_peak(rewriting, provider) for rewriting in (one, other))
    return first is None or second is None or first < second


def _predicted_peak(rewriting: Rewriting, provider: str) -> int | None:
    """Return the first run's peak in bytes, of a file that is run in its own order."""
    from memplan_cli.runtime.graph.offline import FREED_AT_ONCE
    from memplan_cli.runtime.simulation.predict import Executed, predict

    executed = Executed(rewriting.planned.program, rewriting.settings.dims)
    return predict(executed, FREED_AT_ONCE, provider).first_run_peak
