"""Reading of plan files, which are untrusted input.

Every type and range is checked, then the layout, by the same function that checks each fresh plan.
A plan's digest leaves out its report, because measurements are added to it later; so the report's
numbers are counted again, by the independent checker (`checking.plan_figures`) where it can do
so from the plan alone. This module checks the rest: symbolic peaks, chunked regions and folded
constants. `plan_file_clock` checks everything that depends on time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from memplan_cli.checking.plan_figures import Comparison, check_plan_figures, mismatches
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.plan import Plan, check
from memplan_cli.errors import PlanError, SettingsError, refuse_endless, unreadable
from memplan_cli.planning.plan_file_clock import check_blocks, check_clock
from memplan_cli.planning.totals import live_peak_text
from memplan_cli.settings.sources import read_overrides

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan_cli.core.symbolic.bounds import Bounds


_SIZES_OBSERVED = "profile_shapes"
"""The key of a plan's settings that tells whether sizes were observed in a run."""


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
        raise unreadable(path, error, PlanError) from None
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {str(error)[:200]}") from error
    try:
        return checked_plan(data)
    except PlanError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error


def checked_plan(data: object) -> Plan:
    """Return the plan of a JSON document, after all checks.

    Raises:
        PlanError: it is not of this schema, its layout is not safe, or its parts do not agree.
    """
    plan = plan_from_json(data)
    check(plan)  # raises if the layout is not safe
    # The first disagreement is raised.
    for disagreement in check_plan_figures(plan, bounds_of(plan)):
        raise PlanError(disagreement)
    _check_settings(plan)
    for disagreement in mismatches(_compare_symbolic_peak(plan)):
        raise PlanError(disagreement)
    _check_chunks(plan)
    _check_constants(plan)
    check_clock(plan)
    check_blocks(plan)
    return plan


def plan_from_json(data: object) -> Plan:
    """Return the plan of a JSON document, with types and live ranges checked only.

    Raises:
        PlanError: it is not of this schema, or a live range has no tick.
    """
    try:
        plan = from_json(Plan, data, "the plan")
    except MisfitError as error:
        raise PlanError(str(error)) from error
    for tensor in plan.tensors:
        last_use = tensor.last - 1  # ``last`` is exclusive
        if last_use < tensor.first:
            raise PlanError(f"tensor {tensor.name[:80]!r} has its last use before its first")
    return plan


def bounds_of(plan: Plan) -> Bounds:
    """Return the bounds of dims in a plan's settings; empty if there are none, or null.

    The sizes in the plan are the largest within these bounds.

    Raises:
        PlanError: the bounds are invalid. The schema of plan files allows any JSON as settings.
    """
    try:
        values = read_overrides({"bounds": plan.settings.get("bounds")}).values
    except (SettingsError, RecursionError) as error:
        raise PlanError(
            f"the plan's settings hold no bounds: {error.args[0][:200]}"
        ) from error
    return cast("Bounds", values.get("bounds", {}))


def _check_settings(plan: Plan) -> None:
    """Refuse settings with unknown keys or values. The schema of plan files allows any JSON here.

    ``profile_shapes`` is no setting of this version: it tells whether sizes were observed in a run.
    """
    settings = {key: value for key, value in plan.settings.items() if key != _SIZES_OBSERVED}
    try:
        read_overrides(settings)
    except (SettingsError, RecursionError) as error:
        raise PlanError(f"the plan's settings are not valid: {error.args[0][:200]}") from error
    if not isinstance(plan.settings.get(_SIZES_OBSERVED, False), bool):
        raise PlanError(f"the plan's settings are not valid: {_SIZES_OBSERVED} is no bool")


def _compare_symbolic_peak(plan: Plan) -> Iterator[Comparison]:
    """Yield the recorded expression of the live peak, beside that of the planner's function `live_peak_text`.

    The checker has no function of its own for this expression: a maximum such as ``max(8*n, n + m)`` can be
    written in many ways, so a second implementation would yield other texts.
    """
    recorded = plan.report.symbolic.get("live_peak")
    has_slots = any(tensor.slot is not None for tensor in plan.tensors)
    # Level 2 gives tensors offsets. If slots need less, the plan has slots instead, but the recorded peak is that
    # of the discarded offsets: the plan has nothing to compare with it.
    has_discarded_offsets = plan.report.level == 2 and has_slots
    if recorded is None or has_discarded_offsets:
        return
    # Units are unique: `check_plan_figures` refused a plan with two arenas of one unit.
    buffers_by_unit = {}
    for arena, (problem, _) in zip(plan.arenas, plan.problems, strict=True):
        buffers_by_unit[arena.unit] = problem.buffers  # the live peak depends on no offset
    yield Comparison("live_peak in symbols", recorded, live_peak_text(buffers_by_unit))


def _check_chunks(plan: Plan) -> None:
    """Refuse chunked regions that contradict the settings, have no chunks, or misjudge a budget."""
    report = plan.report
    chunks = report.chunked
    if chunks.regions and plan.settings.get("chunk") != "auto":
        raise PlanError("regions are recorded as chunked, which the settings do not ask for")
    for region in chunks.regions:
        if region.pieces < 2 or not region.nodes:
            raise PlanError(
                f"the region around {region.tensor[:120]!r} is recorded as {region.nodes} nodes "
                f"in {region.pieces} chunks"
            )
    if chunks.budget is not None and report.memory.resident is not None:
        fits = report.memory.resident <= chunks.budget
        if chunks.met != fits:
            raise PlanError(
                f"the budget of {chunks.budget} is recorded as "
                f"{'met' if chunks.met else 'not met'}, and the resident peak is "
                f"{report.memory.resident}"
            )


def _check_constants(plan: Plan) -> None:
    """Refuse records of constants that contradict the plan: foldable tensors, and folded ones.

    - *Foldable* tensors could be computed ahead: each must be listed once, with its bytes at the peak.
    - The sums over foldable and folded tensors must be right (`_compare_constants`).
    - The foldable bytes, in each profile too, must be a part of the live peak.
    - *Folded* tensors were computed ahead: the settings must ask for that.
    """
    report = plan.report
    peak_tensors = report.peak.tensors if report.peak else ()
    peak_bytes = {tensor.name: tensor.bytes for tensor in peak_tensors}
    names = [tensor.name for tensor in report.foldable]
    if len(set(names)) < len(names):
        raise PlanError("a foldable tensor is listed twice")
    for tensor in report.foldable:
        if peak_bytes.get(tensor.name) != tensor.bytes:
            raise PlanError(
                f"tensor {tensor.name[:120]!r} is recorded as foldable with {tensor.bytes} "
                "bytes, and the peak has no such tensor"
            )
    for disagreement in mismatches(_compare_constants(plan)):
        raise PlanError(disagreement)
    for memory in (report.memory, *(row.memory for row in report.profiles)):
        if memory.foldable is not None and not 0 <= memory.foldable <= (memory.live_peak or 0):
            raise PlanError(
                f"foldable is recorded as {memory.foldable}, and the plan allows 0 to "
                f"{memory.live_peak or 0}"
            )
    if report.folded.tensors and plan.settings.get("fold_constants") is not True:
        raise PlanError("constants are recorded as folded, which the settings do not ask for")


def _compare_constants(plan: Plan) -> Iterator[Comparison]:
    """Yield the numbers of a plan about constants, each with the value that it must have.

    *Foldable* tensors could be computed before a run. *Folded* tensors have been computed: they are weights.
    """
    report = plan.report
    if report.memory.foldable is not None or report.foldable:
        foldable_bytes = sum(tensor.bytes for tensor in report.foldable)
        yield Comparison("foldable", report.memory.foldable, foldable_bytes)
    folded_bytes = sum(tensor.bytes for tensor in report.folded.tensors)
    yield Comparison("the bytes of folded constants", report.folded.added, folded_bytes)
    # A weight is no planned tensor, so this count must be 0.
    planned_count = sum(tensor.name in plan.by_id for tensor in report.folded.tensors)
    yield Comparison("folded tensors that need memory", planned_count, 0)
