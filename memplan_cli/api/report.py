"""``memplan report``, and `plan`: the plan of a model in memory, or of a plan file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from memplan_cli.api.model_or_plan import is_plan_file, reject_settings_of_plans
from memplan_cli.api.models.file_names import PLAN_SUFFIX
from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.api.models.profiles import plan_profiles
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import PLAN_SETTINGS, accepts_option_names
from memplan_cli.api.request import request_of, settings_of
from memplan_cli.core.program import Origin
from memplan_cli.core.results.plan import Plan
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.reporting.plans.exports import Interface, Port

if TYPE_CHECKING:
    from collections.abc import Collection

    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.program import VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.settings.settings import Settings


ReportExtra = Literal["process", "dry-run"]


class NotebookPlan(Plan):
    """A plan that a notebook shows as its report; equal to a `Plan` with the same content."""

    @classmethod
    def of(cls, plan: Plan) -> NotebookPlan:
        """Return a plan as one for notebooks."""
        return cls(*_field_values(plan))

    def __eq__(self, other: object) -> bool:
        """Return whether another plan has the same content."""
        return isinstance(other, Plan) and _field_values(self) == _field_values(other)

    __hash__ = Plan.__hash__

    def _repr_html_(self) -> str:
        from memplan_cli.api.plan_sections import FEATURE_SECTIONS
        from memplan_cli.reporting.pages.plan_page import notebook_report

        return notebook_report(self, FEATURE_SECTIONS)


def _field_values(plan: Plan) -> tuple[Any, ...]:
    return tuple(getattr(plan, field.name) for field in fields(plan))


_SETTINGS = PLAN_SETTINGS | {"expose"}
"""Settings of a plan, also if it is not written."""


@accepts_option_names(settings=_SETTINGS)
def plan(
    model: ModelSource,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    allocate: Allocator | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Plan:
    """Return the plan of a model; no file is written.

    The model is run if its dims or sizes cannot be found otherwise, unless settings forbid runs.

    Args:
        model: The ONNX file, its bytes or a ``ModelProto``.
        settings: What decides the plan.
        progress: Called with the name of each stage.
        allocate: Packs the arenas of level 2 in place of memplan's search. The plan has the pool
            of level 1 instead if that is smaller than its arena.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``level=1, dims={"batch": 8}``.

    Raises:
        MemplanError: the model or a setting is wrong.
        InvalidLayoutError: the allocator gave a layout that is not safe.
    """
    with model_paths(model) as files:
        settings = settings_of(files.path, settings, config, options)
        planned = plan_model(read_model(files.path), settings, progress, allocate)
        return NotebookPlan.of(files.without_temporary_folder(planned.plan))


@accepts_option_names(settings=_SETTINGS, dry_run={"extras": ("dry-run",)})
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

    If a model beside the plan's file has another digest than the plan says, a warning says so. A call may have
    the names of command-line options as keywords: ``dry_run=True`` stands for ``extras=("dry-run",)``.

    Args:
        path: A plan, a model, or None: the newest ``*.memplan.json`` of this folder.
        settings: What decides the plan of a model.
        progress: Called with the name of each stage.
        profiles: Several values of dims: one plan that holds for all of them.
        extras: ``process`` predicts what the runtime needs, ``dry-run`` plans a training
            step of the model too.
        config: As for `plan`.
        options: As for `plan`.

    Raises:
        MemplanError: there is no plan file here, or a file or a setting is wrong.
    """
    source = newest_plan(Path.cwd()) if path is None else path
    if is_plan_file(source):
        # Everything in this call that would have an effect on a model.
        option_names = [
            *(["settings"] if settings else []),
            *request_of(config, options).option_names,
            *(f"--{extra}" for extra in extras),
            *(["--dim"] if profiles else []),  # the option that gives a dim several values
        ]
        reject_settings_of_plans((source,), option_names)
        return NotebookPlan.of(_stored_plan(Path(cast("FilePath", source))))
    if profiles and "process" in extras:
        raise SettingsError(
            "a process can only be predicted for one size, and profiles have several",
            hint='remove "process" or profiles',
        )
    with model_paths(source) as files:
        settings = settings_of(files.path, settings, config, options)
        if profiles:
            result = plan_profiles(read_model(files.path), settings, profiles, progress).plan
        elif "process" in extras:
            from memplan_cli.api.process import plan_with_prediction

            result = plan_with_prediction(files.path, settings, progress)
        else:
            result = plan_model(read_model(files.path), settings, progress).plan
        if "dry-run" in extras:
            from memplan_cli.api.dry_run import with_dry_run

            result = with_dry_run(result, files.path, settings, progress)
        # A model in memory was written to a temporary folder, whose name is removed from warnings.
        return NotebookPlan.of(files.without_temporary_folder(result))


def _stored_plan(path: Path) -> Plan:
    """Read a plan file; models beside it that it does not belong to are warnings."""
    from memplan_cli.api.models.plan_files import stale_models
    from memplan_cli.planning.plan_file import read_plan

    stored = read_plan(path)
    return stored.with_warnings(*stale_models(stored, path))


def newest_plan(folder: FilePath) -> Path:
    """Return the plan file of a folder that was written last.

    Raises:
        PlanError: the folder has no plan file.
    """
    plan_files = sorted(
        Path(folder).glob(f"*{PLAN_SUFFIX}"), key=lambda p: (p.stat().st_mtime_ns, p.name)
    )
    if not plan_files:
        raise PlanError(
            f"there is no *{PLAN_SUFFIX} in {folder}",
            hint="run `memplan optimize MODEL` first, or name a plan or a model",
        )
    return plan_files[-1]


def interface_of(model: FilePath, settings: Settings) -> Interface:
    """Return the inputs and outputs of a model, with dims bound as in its plan."""
    from memplan_cli.api.models.resolve_sizes import resolve_to_numbers

    path = Path(model)
    resolved = resolve_to_numbers(read_model(path).lazy, path, settings)
    program, dims = resolved.loaded.program, resolved.settings.dims

    def port(identity: VarId) -> Port:
        var = program.vars[identity]
        shape = None if var.shape is None else tuple(bind_dim(d, dims) for d in var.shape)
        size = size_of(shape, var.dtype)
        size_bytes = None if size is None or size.symbols else size.coefficient
        return Port(var.name or str(identity), var.dtype, shape, size_bytes)

    inputs = (v for v in program.body.inputs if program.vars[v].origin is Origin.INPUT)
    return Interface(tuple(map(port, inputs)), tuple(map(port, program.body.outputs)))
