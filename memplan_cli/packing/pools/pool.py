"""Pool matching for levels 0 and 1: each slot is reused whole, never split.

At level 0 a dead buffer's slot is reused by a buffer of the same dtype and shape, at level 1
by one of the same dtype that is not larger than the slot.
Free slots wait in one sorted shelf per kind, so that 100,000 buffers take some tenths of a
second.

The two levels are those of Paddle Fluid's memory optimization transpiler (2018); choosing
the tightest slot instead of the first that fits is ours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heappop, heappush

from memplan_cli.core.problem import Buffer, Layout, Problem, align

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


@dataclass(frozen=True, slots=True)
class Matching:
    """The buffers by start, and the number of the slot that each one gets.

    Slots are numbered as they appear. The first buffer of a slot is its largest.
    """

    births: tuple[Buffer, ...]
    slots: tuple[int, ...]

    def height(self, alignment: int) -> int:
        """Return the bytes of all slots."""
        first = dict(zip(reversed(self.slots), reversed(self.births), strict=True))
        return sum(align(buffer.size, alignment) for buffer in first.values())

    def layout(self, alignment: int) -> Layout:
        """Return the layout that stacks the slots; its height is the sum of their sizes."""
        bases: list[int] = []
        offsets = {}
        top = 0
        for buffer, slot in zip(self.births, self.slots, strict=True):
            if slot == len(bases):
                bases.append(top)
                top += align(buffer.size, alignment)
            offsets[buffer.id] = bases[slot]
        return Layout(offsets, height=top)


def pool_levels(problem: Problem) -> tuple[Matching, Matching]:
    """Return who gets which slot at level 0, and at level 1: never more bytes than level 0.

    A free hand can do worse than a tied one: a small buffer may take the slot that a large
    one that starts a tick later would have fitted exactly. Level 0 is a level 1 matching too.
    """
    twins = _matched(_births(problem), same_shape)
    own = _matched(twins.births, same_dtype)
    worse = twins.height(problem.alignment) < own.height(problem.alignment)
    return twins, twins if worse else own


def _births(problem: Problem) -> tuple[Buffer, ...]:
    return tuple(sorted(problem.buffers, key=lambda b: (b.live.start, b.id)))


def _matched(births: tuple[Buffer, ...], kind: Kind) -> Matching:
    """Give each buffer the tightest free slot of its kind that holds it, else a new one."""
    shelves: dict[Hashable, list[int]] = {}  # by kind: sizes and numbers of free slots
    home: list[list[int]] = []  # by slot: the shelf it waits on
    sizes: list[int] = []  # by slot
    deaths: list[int] = []  # heap: the tick at which a slot is free, and its number
    found = []
    for buffer in births:
        _, size, (start, end), _, _ = buffer
        while deaths and deaths[0] >> _SLOT_BITS <= start:
            slot = heappop(deaths) & _SLOT
            insort(home[slot], sizes[slot] << _SLOT_BITS | slot)
        shelf = shelves.setdefault(kind(buffer), [])
        at = bisect_left(shelf, size << _SLOT_BITS)
        if at < len(shelf):
            slot = shelf.pop(at) & _SLOT
        else:
            slot = len(sizes)
            sizes.append(size)
            home.append(shelf)
        found.append(slot)
        heappush(deaths, end << _SLOT_BITS | slot)
    return Matching(births, tuple(found))


def level0(problem: Problem) -> Layout:
    """Reuse slots between buffers of the same dtype and shape."""
    return _matched(_births(problem), same_shape).layout(problem.alignment)


def level1(problem: Problem) -> Layout:
    """Reuse slots for buffers of the same dtype that are not larger."""
    return pool_levels(problem)[1].layout(problem.alignment)
