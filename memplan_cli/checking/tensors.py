"""Checks of a plan's tensors: type, bytes, live range and pinning, then offsets, arenas and slots."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from fnmatch import fnmatchcase
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.live_bytes import Storage, align, tensor_bytes, tensor_storages
from memplan_cli.checking.order import COPY_MARK
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.checking.timeline import PlannedModel
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import Placement, PlannedArena
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

_CONSUMED_GRADIENT = "a gradient that the update consumes (skip_grads)"


def check_tensors(planned: PlannedModel) -> Iterator[str]:
    """Yield where the plan's tensors differ from the intermediates of the written model."""
    for row in planned.plan.tensors:
        if row.id not in planned.tensors:
            yield f"the plan places {row.id[:120]!r}, which the model does not compute"
    yield from _check_unplanned(planned)
    excluded: dict[str, str] = {}  # by tensor, the first pattern that matches it
    for pattern, tensor_ids in _excluded_tensors(planned).items():
        if not tensor_ids:
            yield f"the settings exclude {pattern[:120]!r}, which the model does not have"
        for tensor_id in tensor_ids:
            excluded.setdefault(tensor_id, pattern)
    units = planned.plan.units
    for tensor_id, (row, value) in planned.tensors.items():
        yield from _check_type(row, *planned.type_of(value))
        yield from check_tensor_bytes(row, units.get(row.arena, ""), planned.bounds)
        yield from _check_pinned(row, excluded.get(tensor_id), planned)
        first, end = planned.timeline.whole_run if row.pinned else (value.first, value.end)
        if (row.first, row.last) != (first, end):  # the plan's ``last`` is exclusive too
            yield (
                f"tensor {tensor_id[:120]!r} is recorded as live from tick {row.first} to "
                f"{row.last}, by the model's nodes it is from {first} to {end}"
            )


def _check_unplanned(planned: PlannedModel) -> Iterator[str]:
    """Yield a message for each intermediate omitted without a valid reason, and each wrong reason.

    The plan may omit an intermediate of unknown size if it is listed as unplanned. Recomputed
    copies need no such entry. A placed tensor may be listed too if it is pinned for that reason.
    """
    unplanned = planned.plan.report.unplanned
    reasons = {entry.name: entry.reason for entry in unplanned}
    if len(reasons) < len(unplanned):
        yield "a tensor is listed as unplanned twice"
    intermediates = set()
    for value in planned.timeline.intermediates():
        tensor_id = value.tensor_id
        intermediates.add(tensor_id)
        if tensor_id in planned.tensors:
            continue
        dtype, shape = planned.type_of(value)
        if size_of(shape, dtype) is not None:
            yield f"tensor {tensor_id[:120]!r} has a size, and the plan has no place for it"
        elif tensor_id not in reasons and COPY_MARK not in value.name:
            yield f"tensor {tensor_id[:120]!r} is neither placed nor among the unplanned"
    for name, reason in reasons.items():
        tensor = planned.tensors.get(name)
        if name not in intermediates:
            yield f"unplanned is {name[:120]!r}, which the model does not compute"
        elif tensor is not None and tensor.placement.pinned != reason:
            yield f"tensor {name[:120]!r} is placed, and unplanned for {reason[:120]!r}"


def _check_type(row: Placement, dtype: str, shape: Shape | None) -> Iterator[str]:
    """Yield a message if the dtype or shape of a tensor in the plan contradicts the model's.

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
    """Yield a message if the bytes of a tensor, ``row.bytes * unit``, are not those of its shape and dtype.

    ``unit`` is a factor of all sizes in the tensor's arena: 4 and ``"batch"`` are ``4 * batch`` bytes. It is ``"1"``
    if all dims are numbers.
    """
    size = tensor_bytes(row.shape, row.dtype, bounds)
    count, expected_unit = size or (None, "")
    # A tensor of 0 bytes may be in an arena of any unit.
    if row.bytes != count or (row.bytes and unit != expected_unit):
        expected = "an unknown number" if size is None else f"{count}*{expected_unit}"
        yield (
            f"tensor {row.id[:120]!r} is recorded with {row.bytes}*{unit[:80]!r} bytes, it "
            f"takes {expected}"
        )


def _check_pinned(
    row: Placement, exclude_pattern: str | None, planned: PlannedModel
) -> Iterator[str]:
    """Yield a message if a tensor must be pinned and is not, or is pinned without a reason.

    A pinned tensor has memory of its own for the whole run; ``row.pinned`` is the reason. Excluded
    tensors and the loss must be pinned, except recomputed copies. In a training step with ``skip_grads``, any
    tensor may be pinned as a gradient: which ones are gradients is not checked. ``exclude_pattern`` is the
    setting that excludes the tensor, or None.
    """
    required = [] if exclude_pattern is None else [f"excluded by {exclude_pattern!r}"]
    if row.id == planned.plan.report.loss:
        required.append("the loss")
    if required and row.pinned is None and COPY_MARK not in row.name:
        yield f"tensor {row.id[:120]!r} has no memory of its own, and is {required[0][:120]}"
    settings, phases = planned.plan.settings, planned.plan.report.phases
    skips_gradients = settings.get("skip_grads") and phases.get("backward")
    allowed = [*required, _CONSUMED_GRADIENT] if skips_gradients else required
    if row.pinned is not None and row.pinned not in allowed:
        yield (
            f"tensor {row.id[:120]!r} is pinned for {row.pinned[:120]!r}, which the settings "
            "do not ask for"
        )


def _excluded_tensors(planned: PlannedModel) -> Mapping[str, Sequence[str]]:
    """Return the patterns of the settings ``mem_param.exclude_blob`` and ``exclude``, with the ids that each matches.

    A pattern is a tensor's name. If no tensor has this name, it is a glob over names, and if none
    matches, a glob over ids, which contain the block.
    """
    settings = planned.plan.settings
    mem_param = settings.get("mem_param") or {}
    patterns: list[str] = []
    for value in (mem_param.get("exclude_blob"), settings.get("exclude")):
        # Types were checked when the plan was read: a text, or a list of texts.
        patterns += [value] if isinstance(value, str) else value or ()
    if not patterns:
        return {}
    values = list(planned.timeline.values())
    ids_by_name: defaultdict[str, list[str]] = defaultdict(list)
    for value in values:
        ids_by_name[value.name].append(value.tensor_id)
    return {
        pattern: ids_by_name.get(pattern)
        or [value.tensor_id for value in values if fnmatchcase(value.name, pattern)]
        or [value.tensor_id for value in values if fnmatchcase(value.tensor_id, pattern)]
        for pattern in patterns
    }


def check_layout(plan: Plan) -> Iterator[str]:
    """Yield a message for each error in the places of a plan's tensors.

    - A tensor is off the alignment, or in a slot that it may not share.
    - An arena has a wrong height, or two of its tensors overlap in time and memory: the first two are named.
    - An arena of tensors does not exist: the first of its tensors is named.
    """
    by_arena: defaultdict[int, list[Storage]] = defaultdict(list)
    for storage in tensor_storages(plan.tensors):
        by_arena[storage.arena].append(storage)
    for arena in plan.arenas:
        storages = by_arena.pop(arena.id, [])
        yield from _check_alignment_and_height(arena, storages)
        overlap = first_overlap_of_boxes(
            [Box(s.first, s.end, s.offset, s.offset + s.bytes) for s in storages]
        )
        if overlap is not None:
            # The second is the one that becomes live later.
            earlier, later = storages[overlap[0]], storages[overlap[1]]
            yield (
                f"tensors {earlier.name[:120]!r} and {later.name[:120]!r} lie on the same "
                f"bytes, and both are needed at tick {later.first}"
            )
    for arena_id, storages in by_arena.items():
        yield f"tensor {storages[0].name[:120]!r} lies in arena {arena_id}, which does not exist"
    yield from check_slots(plan.tensors, plan.report.level)


def _check_alignment_and_height(
    arena: PlannedArena, storages: Sequence[Storage]
) -> Iterator[str]:
    """Yield unaligned offsets, and a height that the storages of the arena do not explain.

    The height must be at least the highest end of a storage, and at most this end, aligned.
    """
    top = 0
    for storage in storages:
        top = max(top, storage.offset + storage.bytes)
        if storage.offset % arena.alignment:
            yield f"tensor {storage.name[:120]!r} lies at {storage.offset}, off the alignment"
    if top > arena.height:
        yield f"arena {arena.id} is recorded {arena.height} tall, its tensors reach {top}"
    if arena.height > align(top, arena.alignment):
        yield f"arena {arena.id} is recorded {arena.height} tall, its tensors end at {top}"


class Box(NamedTuple):
    """A buffer in time and memory, both half-open: ticks [first, end), bytes [low, high)."""

    first: int
    end: int
    low: int
    high: int


def first_overlap_of_boxes(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two boxes that share a byte at a tick, or None if none do.

    The second box is the first in time that overlaps an earlier one. Empty boxes overlap nothing.
    One pass over the boxes by their first tick, with the live ones sorted by address. As live boxes
    do not overlap each other, a new one overlaps a neighbor in this list, or none.
    """
    live: list[tuple[int, int, int]] = []  # (low, high, index), sorted
    ends: list[tuple[int, tuple[int, int, int]]] = []  # heap of (end, entry of `live`)
    for index in sorted(range(len(boxes)), key=lambda index: boxes[index].first):
        box = boxes[index]
        if box.low >= box.high or box.first >= box.end:
            continue
        while ends and ends[0][0] <= box.first:
            _, ended = heappop(ends)
            del live[bisect_left(live, ended)]
        position = bisect_left(live, (box.low,))
        for low, high, other in live[max(position - 1, 0) : position + 1]:
            if low < box.high and box.low < high:
                return other, index
        entry = (box.low, box.high, index)
        insort(live, entry)
        heappush(ends, (box.end, entry))
    return None


def check_slots(rows: Iterable[Placement], level: int) -> Iterator[str]:
    """Yield tensors that must not share a slot, or that have none at level 0 or 1.

    All tensors of a slot have one offset and one dtype, and at level 0 one shape.
    """
    first_in_slot: dict[tuple[int, int], Placement] = {}
    for row in rows:
        if row.slot is None:
            if level < 2:  # level 2 may place tensors by their offsets alone
                yield f"tensor {row.id[:120]!r} has no slot at level {level}"
            continue
        first = first_in_slot.setdefault((row.arena, row.slot), row)
        allowed = first.offset == row.offset and first.dtype == row.dtype
        if not allowed or (level == 0 and first.shape != row.shape):
            yield (
                f"tensors {first.id[:120]!r} and {row.id[:120]!r} have slot {row.slot}, "
                f"which level {level} does not allow"
            )
