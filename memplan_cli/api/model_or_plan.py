"""The plan of a source that is a model or a plan file, for commands that accept both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.api.models.sources import is_path, model_paths
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath, Request


def plan_and_name(source: ModelSource | Plan, request: Request) -> tuple[Plan, str]:
    """Return the plan of a source, and the name to show for it."""
    if isinstance(source, Plan):
        return source, source.report.model.path
    with model_paths(source) as files:
        # A model in memory is saved to a temporary folder here, whose name must not be in the plan.
        plan = files.without_temporary_folder(planned(files.path, request))
    name = str(Path(cast("FilePath", source))) if is_path(source) else plan.report.model.path
    return plan, name


def planned(path: FilePath, request: Request) -> Plan:
    """Return the plan in a file, or plan a model with its settings.

    ``request.warn`` is called with each warning of the plan, and with the dims that were assumed.
    """
    plan, stale_warnings = plan_and_stale_warnings(Path(path), request)
    warn_of_plan(path, plan, request, *stale_warnings)
    return plan


def plan_and_stale_warnings(path: Path, request: Request) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan in a file, or plan a model; and warnings about a plan file that is stale.

    There is a warning for each model beside the plan file that is not the planned one.
    """
    from memplan_cli.api.models.plan_files import named_from_here, stale_models
    from memplan_cli.planning.plan_file import read_plan

    request.progress("planning")
    if is_plan_file(path):
        plan = read_plan(path)
        return named_from_here(plan, path), tuple(stale_models(plan, path))
    settings = request.load(path)
    return plan_model(read_model(path), settings, request.progress).plan, ()


def warn_of_plan(path: FilePath, plan: Plan, request: Request, *more: str) -> None:
    """Call ``request.warn`` with the warnings of a plan, further ones, and its assumed dims."""
    from memplan_cli.reporting.hints import assumed_dims, assumed_lines, free_inputs

    for warning in (*plan.report.warnings, *more):
        request.warn(f"warning: {path}: {warning}")
    for line in assumed_lines(assumed_dims(plan.report.bindings), free_inputs(plan.report)):
        request.warn(f"note: {path}: {line}")


def is_plan_file(source: ModelSource | Plan) -> bool:
    """Return whether a source is the path of a plan file, by its suffix; False for a `Plan` itself."""
    if isinstance(source, Plan) or not is_path(source):
        return False
    return Path(cast("FilePath", source)).suffix == ".json"


def reject_settings_of_plans(
    sources: Sequence[ModelSource | Plan], option_names: Sequence[str]
) -> None:
    """Reject the options of a call if all sources are finished plans, which options cannot change.

    Raises:
        SettingsError: there are such options; the message names the first.
    """
    are_plans = all(isinstance(source, Plan) or is_plan_file(source) for source in sources)
    if not option_names or not sources or not are_plans:
        return
    files = (f"{source} is a finished plan" for source in sources if is_plan_file(source))
    reason = next(files, "a finished plan is given")
    raise SettingsError(
        f"{option_names[0]} has no effect: {reason}", hint="name the model instead"
    )
