"""Arenas that cannot be lower: what is live at one tick, or the slots that there must be.

What is live at a tick has to lie beside each other. At levels 0 and 1 a slot is reused whole:
if k tensors of one kind and of at least so many bytes are live at a tick, k slots have at
least that size, so the k-th largest has, and the sum over all slots of all kinds is a bound.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.refused import refuse_unless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.checking.certificates.tensors import Tensor
    from memplan_cli.core.results.certificate import ArenaProof, SlotLoad
    from memplan_cli.core.results.placements import ArenaFacts

_Kind = tuple[str, "tuple[int | str, ...] | None"]


@dataclass(slots=True)
class Storage:
    """The bytes of one tensor, or of several that share them, from a tick to before another."""

    size: int
    first: int
    after: int


def storages(tensors: Mapping[str, Tensor], arena: int) -> Sequence[Storage]:
    """Return what lies in an arena.

    Raises:
        RefusedError: a tensor shares the bytes of one that is not there.
    """
    found: dict[str, Storage] = {}
    for name, tensor in tensors.items():
        row = tensor.row
        if row.arena != arena:
            continue
        base = row.alias_of or name
        other = tensors.get(base)
        refuse_unless(
            other is not None and other.row.arena == arena and other.row.bytes == row.bytes,
            f"tensor {name[:120]!r} shares the bytes of {base[:120]!r}, which is not there",
        )
        known = found.setdefault(base, Storage(row.bytes, row.first, row.last))
        known.first, known.after = min(known.first, row.first), max(known.after, row.last)
    return list(found.values())


def check_arena(
    arena: ArenaFacts, tensors: Mapping[str, Tensor], level: int, proof: ArenaProof
) -> None:
    """Refuse a proof that does not show an arena's bound.

    Raises:
        RefusedError: with the reason.
    """
    if proof.method == "load":
        refuse_unless(proof.tick is not None, "it names no tick")
        found = sum(
            _aligned(each.size, arena.alignment)
            for each in storages(tensors, arena.id)
            if each.first <= (proof.tick or 0) < each.after
        )
        refuse_unless(
            found >= proof.bound,
            f"at tick {proof.tick} there are {found} bytes live, not {proof.bound}",
        )
        return
    refuse_unless(level < 2, "at level 2 no slots are reused whole")
    inside = [tensor for tensor in tensors.values() if tensor.row.arena == arena.id]
    refuse_unless(
        all(tensor.row.alias_of is None for tensor in inside), "tensors of it share bytes"
    )
    by_kind: dict[_Kind, list[SlotLoad]] = defaultdict(list)
    for entry in proof.slots:
        refuse_unless(
            level == 0 or entry.shape is None,
            "at level 1 tensors of different shapes share slots, and it counts them apart",
        )
        by_kind[entry.dtype, entry.shape].append(entry)
    coarse = {dtype for dtype, shape in by_kind if shape is None}
    refuse_unless(
        not any(shape is not None and dtype in coarse for dtype, shape in by_kind),
        "tensors are counted twice: of one shape, and of all",
    )
    found = sum(_slots(kind, entries, inside, arena) for kind, entries in by_kind.items())
    refuse_unless(found >= proof.bound, f"its slots take {found} bytes, not {proof.bound}")


def _slots(
    kind: _Kind, entries: Iterable[SlotLoad], inside: Iterable[Tensor], arena: ArenaFacts
) -> int:
    """Return the bytes of the slots that one kind needs."""
    dtype, shape = kind
    members = [
        Storage(_aligned(t.row.bytes, arena.alignment), t.row.first, t.row.last)
        for t in inside
        if t.row.dtype == dtype and shape in (None, t.row.shape)
    ]
    _count(sorted(entries, key=lambda entry: entry.tick), members)
    total, counted = 0, 0
    for entry in sorted(entries, key=lambda entry: -entry.bytes):
        total += max(entry.number - counted, 0) * entry.bytes
        counted = max(counted, entry.number)
    return total


def _count(entries: Iterable[SlotLoad], members: Iterable[Storage]) -> None:
    """Refuse an entry at whose tick not so many tensors of its size are live.

    Raises:
        RefusedError: naming the entry.
    """
    waiting = iter(sorted(members, key=lambda each: each.first))
    coming: Iterator[Storage | None] = iter([*waiting, None])
    upcoming = next(coming)
    live: list[int] = []
    ending: list[tuple[int, int]] = []
    for entry in entries:
        while upcoming is not None and upcoming.first <= entry.tick:
            insort(live, upcoming.size)
            heappush(ending, (upcoming.after, upcoming.size))
            upcoming = next(coming)
        while ending and ending[0][0] <= entry.tick:
            _, gone = heappop(ending)
            del live[bisect_left(live, gone)]
        found = len(live) - bisect_left(live, entry.bytes)
        refuse_unless(
            found >= entry.number,
            f"at tick {entry.tick} there are {found} tensors of at least {entry.bytes} bytes "
            f"and type {entry.dtype[:40]}, not {entry.number}",
        )


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
