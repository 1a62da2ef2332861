"""Offsets of a plan: nothing that is needed at one tick lies on the same bytes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.checking.subject import Subject
    from memplan_cli.core.results.placements import ArenaFacts, Placement


@dataclass(slots=True)
class Storage:
    """Bytes that one tensor or several have, from the first use of any to the last."""

    name: str
    arena: int
    offset: int
    bytes: int
    first: int
    last: int
    """The tick after the last use."""
    members: list[Placement]


def storages(rows: Iterable[Placement]) -> list[Storage]:
    """Return the storages of a plan's tensors: tensors that share bytes have one."""
    found: dict[str, Storage] = {}
    for row in rows:
        base = row.alias_of or row.id
        known = found.get(base)
        if known is None:
            found[base] = Storage(
                base, row.arena, row.offset, row.bytes, row.first, row.last, [row]
            )
        else:
            known.bytes = max(known.bytes, row.bytes)
            known.first, known.last = min(known.first, row.first), max(known.last, row.last)
            known.members.append(row)
    return list(found.values())


def check_layout(subject: Subject, everything: Sequence[Storage]) -> Iterator[str]:
    """Yield the tensors that overlap or lie outside of their arena, and wrong slots."""
    by_arena: defaultdict[int, list[Storage]] = defaultdict(list)
    for storage in everything:
        by_arena[storage.arena].append(storage)
    for arena in subject.plan.arenas:
        inside = by_arena.pop(arena.id, [])
        yield from _edges(arena, inside)
        yield from _overlaps(inside)
    for arena_id, lost in by_arena.items():
        yield f"tensor {lost[0].name[:120]!r} lies in arena {arena_id}, which is not there"
    rows = (row for storage in everything for row in storage.members)
    yield from check_slots(rows, subject.plan.report.level)


def _edges(arena: ArenaFacts, inside: Sequence[Storage]) -> Iterator[str]:
    top = 0
    for storage in inside:
        top = max(top, storage.offset + storage.bytes)
        if storage.offset % arena.alignment:
            yield f"tensor {storage.name[:120]!r} lies at {storage.offset}, off the alignment"
    if top > arena.height:
        yield f"arena {arena.id} is said to be {arena.height} tall, its tensors reach {top}"
    padded = -(-top // arena.alignment) * arena.alignment
    if arena.height > padded:
        yield f"arena {arena.id} is said to be {arena.height} tall, its tensors end at {top}"


def _overlaps(inside: Sequence[Storage]) -> Iterator[str]:
    live: list[tuple[int, int, int]] = []
    ending: list[tuple[int, tuple[int, int, int]]] = []
    order = sorted(range(len(inside)), key=lambda at: inside[at].first)
    for at in order:
        storage = inside[at]
        if not storage.bytes:
            continue
        while ending and ending[0][0] <= storage.first:
            _, gone = heappop(ending)
            del live[bisect_left(live, gone)]
        low, high = storage.offset, storage.offset + storage.bytes
        place = bisect_left(live, (low,))
        near = live[max(place - 1, 0) : place + 1]
        for start, stop, other in near:
            if start < high and low < stop:
                tick = storage.first
                yield (
                    f"tensors {inside[other].name[:120]!r} and {storage.name[:120]!r} lie on "
                    f"the same bytes, and both are needed at tick {tick}"
                )
                return
        entry = (low, high, at)
        insort(live, entry)
        heappush(ending, (storage.last, entry))


def check_slots(rows: Iterable[Placement], level: int) -> Iterator[str]:
    """Yield the tensors of a slot that its level does not allow in it."""
    firsts: dict[tuple[int, int], Placement] = {}
    for row in rows:
        if row.slot is None:
            if level < 2:
                yield f"tensor {row.id[:120]!r} has no slot at level {level}"
            continue
        first = firsts.setdefault((row.arena, row.slot), row)
        same = first.offset == row.offset and first.dtype == row.dtype
        if not same or (level == 0 and first.shape != row.shape):
            yield (
                f"tensors {first.id[:120]!r} and {row.id[:120]!r} have slot {row.slot}, "
                f"which level {level} does not allow"
            )
