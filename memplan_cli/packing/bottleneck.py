"""Bottleneck subsets: exact search of the few buffers that decide, the others around them.

Of a network's buffers only those decide that are large and live where the load is near its
maximum: the *bottleneck subset*. It is searched alone, at the height that is aimed at, with buffers
of equal live ranges joined to bundles. Then the other buffers go into the gaps, first fit.

    load
      ^   maximum ........__.......      A buffer is in the subset if it is live in a section with
      |       __    __.....|  |..__      at least ``_LOAD_SHARES`` of the maximal load, and has at
      |      |  |__|          |_|  |     least ``_SIZE_SHARES`` of the maximal load in units.
      +------+---------------------+->
                             section

Nothing of this proves a bound: a subset may fit where the whole piece does not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem
from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.pieces import arena_offsets, height_of, reduce_problem
from memplan_cli.packing.search.exact import Answer, Searcher
from memplan_cli.packing.skyline import best_sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.work_budget import WorkBudget
    from memplan_cli.packing.pieces import BestPlacement, Piece, Placement, Reduction
    from memplan_cli.packing.search.state import Ints

_LOAD_SHARES = (0.95, 0.85, 0.0)
"""Shares of the maximal load from which a section counts as full."""
_SIZE_SHARES = (3e-4, 1e-3, 1e-4, 3e-5, 3e-3, 1e-2)
"""Shares of the maximal load from which a buffer counts as large, the most useful first."""
_SUBSET_SHARE = 0.12
"""Share of the remaining work for one subset."""
_SEARCHED_BUNDLES = 6_000
"""Bundles of the largest subset that is searched."""
_SWEPT_BUNDLES = 300
"""Bundles up to which sweeps take less time than setting up a search."""
_CHECKS_PER_WORK = 8
"""Buffers that `fill` passes in the time of a unit of work."""
NOWHERE = -1
"""The offset of a buffer that is not placed."""


@dataclass(frozen=True, slots=True)
class BottleneckSubset:
    """Some buffers of a piece, those of equal live ranges joined to bundles.

    Attributes:
        members: The buffers of each bundle, as indices in the columns of the piece.
        reduction: The bundles as pieces; the id of a bundle is its index in ``members``.
    """

    members: tuple[tuple[int, ...], ...]
    reduction: Reduction

    def unfold(self, piece: Piece, bundle_offsets: Mapping[BufferId, int]) -> Ints:
        """Return the offset of each buffer of the piece, NOWHERE for those not in the subset.

        The buffers of a bundle are stacked from the offset of the bundle.
        """
        offsets = np.full(len(piece.size), NOWHERE, np.int64)
        for bundle, offset in bundle_offsets.items():
            top = offset
            for buffer in self.members[int(bundle)]:
                offsets[buffer] = top
                top += piece.size[buffer]
        return offsets


def bottleneck_subsets(piece: Piece) -> Iterator[BottleneckSubset]:
    """Yield the distinct bottleneck subsets of a piece: at most one for each pair of thresholds.

    Both thresholds, of a buffer's size and a section's load, are shares of the piece's maximal load.
    """
    known: set[tuple[int, ...]] = set()
    for size_share, load_share in product(_SIZE_SHARES, _LOAD_SHARES):
        least_size, least_load = size_share * piece.load, load_share * piece.load
        buffers = _large_buffers(piece, least_size, least_load)
        if buffers and buffers not in known:
            known.add(buffers)
            yield _bundled(piece, buffers)


def _large_buffers(piece: Piece, min_size: float, min_load: float) -> tuple[int, ...]:
    """Return the buffers of at least ``min_size`` units that are live in a full section.

    A section is full if at least ``min_load`` units are live in it.
    """
    # For each section the number of full sections before it.
    full_before = [0, *accumulate(load >= min_load for load in piece.loads)]
    return tuple(
        index
        for index, size in enumerate(piece.size)
        if size >= min_size and full_before[piece.end[index]] > full_before[piece.start[index]]
    )


def _bundled(piece: Piece, buffers: Sequence[int]) -> BottleneckSubset:
    """Return the subset of these buffers, in bundles: buffers with equal live ranges, placed on top of each other.

    Fewer buffers are packed faster, and a layout of the bundles is a layout of the buffers, but perhaps not
    the lowest. Live ranges count as equal if they overlap the same buffers of the subset:

        a    ######            a and b overlap each other and c: they become one bundle. Its live
        b      #######         range is what a and b have in common, which overlaps c too.
        c     ###############
        d               #####

    Without the other buffers of the piece, more live ranges are equal.
    """
    members: list[tuple[int, ...]] = []
    # Each buffer's id is its index in the columns of the piece.
    subset = _problem((i, piece.start[i], piece.end[i], piece.size[i]) for i in buffers)
    for part in reduce_problem(subset).pieces:
        # The part's own sections: buffers with the same ones overlap the same buffers.
        by_range: dict[tuple[int, int], list[int]] = defaultdict(list)
        for buffer, start, end in zip(part.ids, part.start, part.end, strict=True):
            by_range[start, end].append(int(buffer))
        members += map(tuple, by_range.values())
    bundles = _problem(
        (
            index,
            max(piece.start[i] for i in bundle),
            min(piece.end[i] for i in bundle),
            sum(piece.size[i] for i in bundle),
        )
        for index, bundle in enumerate(members)
    )
    return BottleneckSubset(tuple(members), reduce_problem(bundles))


def _problem(rows: Iterable[tuple[int, int, int, int]]) -> Problem:
    """Return a problem with buffers of these (id, start, end, size)."""
    return Problem(
        tuple(
            Buffer(BufferId(str(number)), size, LiveRange(start, end))
            for number, start, end, size in rows
        )
    )


def _by_area(piece: Piece) -> list[int]:
    """Order buffers by size times number of sections, the largest first."""
    area = [
        size * (end - start)
        for size, start, end in zip(piece.size, piece.start, piece.end, strict=True)
    ]
    return sorted(range(len(piece.size)), key=lambda i: (-area[i], i))


def lowered_by_subsets(piece: Piece, best: BestPlacement, budget: WorkBudget) -> BestPlacement:
    """Return the lowest placement found by placing bottleneck subsets first, or ``best``.

    Each subset is placed no higher than the lower bound ``best.bound``, or passed over if no such
    placement is found. The other buffers then go into the gaps, by falling area.
    """
    start, end = np.array(piece.start, np.int64), np.array(piece.end, np.int64)
    size, order = np.array(piece.size, np.int64), np.array(_by_area(piece), np.int64)
    fill_work = len(piece.size) ** 2 // _CHECKS_PER_WORK  # `fill` compares pairs of buffers
    for subset in bottleneck_subsets(piece):
        if best.may_stop(budget):
            break
        bundle_offsets = _bundle_offsets(subset, best.bound, budget)
        if bundle_offsets is None:
            continue
        offsets = subset.unfold(piece, bundle_offsets)  # NOWHERE for all other buffers
        by_offset = np.argsort(offsets, kind="stable")
        height = fill(start, end, size, offsets, by_offset, order)  # completes `offsets`
        budget.spend(fill_work)
        if height < best.height:
            best = replace(best, placement=tuple(map(int, offsets)), height=height)
    return best


def _bundle_offsets(
    subset: BottleneckSubset, capacity: int, budget: WorkBudget
) -> Mapping[BufferId, int] | None:
    """Pack the bundles of a subset alone: by sweeps if they are few and fit, else by exact search.

    Returns:
        The offset of each bundle; None if no layout within ``capacity`` was found. Offsets and
        capacity have the unit of the problem that the subset was taken from; the subset's own
        `Reduction` has a multiple of it.
    """
    reduction = subset.reduction
    part = budget.share(_SUBSET_SHARE)
    bundle_capacity = capacity // reduction.unit
    placements: list[Placement] = []
    for piece in reduction.pieces:
        placement: Placement = ()
        if len(piece.size) <= _SWEPT_BUNDLES:
            placement = best_sweep(piece, bundle_capacity)
        if not placement or height_of(piece, placement) > bundle_capacity:
            if len(piece.size) > _SEARCHED_BUNDLES:
                return None
            answer, placement = Searcher(piece).fit(bundle_capacity, part)
            if answer is not Answer.YES:
                return None
        placements.append(placement)
    return arena_offsets(reduction, placements)


@compiled
def _lowest_gap(
    start: Ints, end: Ints, size: Ints, offset: Ints, by_offset: Ints, count: int, buffer: int
) -> int:
    """Return the lowest offset at which a buffer overlaps no placed buffer.

    The placed buffers are the first ``count`` of ``by_offset``, sorted by offset. The other columns
    are those of `fill`.
    """
    begin, stop, units = start[buffer], end[buffer], size[buffer]
    floor = 0
    for index in range(count):
        other = by_offset[index]
        if start[other] < stop and begin < end[other]:
            if offset[other] - floor >= units:
                break
            floor = max(floor, offset[other] + size[other])
    return int(floor)


@compiled
def fill(
    start: Ints, end: Ints, size: Ints, offset: Ints, by_offset: Ints, order: Ints
) -> int:
    """Place every buffer whose offset is NOWHERE by first fit; return the height.

    Args:
        start: First section of each buffer.
        end: Section after the last of each buffer.
        size: Units of each buffer.
        offset: Units below each buffer, or NOWHERE. Changed: all buffers are placed.
        by_offset: All buffers, those with an offset sorted by it. Changed: sorted by the new offsets.
        order: All buffers, in the order in which they are placed.
    """
    count, height = 0, 0
    for buffer in by_offset:
        if offset[buffer] >= 0:
            by_offset[count] = buffer
            count += 1
            height = max(height, offset[buffer] + size[buffer])
    for buffer in order:
        if offset[buffer] >= 0:
            continue
        floor = _lowest_gap(start, end, size, offset, by_offset, count, buffer)
        offset[buffer] = floor
        index = count
        while index > 0 and offset[by_offset[index - 1]] > floor:
            by_offset[index] = by_offset[index - 1]
            index -= 1
        by_offset[index] = buffer
        count += 1
        height = max(height, floor + size[buffer])
    return int(height)
