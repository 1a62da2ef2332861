"""Slot reuse at levels 0 and 1: slots that are reused whole, never split.

Level 0 gives a slot to buffers of the same dtype and shape, level 1 to buffers of the same
dtype; a slot is as large as the largest buffer in it, whenever that one is live. At level 0
one matching by first use needs the fewest slots that there can be. At level 1 its slots are
the first of several candidates (`slots`), each dtype takes the cheapest, and the lower bound
(`slot_bound`) ends the search.

The two levels are those of Paddle Fluid's memory optimization transpiler (2018), which
takes the first slot that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

from memplan_cli.core.problem import Buffer, Layout, Problem, align
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.packing.slots import best_slots, by_kind, spans_of

Kind = Callable[[Buffer], Hashable]
"""What two buffers must have in common for one to follow the other in a slot."""

_SLOT_BITS = 40
"""A number and a slot are kept as one integer, which compares faster than a pair."""

_SLOT = (1 << _SLOT_BITS) - 1


def same_shape(buffer: Buffer) -> Hashable:
    """Return the kind of level 0: only a twin may follow."""
    return buffer.dtype, buffer.shape


def same_dtype(buffer: Buffer) -> Hashable:
    """Return the kind of level 1: anything of the same type that is not larger may follow."""
    return buffer.dtype


def element_bytes(buffer: Buffer) -> int:
    """Return the bytes of one element, which an offset in memory is a multiple of."""
    return max(BITS.get(buffer.dtype, 8) // 8, 1)


KINDS: Mapping[int, Kind] = {0: same_shape, 1: same_dtype}
"""By level, what buffers must have in common to share a slot."""


@dataclass(frozen=True, slots=True)
class Matching:
    """The buffers by start, and the number of the slot that each one gets.

    Slots are numbered as they appear. A slot is as large as the largest buffer in it.
    """

    births: tuple[Buffer, ...]
    slots: tuple[int, ...]

    def sizes(self, alignment: int) -> list[int]:
        """Return the aligned bytes of each slot."""
        found: list[int] = []
        for buffer, slot in zip(self.births, self.slots, strict=True):
            if slot == len(found):
                found.append(buffer.size)
            elif found[slot] < buffer.size:
                found[slot] = buffer.size
        return [align(size, alignment) for size in found]

    def height(self, alignment: int) -> int:
        """Return the bytes of all slots."""
        return sum(self.sizes(alignment))

    def layout(self, alignment: int) -> Layout:
        """Return the layout that stacks the slots; its height is the sum of their sizes.

        Slots of wider elements lie below: each then starts at a multiple of its own
        elements, for nothing, whatever the alignment.
        """
        sizes = self.sizes(alignment)
        widths = dict(zip(self.slots, map(element_bytes, self.births), strict=True))
        stacked = sorted(range(len(sizes)), key=lambda slot: (-widths[slot], slot))
        *bases, top = accumulate([sizes[slot] for slot in stacked], initial=0)
        base_of = dict(zip(stacked, bases, strict=True))
        ids = [buffer.id for buffer in self.births]
        offsets = [base_of[slot] for slot in self.slots]
        return Layout(dict(zip(ids, offsets, strict=True)), height=top)


def pool_levels(problem: Problem) -> tuple[Matching, Matching]:
    """Return who gets which slot at level 0, and at level 1: never more bytes than level 0."""
    twins = _matched(_births(problem))
    return twins, _cheapest(problem, twins)


def _cheapest(problem: Problem, known: Matching) -> Matching:
    """Return the cheapest matching of level 1 that is found, dtype by dtype."""
    births = known.births
    found: list[tuple[Hashable, int]] = [("", 0)] * len(births)
    for dtype, places in by_kind(births, same_dtype).items():
        spans = spans_of([births[place] for place in places], problem.alignment)
        slots = best_slots(spans, [known.slots[place] for place in places])
        for place, slot in zip(places, slots, strict=True):
            found[place] = dtype, slot
    numbers: dict[tuple[Hashable, int], int] = {}
    return Matching(births, tuple(numbers.setdefault(slot, len(numbers)) for slot in found))


def _births(problem: Problem) -> tuple[Buffer, ...]:
    return tuple(sorted(problem.buffers, key=lambda b: (b.live.start, b.id)))


def _matched(births: tuple[Buffer, ...]) -> Matching:
    """Give each buffer the first slot of its twins that is free, else a new one."""
    shelves: dict[Hashable, list[int]] = {}  # by dtype and shape: a heap of free slots
    home: list[list[int]] = []  # by slot: the shelf it waits on
    deaths: list[int] = []  # heap: the tick at which a slot is free, and its number
    found = []
    for buffer in births:
        start, end = buffer.live
        while deaths and deaths[0] >> _SLOT_BITS <= start:
            slot = heappop(deaths) & _SLOT
            heappush(home[slot], slot)
        shelf = shelves.setdefault(same_shape(buffer), [])
        if shelf:
            slot = heappop(shelf)
        else:
            slot = len(home)
            home.append(shelf)
        found.append(slot)
        heappush(deaths, end << _SLOT_BITS | slot)
    return Matching(births, tuple(found))


def level0(problem: Problem) -> Layout:
    """Reuse slots between buffers of the same dtype and shape."""
    return _matched(_births(problem)).layout(problem.alignment)


def level1(problem: Problem) -> Layout:
    """Let buffers of one dtype share slots, each as large as its largest buffer."""
    return pool_levels(problem)[1].layout(problem.alignment)
