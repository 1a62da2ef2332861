"""Is a plan file what it says it is? Reading one, with every type and range looked at.

A plan file is untrusted input: what is read has passed the checker that every fresh plan
has passed too, and its numbers have been counted again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.placements import ArenaFacts, BlockOrder, Placement, Release
from memplan_cli.core.results.plan import MAX_BYTES, SCHEMA, Plan, check
from memplan_cli.core.results.report import Json, Report
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import PlanError
from memplan_cli.planning.checking.blocks import check_blocks
from memplan_cli.planning.checking.clock import check_clock
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


def checked_plan(data: Any) -> Plan:  # noqa: ANN401 - untrusted JSON
    """Turn JSON into a plan that is safe, and whose numbers were counted again.

    Raises:
        PlanError: it is not of this schema, its layout is not safe, or it tells one thing
            in two ways that do not agree.
    """
    plan = plan_from_json(data)
    check(plan)
    check_numbers(plan)
    check_clock(plan)
    check_blocks(plan)
    return plan


def plan_from_json(data: Any) -> Plan:  # noqa: ANN401 - untrusted JSON
    """Turn JSON into a plan, types checked; `check` says whether it is safe.

    Raises:
        PlanError: it is not of this schema.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise PlanError(f"this is not a plan of schema {SCHEMA}")
    try:
        plan = Plan(
            version=_text(data["producer"]["version"]),
            graph_sha256=_text(data["model"]["graph_sha256"]),
            settings=_table(data["settings"]),
            order=tuple(
                BlockOrder(_text(o["block"]), tuple(map(_text, o["nodes"])))
                for o in data["order"]
            ),
            arenas=tuple(_arena(item) for item in data["arenas"]),
            tensors=tuple(_placement(item) for item in data["tensors"]),
            releases=tuple(
                Release(_number(r["step"]), _text(r["node"]), tuple(map(_text, r["tensors"])))
                for r in data["releases"]
            ),
            report=Report.from_json(data["report"]),
        )
        _check_told_twice(plan, data)
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"the plan is not of schema {SCHEMA}: {type(error).__name__} {str(error)[:200]}"
        ) from error
    return plan


def _check_told_twice(plan: Plan, data: Json) -> None:
    """Refuse a plan that says one thing and its report another."""
    if data["model"]["sha256"] != plan.report.model.sha256:
        raise PlanError("model.sha256 of the plan and of its report differ")
    listed = [(item["name"], item["reason"]) for item in data["unplanned"]]
    if listed != [(item.name, item.reason) for item in plan.report.unplanned]:
        raise PlanError("unplanned of the plan and of its report differ")


def _arena(item: Json) -> ArenaFacts:
    alignment = _number(item["alignment"])
    if alignment < 1:
        raise PlanError("an arena's alignment is below 1")
    return ArenaFacts(
        _number(item["id"]),
        _text(item["unit"]),
        _number(item["height"]),
        _number(item["lower_bound"]),
        alignment,
    )


def _placement(item: Json) -> Placement:
    first, last = _number(item["first"]), _number(item["last"])
    if first >= last:
        raise PlanError(f"tensor {item['name']!r} dies before it lives")
    slot, alias, pinned = item["slot"], item["alias_of"], item["pinned"]
    return Placement(
        _text(item["name"]),
        _text(item["block"]),
        _text(item["dtype"]),
        tuple(dim if isinstance(dim, str) else _number(dim) for dim in item["shape"]),
        _number(item["bytes"]),
        _number(item["arena"]),
        _number(item["offset"]),
        None if slot is None else _number(slot),
        first,
        last,
        None if alias is None else _text(alias),
        None if pinned is None else _text(pinned),
    )


def _number(value: Any) -> int:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanError(f"the plan has {str(value)[:80]!r} where a whole number belongs")
    if not 0 <= value < MAX_BYTES:
        raise PlanError(f"the plan has {value}, which is out of range")
    return value


def _table(value: Any) -> Json:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, dict):
        raise PlanError(f"the plan has {str(value)[:80]!r} where a table belongs")
    return value


def _text(value: Any) -> str:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, str):
        raise PlanError(f"the plan has {str(value)[:80]!r} where a text belongs")
    return value
