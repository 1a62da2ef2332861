"""For one provider: the graph as the runtime optimises it, in the order that needs least.

The runtime's own optimisation would undo an order, so it is done offline, before: the
optimised graph is dumped, ordered by what this runtime shares and keeps, and run as it
stands. Fusion can also cost memory, so the graph as it is competes, and the better stays.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.evidence import CPU, CUDA
from memplan_cli.modelfile import ModelFile, plan_model, source_of
from memplan_cli.optimizing import (
    Check,
    Optimized,
    Rewriting,
    Targets,
    Trial,
    best_trial,
    write_unproved,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.settings import Settings

PROVIDERS = {"cpu": CPU, "cuda": CUDA}


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
    """
    from memplan_cli.runtime.offline import optimise_offline
    from memplan_cli.runtime.session import resolve_provider

    provider = resolve_provider(settings.target)
    with tempfile.TemporaryDirectory(prefix="memplan-offline-") as folder:
        progress("letting the runtime optimise the graph")
        dump = Path(folder) / targets.model.name
        optimise_offline(file.path, dump, provider)
        fused = _fused(file, dump, settings, targets, provider)
        if check is None:
            return write_unproved(fused)
        check = replace(check, provider=settings.target)
        plain = replace(settings, target="portable")
        portable = Rewriting(file, plan_model(file, plain, progress), plain, targets)
        trials = [Trial(rewriting, check, progress) for rewriting in (fused, portable)]
        return best_trial(trials)


def runtime_aliasing(provider: str) -> Aliasing:
    """Return the operators that share bytes in the runtime, as they were probed."""
    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.runtime.probe import load_table

    table = load_table(provider)
    return Aliasing(frozenset(table.alias), table.in_place)


def _fused(
    file: ModelFile, dump: Path, settings: Settings, targets: Targets, provider: str
) -> Rewriting:
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.planner import make_plan
    from memplan_cli.runtime.facts import runtime_version
    from memplan_cli.runtime.offline import offline_metadata, offline_program

    program = offline_program(dump, settings.dims, provider)
    aliasing = runtime_aliasing(provider)
    planned = make_plan(program, settings, source_of(file), runtime=aliasing)
    return Rewriting(
        ModelFile(dump, load_model(dump)),
        planned,
        settings,
        targets,
        original=file.path,
        notes=offline_metadata(runtime_version(), provider),
    )
