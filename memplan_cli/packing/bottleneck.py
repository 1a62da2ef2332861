"""Bottleneck subsets: exact search of the few buffers that decide, the others around them.

Of a network's buffers only those matter that are large and live where the load is near its
maximum: the *bottleneck subset*. It is searched alone, at the height that is aimed at, buffers
of equal live ranges as one bundle; then the others go into the gaps, first fit, in several
orders.

    load   maximum ........__.......     load share: live where the load is near the maximum
              __    __.....|  |..__       size share: and not too small for that
             |  |__|          |_|  |
             +------------------------> section
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem
from memplan_cli.packing.budget import BestPlacement
from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.ejection_chains import completed_at_bound
from memplan_cli.packing.greedy import (
    by_area,
    by_end,
    by_load,
    by_size,
    by_start,
)
from memplan_cli.packing.pieces import NOWHERE, assemble, height_of, reduce
from memplan_cli.packing.search.exact import Answer, Searcher
from memplan_cli.packing.skyline import best_sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.packing.budget import Budget
    from memplan_cli.packing.greedy import Order
    from memplan_cli.packing.pieces import Piece, Placement, Reduction
    from memplan_cli.packing.search.board import Ints

_LOAD_SHARES = (0.95, 0.85, 0.0)
_SIZE_SHARES = (3e-4, 1e-3, 1e-4, 3e-5, 3e-3, 1e-2)
_EACH = 0.12
"""Share of what is left of the work for one subset."""
_MOST = 6_000
"""Bundles of the largest subset that is searched."""
_SWEPT = 300
"""Bundles up to which sweeps take less time than setting up a search."""
_REPAIRED = 3_000
"""Buffers of the largest piece in which a layout is repaired around each subset."""
_CHECKS = 8
"""Buffers that filling passes over in the time of a unit of work."""
_ORDERS = (by_area, by_size, by_end, by_start, by_load)


@dataclass(frozen=True, slots=True)
class Subset:
    """Some buffers of a piece, those of equal live ranges in bundles.

    Attributes:
        members: The buffers of each bundle; a bundle's place in it is its id.
        reduction: The bundles, divided and compressed.
    """

    members: tuple[tuple[int, ...], ...]
    reduction: Reduction

    def unfold(self, piece: Piece, offsets: Mapping[BufferId, int]) -> Ints:
        """Return the offset of each buffer of the piece, NOWHERE for those not in the subset."""
        found = np.full(len(piece.size), NOWHERE, np.int64)
        for bundle, offset in offsets.items():
            for buffer in self.members[int(bundle)]:
                found[buffer] = offset
                offset += piece.size[buffer]  # noqa: PLW2901 - one on top of the other
        return found


def bottleneck_subsets(piece: Piece) -> Iterator[Subset]:
    """Yield the subsets to be tried, each once."""
    seen: set[tuple[int, ...]] = set()
    most = piece.load
    for least, share in product(_SIZE_SHARES, _LOAD_SHARES):
        chosen = _chosen(piece, share * most, least * most)
        if chosen and chosen not in seen:
            seen.add(chosen)
            yield _bundled(piece, chosen)


def _chosen(piece: Piece, hot: float, least: float) -> tuple[int, ...]:
    """Return the buffers of at least so many units that are live in a section of that load."""
    before = [0, *accumulate(load >= hot for load in piece.loads)]
    return tuple(
        index
        for index, size in enumerate(piece.size)
        if size >= least and before[piece.end[index]] > before[piece.start[index]]
    )


def _bundled(piece: Piece, chosen: Sequence[int]) -> Subset:
    """Join those that start and end together as far as the others in the subset can tell."""
    members: list[tuple[int, ...]] = []
    alone = _problem((i, piece.start[i], piece.end[i], piece.size[i]) for i in chosen)
    for part in reduce(alone).pieces:
        together: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, start, end in zip(part.ids, part.start, part.end, strict=True):
            together[start, end].append(int(index))
        members += map(tuple, together.values())
    # All of a bundle are live in each section that any two of the subset share.
    bundles = _problem(
        (
            place,
            max(piece.start[i] for i in bundle),
            min(piece.end[i] for i in bundle),
            sum(piece.size[i] for i in bundle),
        )
        for place, bundle in enumerate(members)
    )
    return Subset(tuple(members), reduce(bundles))


def _problem(columns: Iterable[tuple[int, int, int, int]]) -> Problem:
    return Problem(
        tuple(
            Buffer(BufferId(str(name)), size, LiveRange(start, end))
            for name, start, end, size in columns
        )
    )


def lowered_by_subsets(piece: Piece, best: BestPlacement, budget: Budget) -> BestPlacement:
    """Lower a placement: search subsets at its bound and fit the others in around them.

    Ends as soon as the work done is more than what is left to gain deserves.
    """
    start, end = np.array(piece.start, np.int64), np.array(piece.end, np.int64)
    size = np.array(piece.size, np.int64)
    charge = len(piece.size) ** 2 // _CHECKS

    @cache
    def ordered(order: Order) -> Ints:
        return np.array(order(piece), np.int64)

    for subset in bottleneck_subsets(piece):
        if budget.is_enough(best) or budget.spent > best.deserved_share * budget.work:
            break
        offsets = _searched(subset, best.bound, budget)
        if offsets is None:
            continue
        fixed = subset.unfold(piece, offsets)
        if len(piece.size) <= _REPAIRED:
            part = budget.share(_EACH)
            best = completed_at_bound(piece, best, fixed, part)
            budget.charge(part.spent)
        for order in _ORDERS:
            if budget.is_enough(best) or budget.spent > best.deserved_share * budget.work:
                break
            found, by = fixed.copy(), ordered(order)
            height = fill(start, end, size, found, np.argsort(found, kind="stable"), by)
            budget.charge(charge)
            if height < best.height:
                best = BestPlacement(tuple(map(int, found)), height, best.bound)
    return best


def _searched(subset: Subset, capacity: int, budget: Budget) -> Mapping[BufferId, int] | None:
    """Return the offsets of a subset's bundles within ``capacity`` units, if they are found."""
    reduction = subset.reduction
    part = budget.share(_EACH)
    units = capacity // reduction.unit
    placements: list[Placement] = []
    for piece in reduction.pieces:
        placement: Placement = ()
        if len(piece.size) <= _SWEPT:
            placement = best_sweep(piece, units)
        if not placement or height_of(piece, placement) > units:
            if len(piece.size) > _MOST:
                return None
            answer, placement = Searcher(piece).fit(units, part)
            if answer is not Answer.YES:
                break
        placements.append(placement)
    budget.charge(part.spent)
    complete = len(placements) == len(reduction.pieces)
    return assemble(reduction, placements) if complete else None


@compiled
def _lowest_gap(
    start: Ints, end: Ints, size: Ints, offset: Ints, stacked: Ints, count: int, buffer: int
) -> int:
    """Return the lowest offset at which a buffer overlaps none of those in ``stacked``.

    Args:
        start: First section of each buffer.
        end: Section after the last of each buffer.
        size: Units of each buffer.
        offset: Units below each buffer that is placed.
        stacked: The buffers that are placed, by offset.
        count: How many those are.
        buffer: Which one to place.
    """
    begin, stop, units = start[buffer], end[buffer], size[buffer]
    floor = 0
    for at in range(count):
        other = stacked[at]
        if start[other] < stop and begin < end[other]:
            if offset[other] - floor >= units:
                break
            floor = max(floor, offset[other] + size[other])
    return int(floor)


@compiled
def fill(start: Ints, end: Ints, size: Ints, offset: Ints, stacked: Ints, order: Ints) -> int:
    """Place every buffer whose offset is NOWHERE, first fit; return the height.

    Args:
        start: First section of each buffer.
        end: Section after the last of each buffer.
        size: Units of each buffer.
        offset: Units below each buffer, or NOWHERE; filled in.
        stacked: All buffers, by offset, those not placed first; sorted anew.
        order: All buffers, in the order in which they are placed.
    """
    count, height = 0, 0
    for buffer in stacked:
        if offset[buffer] >= 0:
            stacked[count] = buffer
            count += 1
            height = max(height, offset[buffer] + size[buffer])
    for buffer in order:
        if offset[buffer] >= 0:
            continue
        floor = _lowest_gap(start, end, size, offset, stacked, count, buffer)
        offset[buffer] = floor
        at = count
        while at > 0 and offset[stacked[at - 1]] > floor:
            stacked[at] = stacked[at - 1]
            at -= 1
        stacked[at] = buffer
        count += 1
        height = max(height, floor + size[buffer])
    return int(height)
