"""Storages of a plan's tensors and their live bytes; the check of offsets, arenas and slots."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.byte_sums import evaluate_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.placements import ArenaFacts, Placement
    from memplan_cli.core.results.plan import Plan


@dataclass(slots=True)
class Storage:
    """Bytes of one tensor or of several that share them, live from the first use to the last.

    Attributes:
        bytes: a multiple of the arena's unit.
        first: first tick of the live range.
        end: tick after the last one.
        tensors: the tensors with these bytes.
    """

    name: str
    arena: int
    offset: int
    bytes: int
    first: int
    end: int
    tensors: list[Placement]


def tensor_storages(rows: Iterable[Placement]) -> list[Storage]:
    """Return the storages of a plan's tensors: a tensor and its aliases share one."""
    return merge_storages((row.alias_of or row.id, row) for row in rows)


def merge_storages(tensors: Iterable[tuple[str, Placement]]) -> list[Storage]:
    """Return one storage for all tensors with the same name of a storage. Its place is the first's."""
    storages: dict[str, Storage] = {}
    for name, row in tensors:
        storage = storages.get(name)
        if storage is None:
            storages[name] = Storage(
                name, row.arena, row.offset, row.bytes, row.first, row.last, [row]
            )
        else:
            storage.bytes = max(storage.bytes, row.bytes)
            storage.first = min(storage.first, row.first)
            storage.end = max(storage.end, row.last)
            storage.tensors.append(row)
    return list(storages.values())


class LiveBytes(NamedTuple):
    """Some bytes with the half-open interval of ticks in which they are live."""

    first: int
    end: int
    bytes: int


def live_bytes_at(
    plan: Plan, storages: Iterable[Storage], dims: Mapping[str, int]
) -> list[LiveBytes] | None:
    """Return the bytes of each storage at these dims, or None if a symbol has no value."""
    factors = {arena.id: evaluate_unit(arena.unit, dims) for arena in plan.arenas}
    intervals = []
    for storage in storages:
        factor = factors.get(storage.arena) if storage.bytes else 1
        if factor is None:
            return None
        intervals.append(LiveBytes(storage.first, storage.end, storage.bytes * factor))
    return intervals


def live_curve(intervals: Iterable[LiveBytes]) -> dict[int, int]:
    """Return the live bytes from each tick at which they change to the next such tick."""
    changes: defaultdict[int, int] = defaultdict(int)
    for first, end, size in intervals:
        changes[first] += size
        changes[end] -= size
    ticks = sorted(changes)
    return dict(zip(ticks, accumulate(changes[tick] for tick in ticks), strict=True))


def peak_bytes(intervals: Iterable[LiveBytes]) -> int:
    """Return the most bytes that are live at one tick."""
    return max(live_curve(intervals).values(), default=0)


def check_layout(plan: Plan) -> Iterator[str]:
    """Yield tensors of a plan that overlap, exceed their arena, or have a slot of other tensors."""
    by_arena: defaultdict[int, list[Storage]] = defaultdict(list)
    for storage in tensor_storages(plan.tensors):
        by_arena[storage.arena].append(storage)
    for arena in plan.arenas:
        inside = by_arena.pop(arena.id, [])
        yield from _check_height(arena, inside)
        overlap = first_overlap(
            [Box(s.first, s.end, s.offset, s.offset + s.bytes) for s in inside]
        )
        if overlap is not None:
            one, other = inside[overlap[0]], inside[overlap[1]]
            yield (
                f"tensors {one.name[:120]!r} and {other.name[:120]!r} lie on the same bytes, "
                f"and both are needed at tick {other.first}"
            )
    for arena_id, lost in by_arena.items():
        yield f"tensor {lost[0].name[:120]!r} lies in arena {arena_id}, which does not exist"
    yield from check_slots(plan.tensors, plan.report.level)


def _check_height(arena: ArenaFacts, inside: Sequence[Storage]) -> Iterator[str]:
    """Yield offsets that are not aligned, and an arena that does not end at its last storage."""
    top = 0
    for storage in inside:
        top = max(top, storage.offset + storage.bytes)
        if storage.offset % arena.alignment:
            yield f"tensor {storage.name[:120]!r} lies at {storage.offset}, off the alignment"
    if top > arena.height:
        yield f"arena {arena.id} is recorded {arena.height} tall, its tensors reach {top}"
    if arena.height > align(top, arena.alignment):
        yield f"arena {arena.id} is recorded {arena.height} tall, its tensors end at {top}"


def align(size: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is not below ``size``."""
    return -(-size // alignment) * alignment


class Box(NamedTuple):
    """A buffer in time and memory, both half-open: ticks [first, end), bytes [low, high)."""

    first: int
    end: int
    low: int
    high: int


def first_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two boxes that share a byte at a tick, or None if none do.

    The second box is the first in time that overlaps an earlier one. Empty boxes overlap nothing.
    One pass over the boxes by their first tick, with the live ones sorted by address.
    """
    live: list[tuple[int, int, int]] = []
    ends: list[tuple[int, tuple[int, int, int]]] = []
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

    A slot has one offset and one dtype, and at level 0 one shape.
    """
    first_in_slot: dict[tuple[int, int], Placement] = {}
    for row in rows:
        if row.slot is None:
            if level < 2:
                yield f"tensor {row.id[:120]!r} has no slot at level {level}"
            continue
        first = first_in_slot.setdefault((row.arena, row.slot), row)
        allowed = first.offset == row.offset and first.dtype == row.dtype
        if not allowed or (level == 0 and first.shape != row.shape):
            yield (
                f"tensors {first.id[:120]!r} and {row.id[:120]!r} have slot {row.slot}, "
                f"which level {level} does not allow"
            )
