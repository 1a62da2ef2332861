"""What changed from one model or plan to another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.reporting.findings.diff import compare
from memplan_cli.reporting.findings.snapshot import snapshot_of
from memplan_cli.workflows.report import planned
from memplan_cli.workflows.request import Request

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.findings.diff import Difference
    from memplan_cli.workflows.request import FilePath


@dataclass(frozen=True, slots=True)
class Changed:
    """Two plans and what is different from one to the other."""

    before: Plan
    after: Plan
    difference: Difference


def diff(before: FilePath, after: FilePath, request: Request | None = None) -> Changed:
    """Say what changed from one model or plan to another.

    Raises:
        MemplanError: a file or a setting is wrong.
    """
    request = request or Request()
    old, new = (planned(path, request) for path in (before, after))
    return changed((old, str(Path(before))), (new, str(Path(after))))


def changed(before: tuple[Plan, str], after: tuple[Plan, str]) -> Changed:
    """Say what changed from one plan to another, each with its name."""
    (old, _), (new, _) = before, after
    return Changed(old, new, compare(snapshot_of(*before), snapshot_of(*after)))
