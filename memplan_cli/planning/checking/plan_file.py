"""Reading of a plan file, with every type and range checked.

A plan file is untrusted input. A plan that is read has passed the check of layouts that every
fresh plan has passed too. The digest of a plan leaves out its report, since measurements are
added to it later; so the report's numbers are counted again, by the independent checker
(`checking.plan_figures`), which needs no model for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from memplan_cli.checking.plan_figures import check_plan_figures
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.plan import Plan, check
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.planning.checking.blocks import check_blocks
from memplan_cli.planning.checking.bounds import check_bounds
from memplan_cli.planning.checking.chunks import check_chunks
from memplan_cli.planning.checking.clock import check_clock
from memplan_cli.planning.checking.constants import check_constants

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.symbolic.bounds import Bounds


def read_plan(path: Path) -> Plan:
    """Read a plan file and check all of it.

    Raises:
        PlanError: it cannot be read, is no plan, or its layout is not safe.
    """
    refuse_endless(path, PlanError)
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {str(error)[:200]}") from error
    try:
        return checked_plan(data)
    except PlanError as error:
        raise type(error)(f"{path}: {error}", hint=error.hint) from error


def checked_plan(data: object) -> Plan:
    """Turn JSON into a plan that is safe, and whose numbers were counted again.

    Raises:
        PlanError: it is not of this schema, its layout is not safe, or its parts do not agree.
    """
    plan = plan_from_json(data)
    check(plan)
    for disagreement in check_plan_figures(plan, bounds_of(plan)):
        raise PlanError(disagreement)
    check_bounds(plan)
    check_chunks(plan)
    check_constants(plan)
    check_clock(plan)
    check_blocks(plan)
    return plan


def plan_from_json(data: object) -> Plan:
    """Turn JSON into a plan, types checked; `check` says whether it is safe.

    Raises:
        PlanError: it is not of this schema.
    """
    try:
        plan = from_json(Plan, data, "the plan")
    except MisfitError as error:
        raise PlanError(str(error)) from error
    for tensor in plan.tensors:
        if tensor.first >= tensor.last:
            raise PlanError(f"tensor {tensor.name[:80]!r} has its last use before its first")
    return plan


def bounds_of(plan: Plan) -> Bounds:
    """Return the bounds of the dims that a plan's sizes are the largest for.

    Raises:
        PlanError: the plan's settings, which are free in its schema, hold no bounds.
    """
    from memplan_cli.settings.sources import read_overrides

    try:
        values = read_overrides({"bounds": plan.settings.get("bounds")}).values
    except (SettingsError, RecursionError) as error:
        raise PlanError(f"the plan's settings hold no bounds: {str(error)[:200]}") from error
    return cast("Bounds", values.get("bounds", {}))
