"""The baseline file of a gate: earlier numbers, one entry a model.

It is kept in git: sorted, without dates, and models are named from its own folder, so that
it means the same on every machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from memplan_cli.core.serialization import to_json
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import PlanError
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.findings.snapshot import (
    Snapshot,
    read_snapshot,
    shortened,
    snapshot_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "memplan.baseline/1"
DEFAULT_NAME = "memplan.baseline.json"
_LARGEST = 256 * 2**20
"""Bytes of a file that is read; one model takes some hundred thousand at most."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The contents of a baseline file: the numbers of each model."""

    schema: ClassVar[str] = SCHEMA

    models: Mapping[str, Snapshot]


def read_baseline(path: Path) -> dict[str, Snapshot]:
    """Return the snapshots of a baseline, by the model's name in it.

    A plan file is a baseline of one model: its own.

    Raises:
        PlanError: it cannot be read, or is no baseline.
    """
    data = _json(path)
    if _is_plan(data):
        plan = read_plan(path)
        name = key_of(path.parent / plan.report.model.path, path)
        return {name: snapshot_of(plan, name)}
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise PlanError(
            f"{path} is no baseline of schema {SCHEMA}",
            hint="write one with `memplan gate MODEL --update-baseline`",
        )
    models = data.get("models")
    if not isinstance(models, dict):
        raise PlanError(f"{path} has no table of models")
    return {str(name): read_snapshot(str(name), entry) for name, entry in models.items()}


def refuse_plan(path: Path) -> None:
    """Refuse to write a baseline over a plan, which can be one but is more.

    Raises:
        PlanError: the file is a plan, or cannot be read.
    """
    if _is_plan(_json(path)):
        raise PlanError(
            f"{path} is a plan, and a baseline would replace it",
            hint="name another file with --baseline",
        )


def _is_plan(data: object) -> bool:
    return isinstance(data, dict) and str(data.get("schema", "")).startswith("memplan.plan/")


def dumps(snapshots: Mapping[str, Snapshot]) -> str:
    """Return the text of a baseline. It is deterministic."""
    models = {
        name: replace(snapshot, tensors=shortened(snapshot))
        for name, snapshot in sorted(snapshots.items())
    }
    return json.dumps(to_json(Baseline(models)), indent=1, ensure_ascii=True) + "\n"


def key_of(model: Path, baseline: Path) -> str:
    """Return how a baseline names a model: its path from the baseline's folder."""
    relative = os.path.relpath(model.absolute(), baseline.absolute().parent)
    return relative.replace(os.sep, "/")


def _json(path: Path) -> Any:  # noqa: ANN401 - untrusted JSON
    refuse_endless(path, PlanError)
    try:
        if path.stat().st_size > _LARGEST:
            raise PlanError(f"{path} is too large for a baseline")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(
            f"there is no baseline {path}",
            hint="write one with `memplan gate MODEL --update-baseline`",
        ) from error
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {str(error)[:200]}") from error
