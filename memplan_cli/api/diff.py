"""``memplan diff``: what changed from one model or plan to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.api.model_or_plan import plan_and_name, reject_settings_of_plans
from memplan_cli.api.request import request_of
from memplan_cli.reporting.commands.diff import compare
from memplan_cli.reporting.snapshot import snapshot_of

if TYPE_CHECKING:
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.commands.diff import Difference


@dataclass(frozen=True, slots=True)
class Changed:
    """Two plans, and the difference between them, attributed to tensors and ops."""

    before: Plan
    after: Plan
    difference: Difference


def diff(
    before: ModelSource | Plan,
    after: ModelSource | Plan,
    *,
    config: FilePath | None = None,
    progress: Progress | None = None,
    warn: Progress | None = None,
    **options: object,
) -> Changed:
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
    reject_settings_of_plans((before, after), request)
    old_plan, old_name = plan_and_name(before, request)
    new_plan, new_name = plan_and_name(after, request)
    difference = compare(snapshot_of(old_plan, old_name), snapshot_of(new_plan, new_name))
    return Changed(old_plan, new_plan, difference)
