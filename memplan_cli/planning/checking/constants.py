"""Checks that what a plan file says of constant expressions agrees with the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.plan import Plan

_Claim = tuple[str, int | None, int | None]


def check_constants(plan: Plan) -> None:
    """Refuse foldable tensors that are not at the peak, and sums that are not theirs.

    Raises:
        PlanError: naming what is said and what was counted.
    """
    report = plan.report
    at_peak = (
        {tensor.name: tensor.bytes for tensor in report.peak.tensors} if report.peak else {}
    )
    names = [tensor.name for tensor in report.foldable]
    if len(set(names)) < len(names):
        raise PlanError("a foldable tensor is listed twice")
    for tensor in report.foldable:
        if at_peak.get(tensor.name) != tensor.bytes:
            raise PlanError(
                f"tensor {tensor.name[:120]!r} is recorded as foldable with {tensor.bytes} "
                "bytes, and the peak has no such tensor"
            )
    for name, said, counted in _claims(plan):
        if said != counted:
            raise PlanError(f"{name} is recorded as {said}, the plan comes to {counted}")
    for memory in (report.memory, *(row.memory for row in report.profiles)):
        if memory.foldable is not None and not 0 <= memory.foldable <= (memory.live_peak or 0):
            raise PlanError(
                f"foldable is recorded as {memory.foldable}, and the plan allows 0 to "
                f"{memory.live_peak or 0}"
            )
    if report.folded.tensors and plan.settings.get("fold_constants") is not True:
        raise PlanError("constants are recorded as folded, which the settings do not ask for")


def _claims(plan: Plan) -> Iterator[_Claim]:
    report = plan.report
    if report.memory.foldable is not None or report.foldable:
        listed = sum(tensor.bytes for tensor in report.foldable)
        yield "foldable", report.memory.foldable, listed
    added = sum(tensor.bytes for tensor in report.folded.tensors)
    yield "the bytes of folded constants", report.folded.added, added
    placed = (tensor.name for tensor in report.folded.tensors if tensor.name in plan.by_id)
    yield "folded tensors that need memory", sum(1 for _ in placed), 0
