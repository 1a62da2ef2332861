"""Checks of a plan's tensors: dtype, shape, bytes, live range and pinning, each on its own."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from memplan_cli.checking.byte_sums import tensor_bytes
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.checking.planned_model import PlannedModel
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.symbolic.bounds import Bounds

_CONSUMED_GRADIENT = "a gradient that the update consumes (skip_grads)"
_COPY_MARK = "__recompute"


def check_tensors(planned: PlannedModel) -> Iterator[str]:
    """Yield where the plan's tensors differ from the intermediates of the written model."""
    for row in planned.plan.tensors:
        if row.id not in planned.tensors:
            yield f"the plan places {row.id[:120]!r}, which the model does not compute"
    yield from _check_unplanned(planned)
    excluded = _excluded_tensors(planned)
    units = planned.units
    whole_run = 0, max(planned.timeline.ticks, 1)
    for tensor_id, (row, value) in planned.tensors.items():
        yield from _check_type(row, *planned.type_of(value))
        yield from check_tensor_bytes(row, units.get(row.arena, ""), planned.bounds)
        yield from _check_pinned(row, excluded.get(tensor_id), planned)
        first, end = whole_run if row.pinned else (value.first, value.end)
        if (row.first, row.last) != (first, end):
            yield (
                f"tensor {tensor_id[:120]!r} is recorded as live from tick {row.first} to "
                f"{row.last}, by the model's nodes it is from {first} to {end}"
            )


def _check_unplanned(planned: PlannedModel) -> Iterator[str]:
    """Yield intermediates that the plan omits without a valid reason, and wrong reasons.

    The plan may omit an intermediate of unknown size if it is listed as unplanned. Recomputed
    copies need no such entry.
    """
    reasons = {entry.name: entry.reason for entry in planned.plan.report.unplanned}
    intermediates = set()
    for value in planned.timeline.intermediates():
        tensor_id = value.tensor_id
        intermediates.add(tensor_id)
        if tensor_id in planned.tensors:
            continue
        dtype, shape = planned.type_of(value)
        if size_of(shape, dtype) is not None:
            yield f"tensor {tensor_id[:120]!r} has a size, and the plan has no place for it"
        elif tensor_id not in reasons and _COPY_MARK not in value.name:
            yield f"tensor {tensor_id[:120]!r} is neither placed nor among the unplanned"
    for name, reason in reasons.items():
        tensor = planned.tensors.get(name)
        if name not in intermediates:
            yield f"unplanned is {name[:120]!r}, which the model does not compute"
        elif tensor is not None and tensor.placement.pinned != reason:
            yield f"tensor {name[:120]!r} is placed, and unplanned for {reason[:120]!r}"


def _check_type(row: Placement, dtype: str, shape: Shape | None) -> Iterator[str]:
    """Yield if the dtype or shape of a tensor in the plan contradicts those of the model.

    An unknown dtype, shape or dim of the model contradicts nothing.
    """
    if dtype not in ("unknown", row.dtype):
        yield f"tensor {row.id[:120]!r} is recorded as {row.dtype[:40]!r}, it is {dtype}"
    if shape is None:
        return
    agrees = len(shape) == len(row.shape) and all(
        dim is None or dim == recorded for dim, recorded in zip(shape, row.shape, strict=True)
    )
    if not agrees:
        yield (
            f"tensor {row.id[:120]!r} is recorded with the shape {list(row.shape)}, its node "
            f"makes it {list(shape)}"
        )


def check_tensor_bytes(row: Placement, unit: str, bounds: Bounds) -> Iterator[str]:
    """Yield if the bytes of a tensor, in the unit of its arena, are not those of its shape."""
    count, expected_unit = tensor_bytes(row.shape, row.dtype, bounds)
    if row.bytes != count or (row.bytes and unit != expected_unit):
        yield (
            f"tensor {row.id[:120]!r} is recorded with {row.bytes}*{unit[:80]!r} bytes, it "
            f"takes {count}*{expected_unit}"
        )


def _check_pinned(
    row: Placement, exclude_pattern: str | None, planned: PlannedModel
) -> Iterator[str]:
    """Yield if a tensor must be pinned and is not, or is pinned without a reason.

    A pinned tensor has memory of its own for the whole run. Excluded tensors and the loss must be
    pinned, gradients may be if the settings ask for it. Recomputed copies need not be pinned.
    """
    reasons = [] if exclude_pattern is None else [f"excluded by {exclude_pattern!r}"]
    if row.id == planned.plan.report.loss:
        reasons.append("the loss")
    if reasons and row.pinned is None and _COPY_MARK not in row.name:
        yield f"tensor {row.id[:120]!r} has no memory of its own, and is {reasons[0][:120]}"
    settings, phases = planned.plan.settings, planned.plan.report.phases
    if settings.get("skip_grads") and phases.get("backward"):
        reasons.append(_CONSUMED_GRADIENT)
    if row.pinned is not None and row.pinned not in reasons:
        yield (
            f"tensor {row.id[:120]!r} is pinned for {row.pinned[:120]!r}, which the settings "
            "do not ask for"
        )


def _excluded_tensors(planned: PlannedModel) -> Mapping[str, str]:
    """Return the ids of the tensors that the settings exclude, each with the first matching pattern.

    A pattern is compared in this order, and the first kind of match counts: equal to a name, a
    glob over names in any block, a glob over ids.
    """
    settings = planned.plan.settings
    mem_param = settings.get("mem_param")
    patterns = [*(mem_param.get("exclude_blob", ()) if isinstance(mem_param, dict) else ())]
    patterns += settings.get("exclude") or ()
    if not patterns:
        return {}
    ids_by_name: dict[str, list[str]] = {}
    for value in planned.timeline.values():
        ids_by_name.setdefault(value.name, []).append(value.tensor_id)
    excluded: dict[str, str] = {}
    for pattern in map(str, patterns):
        matches = ids_by_name.get(pattern) or [
            tensor_id
            for name, ids in ids_by_name.items()
            if fnmatchcase(name, pattern)
            for tensor_id in ids
        ]
        matches = matches or [
            tensor_id
            for ids in ids_by_name.values()
            for tensor_id in ids
            if fnmatchcase(tensor_id, pattern)
        ]
        for tensor_id in matches:
            excluded.setdefault(tensor_id, pattern)
    return excluded
