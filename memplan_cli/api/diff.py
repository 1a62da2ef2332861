"""``memplan diff``: what changed from one model or plan to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.api.model_or_plan import is_plan_file, plan_and_name, reject_settings_of_plans
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.process import process_or_obstacle
from memplan_cli.api.request import request_of
from memplan_cli.core.results.plan import Plan
from memplan_cli.reporting.commands.diff import compare
from memplan_cli.reporting.snapshot import snapshot_of

if TYPE_CHECKING:
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath, Request
    from memplan_cli.core.progress import Progress
    from memplan_cli.reporting.commands.diff import Difference
    from memplan_cli.reporting.snapshot import Snapshot


@accepts_option_names()
def diff(
    before: ModelSource | Plan,
    after: ModelSource | Plan,
    *,
    config: FilePath | None = None,
    progress: Progress | None = None,
    warn: Progress | None = None,
    **options: object,
) -> Difference:
    """Compare two models or plans, and attribute what changed to tensors and ops.

    Args:
        before: A model or a plan, as a file or in memory.
        after: Another.
        config: A settings file, for what has to be planned.
        progress: Called with the name of each stage.
        warn: Called with each warning of a plan.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: a file or a setting is wrong.
    """
    request = request_of(config, options, progress, warn)
    reject_settings_of_plans((before, after), request.option_names)
    return compare(_snapshot(before, request), _snapshot(after, request))


def _snapshot(source: ModelSource | Plan, request: Request) -> Snapshot:
    """Return the figures of a plan; for a model, also the predicted memory of a process that runs it."""
    plan, name = plan_and_name(source, request)
    if isinstance(source, Plan) or is_plan_file(source):
        return snapshot_of(plan, name)
    with model_paths(source) as files:
        # None if it cannot be predicted; the reason, the second value, is not compared.
        process_memory, _ = process_or_obstacle(files.path, request.load(files.path), plan)
    return snapshot_of(plan, name, process=process_memory)
