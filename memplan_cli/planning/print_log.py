"""The lines of ``--print-log``: which tensor reuses the memory of which other one.

The log is computed from the placements of the plan, so that the two cannot differ.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan


@dataclass(frozen=True, slots=True)
class Reuse:
    """The memory that one tensor reuses, if any.

    Attributes:
        donor: The tensor that had the memory just before; None: there is none.
        pool: The number of free slots when the tensor starts, at levels 0 and 1.
        reason: Why there is no donor; empty if there is one.
    """

    tensor: Placement
    donor: Placement | None
    pool: int = 0
    reason: str = ""


def log_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines of the reuse log: one per tensor by start tick, then the unplanned tensors.

    Lines of tensors that reuse memory begin with a running number, others with ``-``.
    """
    reuse_number = 0
    for reuse in reuses(plan.tensors, plan.report.level):
        name = _described(reuse.tensor)
        if reuse.donor is None:
            yield f"-: {name} not reused: {reason_for_no_reuse(plan, reuse)}"
            continue
        tensor = reuse.tensor
        where = (
            f"arena {tensor.arena} @{tensor.offset}"
            if tensor.slot is None
            else f"slot {tensor.slot}, pool {reuse.pool}"
        )
        yield f"{reuse_number}: {name} => {_described(reuse.donor)}, {where}"
        reuse_number += 1
    placed = {tensor.id for tensor in plan.tensors}  # pinned tensors are among them
    for refusal in plan.report.unplanned:
        if refusal.name not in placed:
            yield f"-: {refusal.name} not reused: {refusal.reason}"


def is_left_alone(plan: Plan) -> bool:
    """Whether the settings turn planning off for the phase of the plan's model."""
    mem_param = plan.settings.get("mem_param")
    key = f"optimize_{plan.report.phase}"
    return isinstance(mem_param, dict) and mem_param.get(key) is False


def reason_for_no_reuse(plan: Plan, reuse: Reuse) -> str:
    """Return why a tensor of a plan reuses no memory; empty if it does."""
    if reuse.donor is None and is_left_alone(plan):
        return "the model is left as it is"
    return reuse.reason


def reuses(tensors: Sequence[Placement], level: int = 1) -> Iterator[Reuse]:
    """Yield, by start tick, a `Reuse` for each tensor: the tensor whose memory it reuses, or why there is none.

    The level of the plan affects the reasons only: at level 0 a free slot may be refused because of its shape.
    """
    pools = _slot_pools(tensors, level)
    maps: dict[int, _AddressMap] = {}
    for tensor in sorted(tensors, key=attrgetter("first", "id")):
        if tensor.slot is None:
            yield maps.setdefault(tensor.arena, _AddressMap()).take(tensor)
        else:
            yield pools[tensor.arena].take(tensor)


def _slot_pools(tensors: Sequence[Placement], level: int) -> dict[int, _SlotPool]:
    """Return a pool for each arena that has slots, with the size of each slot and no tensor yet."""
    pools: dict[int, _SlotPool] = {}
    for tensor in tensors:
        if tensor.slot is not None:
            sizes = pools.setdefault(tensor.arena, _SlotPool(level)).sizes
            if sizes.get(tensor.slot, -1) < tensor.bytes:
                sizes[tensor.slot] = tensor.bytes
    return pools


def _described(tensor: Placement) -> str:
    """Return a tensor's id and shape, such as ``hidden[8,64]``."""
    return f"{tensor.id}[{','.join(map(str, tensor.shape))}]"


class _SlotPool:
    """The slots of one arena while its tensors are placed in order of their start.

    A slot is a part of the arena that tensors have whole, one after the other. It has the bytes of the
    largest tensor that the plan puts into it.
    """

    def __init__(self, level: int) -> None:
        """Make a pool without tensors; the caller fills ``sizes``.

        Args:
            level: The level of the plan. A tensor reuses a slot of its dtype that is large enough,
                and at level 0 only one of its shape.
        """
        self._level = level
        self.sizes: dict[int, int] = {}
        """The bytes of each slot, by its number."""
        self._owners: dict[int, Placement] = {}
        """The tensor that had each slot last."""
        self._free: dict[int, Placement] = {}
        """The last owner of each free slot."""
        self._release_queue: list[tuple[int, int]] = []
        """A heap of the ticks at which slots become free, each with its slot."""

    def take(self, tensor: Placement) -> Reuse:
        """Put a tensor into its slot, and return the reuse of the slot. Called in order of the starts."""
        # ``last`` is exclusive: a slot is free from the tick ``last`` of its tensor on.
        while self._release_queue and self._release_queue[0][0] <= tensor.first:
            slot = heappop(self._release_queue)[1]
            self._free[slot] = self._owners[slot]
        free_count = len(self._free)
        assert tensor.slot is not None  # noqa: S101 - only tensors with a slot are put into pools
        donor = self._free.pop(tensor.slot, None)
        reason = "" if donor else self._why_no_donor(tensor)
        self._owners[tensor.slot] = tensor
        heappush(self._release_queue, (tensor.last, tensor.slot))
        return Reuse(tensor, donor, free_count, reason)

    def _why_no_donor(self, tensor: Placement) -> str:
        """Return why a tensor starts a new slot although others may be free.

        Each reason rules out more slots than the one before: by dtype, by size, at level 0 by shape.
        If a slot is left nevertheless, the assignment of slots has kept it for a later tensor.
        """
        if tensor.pinned:
            return tensor.pinned
        if not self._free:
            return "no slot is free"
        slots = [slot for slot, owner in self._free.items() if owner.dtype == tensor.dtype]
        if not slots:
            return f"no free slot holds {tensor.dtype}"
        if all(self.sizes[slot] < tensor.bytes for slot in slots):
            return f"no free slot of {tensor.dtype} is as large as {tensor.bytes} bytes"
        if self._level == 0 and all(self._free[slot].shape != tensor.shape for slot in slots):
            return f"no free slot of {tensor.dtype} has its shape"
        return f"the free slots of {tensor.dtype} are reserved for later tensors"


class _Segment(NamedTuple):
    """The addresses ``[start, end)`` of an arena, and the last tensor there."""

    start: int
    end: int
    owner: Placement


class _AddressMap:
    """The last tensor at each address of one arena."""

    def __init__(self) -> None:
        """Make the map of an arena that no tensor has used yet."""
        self._segments: list[_Segment] = []
        """The used parts of the arena, each with its last tensor; disjoint, by start."""
        self._starts: list[int] = []
        """The start of each segment."""

    def take(self, tensor: Placement) -> Reuse:
        """Place the next tensor at its addresses, and return the reuse of these.

        Of several donors the one that was live last is named.
        """
        if not tensor.bytes:
            return Reuse(tensor, None, reason="it has no bytes")
        donors = self._replace(tensor.offset, tensor.offset + tensor.bytes, tensor)
        if donors:
            return Reuse(tensor, max(donors, key=lambda donor: (donor.last, donor.id)))
        why_pinned = tensor.pinned  # a text; None if the tensor is not pinned
        return Reuse(tensor, None, reason=why_pinned or "first use of this memory range")

    def _replace(self, low: int, high: int, tensor: Placement) -> list[Placement]:
        """Make a tensor the owner of the addresses ``[low, high)``, and return the owners before it.

        Segments that extend beyond the interval keep their parts outside of it.
        """
        first = bisect_right(self._starts, low)
        if first and self._segments[first - 1].end > low:  # it reaches into the interval
            first -= 1
        end = bisect_left(self._starts, high)
        overlapping = self._segments[first:end]
        new = [_Segment(low, high, tensor)]
        if overlapping and overlapping[0].start < low:
            new.insert(0, overlapping[0]._replace(end=low))
        if overlapping and overlapping[-1].end > high:
            new.append(overlapping[-1]._replace(start=high))
        self._segments[first:end] = new
        self._starts[first:end] = [segment.start for segment in new]
        return [segment.owner for segment in overlapping]
