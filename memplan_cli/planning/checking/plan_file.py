"""Reading of a plan file, with every type and range checked.

A plan file is untrusted input: what is read has passed the checker that every fresh plan
has passed too, and its numbers have been counted again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.plan import Plan, check
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import PlanError
from memplan_cli.planning.checking.blocks import check_blocks
from memplan_cli.planning.checking.chunks import check_chunks
from memplan_cli.planning.checking.clock import check_clock
from memplan_cli.planning.checking.constants import check_constants
from memplan_cli.planning.checking.numbers import check_numbers

if TYPE_CHECKING:
    from pathlib import Path


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
        PlanError: it is not of this schema, its layout is not safe, or it tells one thing
            in two ways that do not agree.
    """
    plan = plan_from_json(data)
    check(plan)
    check_numbers(plan)
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
