"""Plans of models, made in memory or read from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.reporting.plans.exports import Interface, Port
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.files.file_names import PLAN_SUFFIX
from memplan_cli.workflows.files.model_file import plan_model, read_model
from memplan_cli.workflows.optimized import warned
from memplan_cli.workflows.profiles import for_all, plan_profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.workflows.profiles import Profiles
    from memplan_cli.workflows.request import FilePath, Request


def plan(
    model: FilePath,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    allocate: Allocator | None = None,
) -> Plan:
    """Plan a model file as `memplan_cli.plan` does.

    Raises:
        MemplanError: the model or a setting is wrong.
        InvalidLayoutError: the allocator gave a layout that is not safe.
    """
    file = read_model(Path(model))
    return plan_model(file, settings or Settings(), progress, allocate).plan


def interface_of(model: FilePath, settings: Settings) -> Interface:
    """Return what goes into a model and what comes out, dims bound as in its plan.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    from memplan_cli.workflows.files.assuming import settle_in_numbers

    path = Path(model)
    found = settle_in_numbers(read_model(path).lazy, path, settings)
    program, dims = found.loaded.program, found.settings.dims

    def port(identity: VarId) -> Port:
        var = program.vars[identity]
        shape = None if var.shape is None else tuple(bind_dim(d, dims) for d in var.shape)
        size = size_of(shape, var.dtype)
        known = None if size is None or size.symbols else size.coefficient
        return Port(var.name or str(identity), var.dtype, shape, known)

    inputs = (v for v in program.body.inputs if program.vars[v].origin is Origin.INPUT)
    return Interface(tuple(map(port, inputs)), tuple(map(port, program.body.outputs)))


def report(
    path: FilePath | None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    profiles: Profiles | None = None,
) -> Plan:
    """Return the plan in a file, or make one of a model, as `memplan_cli.report` does.

    Raises:
        MemplanError: there is none, or it is not valid.
    """
    from memplan_cli.planning.checking.plan_file import read_plan
    from memplan_cli.workflows.files.provenance import stale_models

    path = newest_plan(Path.cwd()) if path is None else Path(path)
    if path.suffix == ".json":
        found = read_plan(path)
        return warned(found, *stale_models(found, path))
    if profiles:
        chosen = settings or Settings()
        return plan_profiles(read_model(path), chosen, profiles, progress).plan
    return plan(path, settings, progress)


def in_files_order(
    model: FilePath, settings: Settings, profiles: Profiles | None = None
) -> Plan:
    """Plan a model again with its nodes where the file has them, to hold a plan against it.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    kept = replace(
        for_all(settings, profiles or {}), order="keep", recompute="none", budget=None
    )
    return plan(model, replace(kept, checkpoints=(), donate={}, chunk="none"))


def newest_plan(folder: FilePath) -> Path:
    """Return the plan file of a folder that was written last.

    Raises:
        PlanError: there is none.
    """
    found = sorted(
        Path(folder).glob(f"*{PLAN_SUFFIX}"), key=lambda p: (p.stat().st_mtime_ns, p.name)
    )
    if not found:
        raise PlanError(
            f"there is no *{PLAN_SUFFIX} in {folder}",
            hint="run `memplan optimize MODEL` first, or name a plan or a model",
        )
    return found[-1]


def planned(path: FilePath, request: Request) -> Plan:
    """Return the plan in a file, or that of a model under its settings.

    The request hears each warning of the plan, with the path before it.

    Raises:
        MemplanError: the file or a setting is wrong.
    """
    found, stale = planned_or_stale(Path(path), request)
    warn(path, (*found.report.warnings, *stale), request)
    say_assumed(path, found, request)
    return found


def say_assumed(path: FilePath, plan: Plan, request: Request) -> None:
    """Say which dims nobody bound: the numbers are at these."""
    from memplan_cli.reporting.findings.assumed import assumed_lines, assumed_of
    from memplan_cli.reporting.findings.hints import free_inputs

    for line in assumed_lines(assumed_of(plan.report), free_inputs(plan.report)):
        request.warn(f"note: {path}: {line}")


def warn(path: FilePath, warnings: Sequence[str], request: Request) -> None:
    """Say what a plan warns of, with the path before it."""
    for warning in warnings:
        request.warn(f"warning: {path}: {warning}")


def planned_or_stale(path: Path, request: Request) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan, and what says that one in a file is not that of the models beside it."""
    from memplan_cli.planning.checking.plan_file import read_plan
    from memplan_cli.workflows.files.provenance import named_from_here, stale_models

    request.progress("planning")
    if path.suffix == ".json":
        found = read_plan(path)
        return named_from_here(found, path), tuple(stale_models(found, path))
    return plan(path, request.load(path), request.progress), ()


def reject_unused_settings(paths: Sequence[Path], given: Sequence[str]) -> None:
    """Reject settings where nothing is planned: an option without effect is a trap.

    Raises:
        SettingsError: all paths are plans, and settings were given.
    """
    if given and all(path.suffix == ".json" for path in paths):
        raise SettingsError(
            f"--{given[0]} decides a plan, and {paths[0]} is one already",
            hint="name the model instead",
        )
