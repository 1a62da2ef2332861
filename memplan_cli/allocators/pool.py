"""Pool matching: who takes over whose slot, and why does the rest take none?

A dead buffer's slot is handed on whole, never split. Level 0 hands it to a buffer of the
same dtype and shape, level 1 to one of the same dtype that is not larger than the slot.
Free slots wait in one sorted list per kind, so that 100,000 buffers take about a second.

The two levels are those of Paddle Fluid's memory optimization transpiler (2018); choosing
the tightest slot instead of the first that fits is ours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.problem import Buffer, BufferId, Layout, Problem, align

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


@dataclass(frozen=True, slots=True)
class Match:
    """Which slots a buffer may take: those of its ``kind`` that are not smaller."""

    kind: Callable[[Buffer], Hashable]
    described: Callable[[Buffer], str]


def _described_shape(buffer: Buffer) -> str:
    dims = ",".join(str(dim) for dim in buffer.shape)
    return f"dtype {buffer.dtype} and shape [{dims}]"


def _described_dtype(buffer: Buffer) -> str:
    return f"dtype {buffer.dtype}"


SAME_SHAPE = Match(
    kind=lambda buffer: (buffer.dtype, buffer.shape), described=_described_shape
)
"""Level 0: only a twin may follow."""

SAME_DTYPE = Match(kind=lambda buffer: buffer.dtype, described=_described_dtype)
"""Level 1: anything of the same type that is not larger may follow."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What one buffer got: the slot of ``donor``, or a new one for the ``reason`` given.

    ``pool`` is the number of free slots, of any kind, at the moment the buffer was born.
    ``reason`` is empty when there is a donor.
    """

    buffer: BufferId
    donor: BufferId | None
    slot: int
    pool: int
    reason: str = ""


@dataclass(slots=True)
class _Slot:
    size: int
    kind: Hashable
    holder: BufferId


@dataclass(slots=True)
class _Pool:
    """All slots so far, and the free ones of each kind as sorted ``(size, slot)`` pairs."""

    slots: list[_Slot]
    free: dict[Hashable, list[tuple[int, int]]]
    releases: list[tuple[int, int]]  # heap of (tick at which it is free, slot)
    count: int = 0

    def release_until(self, tick: int) -> None:
        """Put every slot back whose holder is dead at ``tick``."""
        while self.releases and self.releases[0][0] <= tick:
            _, index = heappop(self.releases)
            slot = self.slots[index]
            insort(self.free.setdefault(slot.kind, []), (slot.size, index))
            self.count += 1

    def tightest(self, kind: Hashable, size: int) -> int | None:
        """Take the smallest free slot of ``kind`` that holds ``size``, if there is one."""
        free = self.free.get(kind, [])
        at = bisect_left(free, (size, 0))
        if at == len(free):
            return None
        self.count -= 1
        return free.pop(at)[1]


def pools(problem: Problem, *, fits: Match) -> tuple[Handover, ...]:
    """Give each buffer the tightest free slot it may take, else a new one.

    Returns one handover a buffer, in order of birth.
    """
    pool = _Pool(slots=[], free={}, releases=[])
    handovers = []
    for buffer in sorted(problem.buffers, key=lambda b: (b.live.start, b.id)):
        pool.release_until(buffer.live.start)
        free = pool.count
        kind = fits.kind(buffer)
        index = pool.tightest(kind, buffer.size)
        if index is None:
            reason = _refusal(pool, buffer, fits)
            index = len(pool.slots)
            pool.slots.append(_Slot(buffer.size, kind, buffer.id))
            handovers.append(Handover(buffer.id, None, index, free, reason))
        else:
            donor = pool.slots[index].holder
            pool.slots[index].holder = buffer.id
            handovers.append(Handover(buffer.id, donor, index, free))
        heappush(pool.releases, (buffer.live.end, index))
    return tuple(handovers)


def _refusal(pool: _Pool, buffer: Buffer, fits: Match) -> str:
    if not pool.count:
        return "nothing is dead yet" if not pool.releases else "no slot is free"
    if not pool.free.get(fits.kind(buffer)):
        return f"no free slot has {fits.described(buffer)}"
    return f"no free slot of {fits.described(buffer)} is large enough"


def slot_layout(problem: Problem, handovers: Sequence[Handover]) -> Layout:
    """Return the layout that stacks the slots; its height is the sum of their sizes."""
    sizes = {buffer.id: buffer.size for buffer in problem.buffers}
    bases: list[int] = []
    top = 0
    for handover in handovers:
        # Slots are numbered as they appear, and the first holder is the largest.
        if handover.donor is None:
            bases.append(top)
            top += align(sizes[handover.buffer], problem.alignment)
    return Layout({h.buffer: bases[h.slot] for h in handovers}, height=top)


def level0_pools(problem: Problem) -> tuple[Handover, ...]:
    """Return who follows whom when only twins may."""
    return pools(problem, fits=SAME_SHAPE)


def level1_pools(problem: Problem) -> tuple[Handover, ...]:
    """Return who follows whom at level 1: the better of its own matching and level 0's.

    A free hand can do worse than a tied one: a small buffer may take the slot that a large
    one, born a tick later, would have fitted exactly. Level 0 is a level 1 matching too.
    """
    own, twins = pools(problem, fits=SAME_DTYPE), level0_pools(problem)
    if slot_layout(problem, twins).height < slot_layout(problem, own).height:
        return twins
    return own


def level0(problem: Problem) -> Layout:
    """Hand slots on between buffers of the same dtype and shape."""
    return slot_layout(problem, level0_pools(problem))


def level1(problem: Problem) -> Layout:
    """Hand slots on to buffers of the same dtype that are not larger."""
    return slot_layout(problem, level1_pools(problem))
