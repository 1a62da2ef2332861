"""What plans and compares plans: `plan`, `report`, `optimize`, `diff`, `why`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.workflows.api.given import request, settings_of
from memplan_cli.workflows.files.sources import is_path, on_files

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memplan_cli.core.problem import Allocator
    from memplan_cli.core.progress import Progress
    from memplan_cli.reporting.findings.process import ProcessStory
    from memplan_cli.reporting.findings.why import PeakStory, TensorStory
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.diff import Changed
    from memplan_cli.workflows.files.sources import ModelSource
    from memplan_cli.workflows.optimized import Optimized
    from memplan_cli.workflows.profiles import Profiles
    from memplan_cli.workflows.request import FilePath, Request

ReportExtra = Literal["process", "dry-run"]


class NotebookPlan(Plan):
    """A plan that a notebook shows as its report."""

    def _repr_html_(self) -> str:
        from memplan_cli.reporting.plans.html import notebook_report

        return notebook_report(self)


def _notebook_plan(plan: Plan) -> NotebookPlan:
    return NotebookPlan(*(getattr(plan, field.name) for field in fields(plan)))


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

    Where its dims or sizes cannot be told otherwise it is run, unless settings forbid that.

    Args:
        model: The ONNX file, its bytes or a ``ModelProto``.
        settings: What decides the plan.
        progress: Told what is being done.
        allocate: Packs the arenas of level 2 in place of memplan's search. Where its arena
            is taller than the pool of level 1, that pool is the plan, as for any other.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``level=1, dims={"batch": 8}``.

    Raises:
        MemplanError: the model or a setting is wrong.
        InvalidLayoutError: the allocator gave a layout that is not safe.
    """
    from memplan_cli.workflows.report import plan

    def work(path: Path) -> Plan:
        chosen = settings_of(path, settings, config, options)
        return plan(path, chosen, progress, allocate=allocate)

    return _notebook_plan(on_files((model,), work))


def report(  # noqa: PLR0913 - what the command takes, by name
    path: ModelSource | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    *,
    profiles: Profiles | None = None,
    extras: Collection[ReportExtra] = (),
    config: FilePath | None = None,
    **options: object,
) -> Plan:
    """Return the plan in a file, or make one of a model.

    Where a model beside the file is another one than the plan is about, a warning says so.

    Args:
        path: A plan, a model, or None: the newest ``*.memplan.json`` of this folder.
        settings: What decides the plan of a model.
        progress: Told what is being done.
        profiles: Several values of symbols: one plan that holds for all of them.
        extras: ``process`` predicts what the runtime needs, ``dry-run`` plans a training
            step of the model too.
        config: As for `plan`.
        options: As for `plan`.

    Raises:
        MemplanError: there is none, or it is not valid.
    """
    from memplan_cli.workflows.report import newest_plan

    source = newest_plan(Path.cwd()) if path is None else path
    if is_path(source) and Path(cast("FilePath", source)).suffix == ".json":
        return _notebook_plan(
            _stored(Path(cast("FilePath", source)), bool(settings or profiles))
        )

    def work(file: Path) -> Plan:
        chosen = settings_of(file, settings, config, options)
        return _reported(file, chosen, profiles, extras, progress)

    return _notebook_plan(on_files((source,), work))


def _stored(path: Path, decided: bool) -> Plan:  # noqa: FBT001 - what was given besides, no mode
    from memplan_cli.workflows.report import report

    if decided:
        raise SettingsError(
            f"settings decide a plan, and {path} is one already", hint="name the model instead"
        )
    return report(path)


def _reported(
    path: Path,
    settings: Settings,
    profiles: Profiles | None,
    extras: Collection[ReportExtra],
    progress: Progress | None,
) -> Plan:
    from memplan_cli.workflows.dry_run import with_dry_run
    from memplan_cli.workflows.process import report_with_prediction
    from memplan_cli.workflows.report import report

    if profiles and "process" in extras:
        raise SettingsError(
            "a process is that of one size, and profiles are several",
            hint='leave "process" or profiles out',
        )
    if "process" in extras:
        found = report_with_prediction(path, settings, progress)
    else:
        found = report(path, settings, progress, profiles=profiles)
    return with_dry_run(found, path, settings, progress) if "dry-run" in extras else found


def optimize(  # noqa: PLR0913 - what the command takes, by name
    model: ModelSource,
    settings: Settings | None = None,
    *,
    profiles: Profiles | None = None,
    out: FilePath | None = None,
    plan_file: FilePath | None = None,
    settings_out: FilePath | None = None,
    certificate: FilePath | None = None,
    check: Check | None = DEFAULT_CHECK,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Optimized:
    """Plan a model, write it in its new order with its plan, and prove it.

    Args:
        model: The ONNX file, its bytes or a ``ModelProto``; it is never changed.
        settings: What decides the plan.
        profiles: Several values of symbols: one plan that holds for all of them, and a row
            for each in its report. The models are run with the largest.
        out: The file to write; ``<stem>.memplan.onnx`` beside the model by default.
        plan_file: The plan's file; ``out`` with the suffix ``.json`` by default.
        settings_out: Where the runtime's settings go as Python, and as JSON beside it.
        certificate: Where a witness of each bound of the plan goes.
        check: How to compare both models; None leaves the comparison out, and so do
            settings that allow no run.
        progress: Told what is being done.
        config: As for `plan`.
        options: As for `plan`.

    Raises:
        MemplanError: something could not work. Nothing is written then, nor if the
            comparison fails or the budget cannot be met.
    """
    from memplan_cli.workflows.optimize import optimize

    if out is None and not is_path(model):
        raise SettingsError(
            "a model in memory has no folder to write beside", hint="name the file with out="
        )

    def work(path: Path) -> Optimized:
        return optimize(
            path,
            settings_of(path, settings, config, options),
            profiles=profiles,
            out=out,
            plan_file=plan_file,
            settings_out=settings_out,
            certificate=certificate,
            check=check,
            progress=progress,
        )

    return on_files((model,), work)


def diff(
    before: ModelSource | Plan,
    after: ModelSource | Plan,
    *,
    config: FilePath | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Changed:
    """Say what changed from one model or plan to another.

    Args:
        before: A model or a plan, as a file or in memory.
        after: Another.
        config: A settings file, for what has to be planned.
        progress: Told what is being done.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: a file or a setting is wrong.
    """
    from memplan_cli.workflows.diff import changed

    asked = request(config, options, progress)
    _reject_unused((before, after), asked)
    first, second = (_plan_and_name(each, asked) for each in (before, after))
    return changed(first, second)


def why(
    model: ModelSource | Plan,
    tensor: str | None = None,
    *,
    of: Literal["peak", "process"] = "peak",
    config: FilePath | None = None,
    progress: Progress | None = None,
    **options: object,
) -> PeakStory | TensorStory | ProcessStory:
    """Say who needs the memory at the peak, or who keeps one tensor alive.

    Args:
        model: A model or a plan, as a file or in memory.
        tensor: The tensor to explain; None: the peak.
        of: ``process`` attributes the process that a model is predicted to take.
        config: A settings file, for what has to be planned.
        progress: Told what is being done.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: the file or a setting is wrong, or there is no such tensor.
    """
    from memplan_cli.reporting.findings.why import why_peak, why_tensor
    from memplan_cli.workflows.process import why_process

    asked = request(config, options, progress)
    _reject_unused((model,), asked)
    if of == "process":
        if tensor is not None:
            raise SettingsError(
                "tensor explains a tensor, and of='process' a process",
                hint="give one of them",
            )
        if isinstance(model, Plan):
            raise PlanError("a process is that of a model", hint="give the model")
        return on_files((model,), lambda path: why_process(path, asked))
    found, _ = _plan_and_name(model, asked)
    return why_peak(found) if tensor is None else why_tensor(found, tensor)


def _reject_unused(given: Sequence[ModelSource | Plan], asked: Request) -> None:
    """Reject settings where all that is given is plans.

    Raises:
        SettingsError: one was given.
    """
    named = [*(["config"] if asked.config else []), *asked.overrides]
    if named and all(map(_is_plan, given)):
        raise SettingsError(
            f"{named[0]} decides a plan, and this is one already",
            hint="give the model instead",
        )


def _is_plan(given: ModelSource | Plan) -> bool:
    return isinstance(given, Plan) or (
        is_path(given) and Path(cast("FilePath", given)).suffix == ".json"
    )


def _plan_and_name(given: ModelSource | Plan, asked: Request) -> tuple[Plan, str]:
    """Return a plan, and what the model or the file of it is called."""
    from memplan_cli.workflows.report import planned

    if isinstance(given, Plan):
        return given, given.report.model.path
    found = on_files((given,), lambda path: planned(path, asked))
    name = str(given) if is_path(given) else found.report.model.path
    return found, name
