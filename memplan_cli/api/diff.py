"""What changed from one model or plan to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.api.report import plan_and_name, reject_settings_of_plans
from memplan_cli.api.request import request_of
from memplan_cli.reporting.commands.diff import compare
from memplan_cli.reporting.snapshot import snapshot_of

if TYPE_CHECKING:
    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.commands.diff import Difference


@dataclass(frozen=True, slots=True)
class Changed:
    """Two plans and what is different from one to the other."""

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
    old, new = (plan_and_name(source, request) for source in (before, after))
    return Changed(old[0], new[0], compare(snapshot_of(*old), snapshot_of(*new)))
