"""Lower bounds of slot reuse: the sizes that the slots must have at least.

Buffers of one kind share slots: a slot is as large as the largest buffer in it, and no two
of its buffers are live at one tick. If k buffers of at least ``size`` bytes are live at one
tick, k slots have at least that size. So the k-th largest slot is at least as large as the
largest size of which k buffers are live together, and the sum of these sizes is a bound.
Where all buffers of a kind have one size, as at level 0, slots as many always suffice.

The bound is that of max-colouring an interval graph (Pemmaraju, Raman and Varadarajan,
"Buffer minimization using max-coloring", 2004).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

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
