"""The least bytes of the arenas of a plan, counted from its tensors.

*Load*, at level 2: everything that is live at one tick has bytes of its own.

*Slots*, at levels 0 and 1: a slot is reused whole, by tensors of one kind: of one dtype, and at level 0
of one shape. If k tensors of a kind with at least some bytes are live at one tick, k of its slots have at
least these bytes. So the k-th largest slot has, and the sum over the slots of all kinds is a bound.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

from memplan_cli.checking.live_bytes import LiveBytes, align, peak_bytes, tensor_storages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan


def arena_bounds(plan: Plan) -> Mapping[int, int]:
    """Return a lower bound of the height of each arena, by arena id, in the arena's unit."""
    rows: defaultdict[int, list[Placement]] = defaultdict(list)
    for row in plan.tensors:
        rows[row.arena].append(row)
    level = plan.report.level
    may_have_any_offset = level == 2  # at levels 0 and 1 each tensor has a slot
    return {
        arena.id: _load(rows[arena.id], arena.alignment)
        if may_have_any_offset
        else _slot_bytes(rows[arena.id], level, arena.alignment)
        for arena in plan.arenas
    }


def _load(rows: Sequence[Placement], alignment: int) -> int:
    """Return the most aligned bytes that are live at one tick. Tensors that share bytes count once."""
    return peak_bytes(
        LiveBytes(storage.first, storage.end, align(storage.bytes, alignment))
        for storage in tensor_storages(rows)
    )


def _slot_bytes(rows: Sequence[Placement], level: int, alignment: int) -> int:
    """Return the least bytes of all slots together, at level 0 or 1.

    A slot is for tensors of one kind: of one dtype, and at level 0 of one shape. Tensors with ``alias_of``,
    which only a forged plan of these levels has, are left out.
    """
    tensors_by_kind: defaultdict[tuple[str, Shape | None], list[LiveBytes]] = defaultdict(list)
    for row in rows:
        if row.alias_of is None:
            # The ``last`` of a row is the tick after its last use.
            tensor = LiveBytes(row.first, row.last, align(row.bytes, alignment))
            tensors_by_kind[row.dtype, row.shape if level == 0 else None].append(tensor)
    return sum(map(_slot_bytes_of_kind, tensors_by_kind.values()))


def _slot_bytes_of_kind(tensors: Sequence[LiveBytes]) -> int:
    """Return the least bytes of slots for tensors of one kind, each of which may use any slot that is large enough.

    Tensors are added by falling size. If more of them are then live at one tick than there are slots, a slot of
    this size is added for each tensor in excess.
    """
    by_size: defaultdict[int, list[LiveBytes]] = defaultdict(list)
    for tensor in tensors:
        by_size[tensor.bytes].append(tensor)
    ticks = {tick for tensor in tensors for tick in (tensor.first, tensor.end)}
    # Tick -> by how much the number of live tensors changes there, in order of ticks.
    changes = dict.fromkeys(sorted(ticks), 0)
    total = slots = 0
    for size in sorted(by_size, reverse=True):
        for first, end, _ in by_size[size]:
            changes[first] += 1
            changes[end] -= 1
        most_live = max(accumulate(changes.values()))
        added_slots = most_live - slots  # not below 0: tensors are only added
        total += added_slots * size
        slots = most_live
    return total
