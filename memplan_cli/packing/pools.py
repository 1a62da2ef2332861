"""Levels 0 and 1: slots that are reused whole, never split.

At level 0 a slot is reused by buffers of the same dtype and shape, at level 1 by buffers of the
same dtype. A slot is as large as its largest buffer. At level 0 one pass by first use needs the
fewest slots that there can be. At level 1 its slots are the first of several candidates
(`slots.best_slots`); each dtype gets the cheapest.

The two levels are those of Paddle Fluid's memory optimization transpiler (2018), which takes the
first slot that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

from memplan_cli.core.problem import Buffer, BufferId, Layout, Problem, align
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.packing.slots import best_slots, by_kind, slot_buffers

Kind = Callable[[Buffer], Hashable]
"""``kind(buffer)``: buffers may use the same slot if this is equal."""


def same_shape(buffer: Buffer) -> Hashable:
    """Return the kind of level 0: dtype and shape."""
    return buffer.dtype, buffer.shape


def same_dtype(buffer: Buffer) -> Hashable:
    """Return the kind of level 1: the dtype."""
    return buffer.dtype


KINDS: Mapping[int, Kind] = {0: same_shape, 1: same_dtype}
"""By level, the kind that buffers must have in common to share a slot."""


def element_bytes(buffer: Buffer) -> int:
    """Return the bytes of one element; tensors are aligned to it in memory."""
    return max(BITS.get(buffer.dtype, 8) // 8, 1)


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The slot of each buffer of a problem.

    Attributes:
        buffers: The buffers, sorted by start.
        slots: The slot of each buffer. Slots are numbered from 0. All buffers of a slot have one
            dtype.
    """

    buffers: tuple[Buffer, ...]
    slots: tuple[int, ...]

    def sizes(self, alignment: int) -> list[int]:
        """Return the aligned bytes of each slot: those of its largest buffer."""
        sizes = [0] * (max(self.slots, default=-1) + 1)
        for buffer, slot in zip(self.buffers, self.slots, strict=True):
            sizes[slot] = max(sizes[slot], buffer.size)
        return [align(size, alignment) for size in sizes]

    def height(self, alignment: int) -> int:
        """Return the aligned bytes of all slots."""
        return sum(self.sizes(alignment))

    def layout(self, alignment: int) -> Layout:
        """Return the layout with one slot on top of another.

        Slots of wider elements lie below. The size of a slot is a multiple of its element size, and
        element sizes are powers of two. So each slot starts at a multiple of its own element size
        without padding, whatever the alignment.
        """
        sizes = self.sizes(alignment)
        # The bytes of an element of each slot: all buffers of a slot have the same.
        widths = dict(zip(self.slots, map(element_bytes, self.buffers), strict=True))
        stacked = sorted(range(len(sizes)), key=lambda slot: (-widths[slot], slot))
        *bases, top = accumulate([sizes[slot] for slot in stacked], initial=0)
        slot_offset = dict(zip(stacked, bases, strict=True))
        ids = [buffer.id for buffer in self.buffers]
        offsets = [slot_offset[slot] for slot in self.slots]
        return Layout(dict(zip(ids, offsets, strict=True)), height=top)


def pool_levels(problem: Problem) -> tuple[SlotAssignment, SlotAssignment]:
    """Return the assignments of level 0 and of level 1, which needs no more bytes than level 0."""
    first_level = _assign_same_shape(problem)
    return first_level, _cheapest_by_dtype(problem, first_level)


def _assign_same_shape(problem: Problem) -> SlotAssignment:
    """Return the assignment of level 0: each buffer gets the first free slot of its kind, or a new one."""
    buffers = tuple(sorted(problem.buffers, key=lambda b: (b.live.start, b.id)))
    free_slots: dict[Hashable, list[int]] = {}  # heap of the free slots of each kind
    heap_of_slot: list[list[int]] = []  # the heap to which each slot returns
    busy_slots: list[tuple[int, int]] = []  # heap of (tick from which a slot is free, slot)
    slots = []
    for buffer in buffers:
        start, end = buffer.live
        while busy_slots and busy_slots[0][0] <= start:
            _, slot = heappop(busy_slots)
            heappush(heap_of_slot[slot], slot)
        heap = free_slots.setdefault(same_shape(buffer), [])
        if heap:
            slot = heappop(heap)
        else:
            slot = len(heap_of_slot)
            heap_of_slot.append(heap)
        slots.append(slot)
        heappush(busy_slots, (end, slot))
    return SlotAssignment(buffers, tuple(slots))


def _cheapest_by_dtype(problem: Problem, of_level0: SlotAssignment) -> SlotAssignment:
    """Return the cheapest assignment found at level 1, where all buffers of a slot have one dtype.

    Slots are sought for each dtype separately. A dtype keeps its slots of level 0, whose buffers have one
    shape too, if no cheaper ones are found.
    """
    buffers = of_level0.buffers
    # For each buffer its dtype, and its slot among those of the dtype.
    slot_of: list[tuple[Hashable, int]] = [("", 0)] * len(buffers)
    for dtype, indices in by_kind(buffers, same_dtype).items():
        of_dtype = [buffers[index] for index in indices]
        level0_slots = [of_level0.slots[index] for index in indices]
        # `best_slots` returns the slots of level 0 unless it finds cheaper ones.
        slots = best_slots(slot_buffers(of_dtype, problem.alignment), known=level0_slots)
        for index, slot in zip(indices, slots, strict=True):
            slot_of[index] = dtype, slot
    # The slots of all dtypes get numbers from 0 on.
    numbers: dict[tuple[Hashable, int], int] = {}
    numbered = tuple(numbers.setdefault(slot, len(numbers)) for slot in slot_of)
    return SlotAssignment(buffers, numbered)


def level0(problem: Problem) -> Layout:
    """Return the layout with slots for buffers of the same dtype and shape."""
    return _assign_same_shape(problem).layout(problem.alignment)


def level1(problem: Problem) -> Layout:
    """Return the layout with slots for buffers of the same dtype."""
    return pool_levels(problem)[1].layout(problem.alignment)


def naive(problem: Problem) -> Layout:
    """Return the layout without reuse: each buffer on top of the one before it."""
    offsets: dict[BufferId, int] = {}
    top = 0
    for buffer in problem.buffers:
        offsets[buffer.id] = top
        top += align(buffer.size, problem.alignment)
    return Layout(offsets, height=top)
