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

from memplan_cli.core.results.observations import CPU, PROVIDERS
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import RuntimeUnavailableError, SettingsError
from memplan_cli.workflows.best import best_candidate
from memplan_cli.workflows.candidates import (
    Candidate,
    Optimized,
    warned,
    write_unproved,
)
from memplan_cli.workflows.files.binding import binding_of
from memplan_cli.workflows.files.model_file import ModelFile, plan_model, source_of
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
    from memplan_cli.runtime.measuring.measure import Trial
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
    from memplan_cli.runtime.graph.fusions import costly_fusions
    from memplan_cli.runtime.measuring.measure import Trial
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
        progress("letting the runtime optimise the graph")
        trial = None
        if check is not None and provider == CPU:
            binding = binding_of(settings)
            trial = Trial(dims=binding.dims, feeds=binding.feeds, timeout=check.timeout)
        dumps = _Dumps(file, settings, targets, Path(folder), provider, trial)
        fused = dumps.without(())
        if check is None:
            return write_unproved(fused)
        check = replace(check, provider=settings.target)
        plain = replace(settings, target="portable")
        portable = Rewriting(file, plan_model(file, plain, progress), plain, targets)
        graphs = [fused]
        fusions = costly_fusions(fused.planned.program)
        if fusions:
            graphs.append(dumps.without(fusions))
        if _may_need_less(portable, fused, provider):
            graphs.append(portable)
        return best_candidate([Candidate(rewriting, check, progress) for rewriting in graphs])


@dataclass(frozen=True, slots=True)
class _Dumps:
    """The graphs that the runtime makes of one model; ``trial`` where they may be run first."""

    file: ModelFile
    settings: Settings
    targets: Targets
    folder: Path
    provider: str
    trial: Trial | None

    def without(self, fusions: Sequence[str]) -> Rewriting:
        """Dump and plan the graph in which some fusions are left out."""
        from memplan_cli.runtime.graph.offline import optimise_offline

        taken = self.file.data_files
        name = dump_name(self.targets.model, taken, UNFUSED if fusions else FUSED)
        refuse_foreign_weights(self.targets.model, [f"{name}.data"])
        dump = self.folder / name
        if self.trial is None:
            optimise_offline(self.file.path, dump, self.provider, fusions=fusions)
        else:
            _pack(self.file.path, dump, self.trial, fusions)
        return _fused(self.file, dump, self.settings, self.targets, self.provider)


def _pack(model: Path, dump: Path, trial: Trial, fusions: Sequence[str] = ()) -> None:
    """Dump with packed weights in the file, and without where the runtime fails with them.

    Such files crash ONNX Runtime 1.31.1 on some models (a swin transformer): only one that
    has run is worth going on with, and without a run none is made.
    """
    from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN, Packing, optimise_offline
    from memplan_cli.runtime.measuring.measure import record

    optimise_offline(model, dump, CPU, Packing.IN_FILE, fusions)
    try:
        record(dump, RUN_AS_WRITTEN, replace(trial, provider="cpu", runs=2, timing_runs=0))
    except RuntimeUnavailableError:
        dump.with_name(f"{dump.name}.data").unlink(missing_ok=True)
        optimise_offline(model, dump, fusions=fusions)


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


def _fused(
    file: ModelFile, dump: Path, settings: Settings, targets: Targets, provider: str
) -> Rewriting:
    """Plan the dump, and the dump with readers for what nobody reads; return the better."""
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.runs.runnable import unread_outputs, with_readers
    from memplan_cli.onnx_io.writing.verify import graph_differences

    model = load_model(dump)
    plain = _planned(file, ModelFile.of(dump, model), settings, targets, provider)
    vars_ = plain.planned.program.vars.values()
    sizes = {v.name: size_of(v.shape, v.dtype) for v in vars_ if not v.block}
    worth = [
        name
        for name in unread_outputs(model)
        if (size := sizes.get(name)) is not None and size.coefficient > _READERS_COST
    ]
    if not worth:
        return plain
    copy = dump.with_name(f"{dump.stem}.read{dump.suffix}")
    copy.write_bytes(with_readers(model, worth).SerializeToString())
    read = _planned(file, ModelFile.of(copy, load_model(copy)), settings, targets, provider)
    if graph_differences(model, read.file.model) or not _may_need_less(read, plain, provider):
        return plain
    note = f"{len(worth)} outputs that nobody reads are read by a Shape node, which frees them"
    planned = replace(read.planned, plan=warned(read.planned.plan, note))
    return replace(read, planned=planned)


def _planned(
    original: ModelFile, dump: ModelFile, settings: Settings, targets: Targets, provider: str
) -> Rewriting:
    from memplan_cli.planning.candidate import Runtime
    from memplan_cli.planning.planner import make_plan
    from memplan_cli.runtime.facts import required_version
    from memplan_cli.runtime.graph.offline import offline_metadata, offline_program
    from memplan_cli.runtime.graph.settle import settled

    program = offline_program(dump.path, settings.dims, provider)
    runtime = Runtime(
        runtime_aliasing(provider),
        partial(settled, dims=settings.dims, provider=provider),
    )
    planned = make_plan(program, settings, source_of(original), runtime=runtime)
    return Rewriting(
        dump,
        planned,
        settings,
        targets,
        original=original.path,
        notes=offline_metadata(required_version(), provider),
    )
