"""Slots for buffers of one kind: the least sizes they must have, and which buffer goes where.

A slot is as large as the largest buffer in it and holds one buffer at a time. The cost of an
assignment is the sum of the sizes of its slots. Its minimum is max-colouring of an interval
graph, which is NP-hard.

**Lower bound.** If k buffers of at least ``size`` bytes are live at one tick, k slots have at
least that size. So the k-th largest slot is at least as large as the largest size of which k
buffers are live together, and the sum of these sizes is a bound (Pemmaraju, Raman and
Varadarajan, "Buffer minimization using max-coloring", 2004). If all buffers have one size, as
at level 0, the bound is always reached.

**Assignment.** First fit by falling size solves most problems, with any number of buffers.
Best fit in several orders may also enlarge a free slot that is too small. Best fit into slots
of the least sizes gives the buffers that find none priority in the next round, until all find
one or the work is used up (squeaky-wheel optimisation, Joslin and Clements 1999).

Everything is deterministic: orders end in the place of a buffer in its columns.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from memplan_cli.core.problem import Buffer, Problem

_COUNTED = 4_000_000
"""Sections counted size by size at most, in some tenths of a second and without numpy, which
a small model's plan needs for nothing else."""

_BLOCK = 512
"""Buffers counted together: the ticks at which none of them starts or ends are merged."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Buffers of one kind, as three columns in the order in which they were given.

    Attributes:
        sizes: Aligned bytes.
        starts: First section of each; sections begin where a buffer is first used.
        ends: The section after the last.
        sections: How many sections there are.
    """

    sizes: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    sections: int


def spans_of(buffers: Sequence[Buffer], alignment: int) -> Spans:
    """Return the columns of buffers of one kind. A buffer is in one section at least."""
    ticks = sorted({buffer.live.start for buffer in buffers})
    section = {tick: index for index, tick in enumerate(ticks)}
    starts = [section[buffer.live.start] for buffer in buffers]
    ends = [
        max(bisect_left(ticks, buffer.live.end), start + 1)
        for buffer, start in zip(buffers, starts, strict=True)
    ]
    return Spans([align(b.size, alignment) for b in buffers], starts, ends, len(ticks))


def by_kind(
    buffers: Sequence[Buffer], kind: Callable[[Buffer], Hashable]
) -> dict[Hashable, list[int]]:
    """Return the places of the buffers of each kind, kinds as they appear."""
    found: dict[Hashable, list[int]] = {}
    for place, buffer in enumerate(buffers):
        found.setdefault(kind(buffer), []).append(place)
    return found


def slot_bound(problem: Problem, kind: Callable[[Buffer], Hashable]) -> int:
    """Return the bytes below which no slots hold a problem whose kinds share none."""
    buffers = problem.buffers
    return sum(
        sum(least_slots(spans_of([buffers[place] for place in places], problem.alignment)))
        for places in by_kind(buffers, kind).values()
    )


def least_slots(spans: Spans) -> list[int]:
    """Return the least sizes of the slots, the largest first.

    Buffers are added by falling size; where one raises the most that are live together, a
    slot of its size is needed. A model's sizes are few: then all of one size are added at
    once and the sections counted again. Where they are many, buffers are added in blocks.
    """
    kinds = len(set(spans.sizes))
    way = size_by_size if kinds * spans.sections <= _COUNTED else block_by_block
    return way(spans)


def size_by_size(spans: Spans) -> list[int]:
    """Return the least sizes of the slots: one pass over the sections for each size."""
    places: dict[int, list[int]] = {}
    for at, size in enumerate(spans.sizes):
        places.setdefault(size, []).append(at)
    change = [0] * (spans.sections + 1)
    found: list[int] = []
    for size in sorted(places, reverse=True):
        for at in places[size]:
            change[spans.starts[at]] += 1
            change[spans.ends[at]] -= 1
        found += [size] * (max(accumulate(change)) - len(found))
    return found


def block_by_block(spans: Spans) -> list[int]:
    """Return the least sizes of the slots: one pass over the sections for each block.

    Within a block, an addition touches no more than the sections between its starts and
    ends. Passes and additions are numpy's: half a second for 100,000 buffers.
    """
    import numpy as np

    order = sorted(range(len(spans.sizes)), key=lambda at: -spans.sizes[at])
    starts, ends = np.asarray(spans.starts)[order], np.asarray(spans.ends)[order]
    live = np.zeros(spans.sections + 1, dtype=np.int64)
    found: list[int] = []
    for low in range(0, len(order), _BLOCK):
        first, last = starts[low : low + _BLOCK], ends[low : low + _BLOCK]
        cuts = np.unique(np.concatenate((first, last[last < spans.sections], [0])))
        most = np.maximum.reduceat(live[:-1], cuts)
        lefts, rights = np.searchsorted(cuts, first), np.searchsorted(cuts, last)
        pairs = zip(lefts.tolist(), rights.tolist(), strict=True)
        for at, (left, right) in enumerate(pairs, low):
            touched = most[left:right]
            touched += 1
            if touched.max() > len(found):
                found.append(spans.sizes[order[at]])
        change = np.bincount(first, minlength=spans.sections + 1)
        live += np.cumsum(change - np.bincount(last, minlength=spans.sections + 1))
    return found


Assignment = list[int]
"""The slot of each buffer, by its place in the columns."""

WORK = 8_000_000
"""Work for best fit, about one slot looked at: half a second of one kind of buffers."""

ROUNDS = 60
"""Rounds of priorities for one strategy at most."""

_WIDTH = 8192
"""Slots that first fit tries at once; their numbers are the bits of one integer."""

_QUICKLY_COMPARED = 2048
"""Sections, as bits of one integer, that are compared in about the time of a step."""


def by_start(spans: Spans, at: int) -> tuple[int, ...]:
    """Order buffers by their first use."""
    return spans.starts[at], -spans.sizes[at], at


def by_size(spans: Spans, at: int) -> tuple[int, ...]:
    """Order buffers by falling size, then by their first use."""
    return -spans.sizes[at], spans.starts[at], at


def by_size_from_the_end(spans: Spans, at: int) -> tuple[int, ...]:
    """Order buffers by falling size, then by their last use, the latest first."""
    return -spans.sizes[at], -spans.ends[at], at


def by_lifetime(spans: Spans, at: int) -> tuple[int, ...]:
    """Order buffers by falling lifetime, then by falling size."""
    return spans.starts[at] - spans.ends[at], -spans.sizes[at], at


class Choice(Enum):
    """Which of the free slots that are large enough a buffer takes."""

    TIGHTEST = "tightest"
    LARGEST = "largest"


@dataclass(frozen=True, slots=True)
class Strategy:
    """In which order buffers are assigned, and which free slot each takes."""

    order: Callable[[Spans, int], tuple[int, ...]]
    choice: Choice


FIRST_FIT = {"by size": by_size, "by size from the end": by_size_from_the_end}
"""Orders by falling size, in which no slot is ever enlarged: for any number of buffers."""

BEST_FIT = {
    "by start": Strategy(by_start, Choice.TIGHTEST),
    "by lifetime": Strategy(by_lifetime, Choice.TIGHTEST),
}
"""Best fit that starts with no slots."""

WITH_PRIORITIES = {
    "by start": Strategy(by_start, Choice.TIGHTEST),
    "by size": Strategy(by_size, Choice.LARGEST),
    "by size from the end": Strategy(by_size_from_the_end, Choice.LARGEST),
    "by lifetime": Strategy(by_lifetime, Choice.TIGHTEST),
}
"""Best fit into slots of the least sizes, over and over."""


def cost(spans: Spans, slots: Assignment) -> int:
    """Return the bytes of all slots of an assignment."""
    return sum(_largest(spans, slots).values())


def best_slots(spans: Spans, known: Assignment, work: int = WORK) -> Assignment:
    """Return the cheapest assignment that is found; of equals, the first.

    Args:
        spans: The buffers.
        known: One found before: what is returned costs no more.
        work: How much best fit may look at.
    """
    least = least_slots(spans)
    bound = sum(least)
    best, lowest = known, cost(spans, known)
    if lowest <= bound:
        return best
    for found in _candidates(spans, least, work):
        price = cost(spans, found)
        if price < lowest:
            best, lowest = found, price
        if lowest <= bound:
            break
    return best


def _candidates(spans: Spans, least: Sequence[int], work: int) -> Iterator[Assignment]:
    """Yield assignments, the quick ones first."""
    places = range(len(spans.sizes))
    for order in FIRST_FIT.values():
        yield first_fit(spans, sorted(places, key=partial(order, spans)))
    # A slot is looked at in one step; a mask of many sections takes longer to compare.
    effort = len(places) * (32 + len(least) * (1 + spans.sections // _QUICKLY_COMPARED))
    rounds = work // effort
    for strategy in list(BEST_FIT.values())[:rounds]:
        ordered = sorted(places, key=partial(strategy.order, spans))
        yield best_fit(spans, ordered, strategy.choice, ()).slots
    rounds = min((rounds - len(BEST_FIT)) // len(WITH_PRIORITIES), ROUNDS)
    for strategy in WITH_PRIORITIES.values():
        yield from with_priorities(spans, strategy, least, rounds)


def with_priorities(
    spans: Spans, strategy: Strategy, least: Sequence[int], rounds: int
) -> Iterator[Assignment]:
    """Yield an assignment a round; what found no slot comes earlier in the next."""
    misses = [0] * len(spans.sizes)
    usual = [strategy.order(spans, at) for at in range(len(misses))]
    for _ in range(rounds):
        order = sorted(range(len(misses)), key=lambda at: (-misses[at], usual[at]))
        found = best_fit(spans, order, strategy.choice, least)
        yield found.slots
        for at in found.missed:
            misses[at] += 1


@dataclass(frozen=True, slots=True)
class Filled:
    """An assignment, and the buffers for which no slot was free and large enough."""

    slots: Assignment
    missed: Sequence[int]


def best_fit(
    spans: Spans, order: Sequence[int], choice: Choice, least: Sequence[int]
) -> Filled:
    """Give each buffer a slot that is free and large enough.

    Where there is none, the largest free slot is enlarged; where none is free, one is opened.

    Args:
        spans: The buffers.
        order: Their places in the order in which they are assigned.
        choice: Which slot is taken.
        least: Sizes of slots that are there from the start.
    """
    sizes = sorted(least)
    taken = [0] * len(sizes)  # a bit for each section, by slot, as the sizes
    numbers = list(range(len(sizes)))
    slots = [-1] * len(order)
    missed = []
    for at in order:
        size = spans.sizes[at]
        mask = (1 << spans.ends[at]) - (1 << spans.starts[at])
        enough = bisect_left(sizes, size)
        fitting = range(enough, len(sizes))
        for index in fitting if choice is Choice.TIGHTEST else reversed(fitting):
            if not taken[index] & mask:
                taken[index] |= mask
                slots[at] = numbers[index]
                break
        else:
            missed.append(at)
            smaller = (i for i in reversed(range(enough)) if not taken[i] & mask)
            index = next(smaller, -1)
            number, busy = len(sizes), mask
            if index >= 0:
                number, busy = numbers.pop(index), taken.pop(index) | mask
                del sizes[index]
                enough -= 1
            sizes.insert(enough, size)
            taken.insert(enough, busy)
            numbers.insert(enough, number)
            slots[at] = number
    return Filled(slots, missed)


def first_fit(spans: Spans, order: Sequence[int]) -> Assignment:
    """Give each buffer the first slot that is free, slots in the order of their opening.

    Some slots are tried at once, and what fits in none of them is left for the next: the
    same slots as one by one, in O(log n) steps a try.
    """
    slots = [-1] * len(order)
    rest, base = list(order), 0
    while rest:
        rows = _Rows(spans.sections)
        left = []
        for at in rest:
            start, end = spans.starts[at], spans.ends[at]
            busy = rows.busy(start, end)
            bit = ~busy & (busy + 1)
            if bit >> _WIDTH:
                left.append(at)
                continue
            slots[at] = base + bit.bit_length() - 1
            rows.take(start, end, bit)
        rest, base = left, base + _WIDTH
    return slots


class _Rows:
    """Which slots are taken in which sections: a segment tree of sets of slots.

    A set of slots is an integer, a bit for each. A node knows the slots that are taken in
    all of its sections, and those that are taken in any.
    """

    def __init__(self, sections: int) -> None:
        self._leaves = 1 << max(sections - 1, 0).bit_length()
        self._whole = [0] * (2 * self._leaves)
        self._any = [0] * (2 * self._leaves)

    def busy(self, start: int, end: int) -> int:
        """Return the slots that are taken in some section of a range."""
        whole, some = self._whole, self._any
        left, right = start + self._leaves, end - 1 + self._leaves
        found = some[left] | some[right]
        while left ^ right > 1:  # neither the same node nor children of one
            if not left & 1:
                found |= some[left + 1]
            if right & 1:
                found |= some[right - 1]
            left >>= 1
            right >>= 1
            found |= whole[left] | whole[right]
        left >>= 1
        while left:
            found |= whole[left]
            left >>= 1
        return found

    def take(self, start: int, end: int, slot: int) -> None:
        """Note that a slot is taken in all sections of a range."""
        whole, some = self._whole, self._any
        left, right = start + self._leaves, end - 1 + self._leaves
        nodes = {left, right}
        while left ^ right > 1:
            if not left & 1:
                nodes.add(left + 1)
            if right & 1:
                nodes.add(right - 1)
            left >>= 1
            right >>= 1
            some[left] |= slot
            some[right] |= slot
        for node in nodes:
            whole[node] |= slot
            some[node] |= slot
        left >>= 1
        while left and not some[left] & slot:
            some[left] |= slot
            left >>= 1


def _largest(spans: Spans, slots: Assignment) -> dict[int, int]:
    """Return the size of each slot: that of its largest buffer."""
    found: dict[int, int] = {}
    for slot, size in zip(slots, spans.sizes, strict=True):
        if found.get(slot, -1) < size:
            found[slot] = size
    return found
