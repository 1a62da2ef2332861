"""Plans of models, made in memory or read from files."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from memplan_cli.api.files.file_names import PLAN_SUFFIX
from memplan_cli.api.files.model_file import plan_model, read_model
from memplan_cli.api.files.sources import is_path, on_files
from memplan_cli.api.optimized import warned
from memplan_cli.api.profiles import for_all, plan_profiles
from memplan_cli.api.request import settings_of
from memplan_cli.core.program import Origin
from memplan_cli.core.results.plan import Plan
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.reporting.plans.exports import Interface, Port

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.profiles import Profiles
    from memplan_cli.api.request import FilePath, Request
    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.settings.settings import Settings


ReportExtra = Literal["process", "dry-run"]


class NotebookPlan(Plan):
    """A plan that a notebook shows as its report; equal to a `Plan` with the same content."""

    def __eq__(self, other: object) -> bool:
        """Return whether another plan has the same content."""
        return isinstance(other, Plan) and _field_values(self) == _field_values(other)

    __hash__ = Plan.__hash__

    def _repr_html_(self) -> str:
        from memplan_cli.api.plan_sections import FEATURE_SECTIONS
        from memplan_cli.reporting.pages.plan_page import notebook_report

        return notebook_report(self, FEATURE_SECTIONS)


def _notebook_plan(plan: Plan) -> NotebookPlan:
    return NotebookPlan(*_field_values(plan))


def _field_values(plan: Plan) -> tuple[Any, ...]:
    return tuple(getattr(plan, field.name) for field in fields(plan))


def plan(
    model: ModelSource,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    allocate: Allocator | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Plan:
    """Plan a model in memory; nothing is written.

    The model is run if its dims or sizes cannot be found otherwise, unless settings forbid runs.

    Args:
        model: The ONNX file, its bytes or a ``ModelProto``.
        settings: What decides the plan.
        progress: Called with the name of each stage.
        allocate: Packs the arenas of level 2 in place of memplan's search. If its arena is
            taller than the pool of level 1, that pool is the plan.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``level=1, dims={"batch": 8}``.

    Raises:
        MemplanError: the model or a setting is wrong.
        InvalidLayoutError: the allocator gave a layout that is not safe.
    """

    def work(path: Path) -> Plan:
        chosen = settings_of(path, settings, config, options)
        return plan_model(read_model(path), chosen, progress, allocate).plan

    return _notebook_plan(on_files((model,), work))


def interface_of(model: FilePath, settings: Settings) -> Interface:
    """Return what goes into a model and what comes out, dims bound as in its plan.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    from memplan_cli.api.files.assuming import settle_in_numbers

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
    path: ModelSource | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    profiles: Profiles | None = None,
    extras: Collection[ReportExtra] = (),
    config: FilePath | None = None,
    **options: object,
) -> Plan:
    """Return the plan in a file, or plan a model.

    If a model beside the plan's file has another digest than the plan says, a warning says so.

    Args:
        path: A plan, a model, or None: the newest ``*.memplan.json`` of this folder.
        settings: What decides the plan of a model.
        progress: Called with the name of each stage.
        profiles: Several values of symbols: one plan that holds for all of them.
        extras: ``process`` predicts what the runtime needs, ``dry-run`` plans a training
            step of the model too.
        config: As for `plan`.
        options: As for `plan`.

    Raises:
        MemplanError: there is none, or it is not valid.
    """
    source = newest_plan(Path.cwd()) if path is None else path
    if _is_plan(source):
        file = Path(cast("FilePath", source))
        if settings or profiles:
            raise SettingsError(
                f"settings decide a plan, and {file} is one already",
                hint="name the model instead",
            )
        return _notebook_plan(_stored_plan(file))
    if profiles and "process" in extras:
        raise SettingsError(
            "a process is that of one size, and profiles are several",
            hint='leave "process" or profiles out',
        )

    def work(file: Path) -> Plan:
        chosen = settings_of(file, settings, config, options)
        found = _planned_with(file, chosen, profiles, extras, progress)
        if "dry-run" not in extras:
            return found
        from memplan_cli.api.dry_run import with_dry_run

        return with_dry_run(found, file, chosen, progress)

    return _notebook_plan(on_files((source,), work))


def _stored_plan(path: Path) -> Plan:
    from memplan_cli.api.files.provenance import stale_models
    from memplan_cli.planning.plan_file import read_plan

    found = read_plan(path)
    return warned(found, *stale_models(found, path))


def _planned_with(
    path: Path,
    settings: Settings,
    profiles: Profiles | None,
    extras: Collection[ReportExtra],
    progress: Progress | None,
) -> Plan:
    if profiles:
        return plan_profiles(read_model(path), settings, profiles, progress).plan
    if "process" in extras:
        from memplan_cli.api.process import report_with_prediction

        return report_with_prediction(path, settings, progress)
    return plan_model(read_model(path), settings, progress).plan


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
    settings = replace(kept, checkpoints=(), donate={}, chunk="none")
    return plan_model(read_model(Path(model)), settings).plan


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
    say_warnings(path, (*found.report.warnings, *stale), request)
    say_assumed(path, found, request)
    return found


def say_assumed(path: FilePath, plan: Plan, request: Request) -> None:
    """Say which dims nobody bound: the numbers are at these."""
    from memplan_cli.reporting.hints import assumed_dims, assumed_lines, free_inputs

    for line in assumed_lines(assumed_dims(plan.report), free_inputs(plan.report)):
        request.warn(f"note: {path}: {line}")


def say_warnings(path: FilePath, warnings: Sequence[str], request: Request) -> None:
    """Say what a plan warns of, with the path before it."""
    for warning in warnings:
        request.warn(f"warning: {path}: {warning}")


def planned_or_stale(path: Path, request: Request) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan, and what says that one in a file is not that of the models beside it."""
    from memplan_cli.api.files.provenance import named_from_here, stale_models
    from memplan_cli.planning.plan_file import read_plan

    request.progress("planning")
    if path.suffix == ".json":
        found = read_plan(path)
        return named_from_here(found, path), tuple(stale_models(found, path))
    settings = request.load(path)
    return plan_model(read_model(path), settings, request.progress).plan, ()


def plan_and_name(source: ModelSource | Plan, request: Request) -> tuple[Plan, str]:
    """Return the plan of a plan, a plan file or a model, and the name of its model or file."""
    if isinstance(source, Plan):
        return source, source.report.model.path
    found = on_files((source,), lambda path: planned(path, request))
    name = str(Path(cast("FilePath", source))) if is_path(source) else found.report.model.path
    return found, name


def reject_settings_of_plans(sources: Sequence[ModelSource | Plan], request: Request) -> None:
    """Reject settings if all sources are plans, for which nothing is decided any more.

    Raises:
        SettingsError: one was given.
    """
    given = {"config": request.config, **request.overrides}
    named = [name for name, value in given.items() if value not in (None, (), [])]
    if named and all(isinstance(source, Plan) or _is_plan(source) for source in sources):
        raise SettingsError(
            f"{named[0]} decides a plan, and this is one already",
            hint="give the model instead",
        )


def _is_plan(source: ModelSource) -> bool:
    return is_path(source) and Path(cast("FilePath", source)).suffix == ".json"


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
