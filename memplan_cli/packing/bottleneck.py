"""Bottleneck subsets: exact search of the few buffers that decide, the others around them.

Of a network's buffers only those decide that are large and live where the load is near its
maximum: the *bottleneck subset*. It is searched alone, at the height that is aimed at. Then the
other buffers go into the gaps, first fit.

    load
      ^   maximum ........__.......      A buffer is in the subset if it is live in a section with
      |       __    __.....|  |..__      at least ``_LOAD_SHARES`` of the maximal load, and has at
      |      |  |__|          |_|  |     least ``_SIZE_SHARES`` of the maximal load in units.
      +------+---------------------+->
                             section

Nothing of this proves a bound: a subset may fit where the whole piece does not.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, product
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem
from memplan_cli.packing.compiled import compiled
from memplan_cli.packing.pieces import arena_offsets, reduce_problem
from memplan_cli.packing.search.exact import Answer, Searcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.core.work_budget import WorkBudget
    from memplan_cli.packing.pieces import BestPlacement, Piece, Placement
    from memplan_cli.packing.search.state import Ints

_LOAD_SHARES = (0.95, 0.85, 0.0)
"""Shares of the maximal load from which a section counts as full."""
_SIZE_SHARES = (3e-4, 1e-3, 1e-4, 3e-5, 3e-3, 1e-2)
"""Shares of the maximal load from which a buffer counts as large, the most useful first."""
_SUBSET_SHARE = 0.12
"""Share of the remaining work for one subset."""
_SEARCHED_BUFFERS = 6_000
"""Buffers of the largest subset that is searched."""
_CHECKS_PER_WORK = 8
"""Buffers that `fill` passes in the time of a unit of work."""
NOWHERE = -1
"""The offset of a buffer that is not placed."""


def bottleneck_subsets(piece: Piece) -> Iterator[tuple[int, ...]]:
    """Yield the large buffers of the full sections of a piece, once for each different set.

    Buffers are indices in the columns of the piece. A buffer is large from a share of the maximal load on
    (`_SIZE_SHARES`), and a section is full from another share on (`_LOAD_SHARES`).
    """
    known: set[tuple[int, ...]] = set()
    for size_share, load_share in product(_SIZE_SHARES, _LOAD_SHARES):
        buffers = _large_buffers(piece, size_share * piece.load, load_share * piece.load)
        if buffers and buffers not in known:
            known.add(buffers)
            yield buffers


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


def _by_area(piece: Piece) -> list[int]:
    """Order buffers by size times number of sections, the largest first."""
    area = [
        size * (end - start)
        for size, start, end in zip(piece.size, piece.start, piece.end, strict=True)
    ]
    return sorted(range(len(piece.size)), key=lambda i: (-area[i], i))


def lowered_by_subsets(piece: Piece, best: BestPlacement, budget: WorkBudget) -> BestPlacement:
    """Return the lowest placement found by placing a bottleneck subset first, or ``best``.

    Each subset is placed alone, no higher than the lower bound ``best.bound``. It is passed over if no such
    placement is found. The other buffers of the piece then go into the gaps, by falling area.
    """
    start, end = np.array(piece.start, np.int64), np.array(piece.end, np.int64)
    size = np.array(piece.size, np.int64)
    by_area = np.array(_by_area(piece), np.int64)
    fill_work = len(piece.size) ** 2 // _CHECKS_PER_WORK  # `fill` compares pairs of buffers
    for subset in bottleneck_subsets(piece):
        if best.may_stop(budget):
            break
        offsets = _place_alone(piece, subset, best.bound, budget)
        if offsets is None:
            continue
        # Buffers that are not in the subset have the offset NOWHERE. `fill` gives them their offsets.
        by_offset = np.argsort(offsets, kind="stable")
        height = fill(start, end, size, offsets, by_offset, by_area)
        budget.spend(fill_work)
        if height < best.height:
            best = replace(best, placement=tuple(map(int, offsets)), height=height)
    return best


def _place_alone(
    piece: Piece, subset: Sequence[int], capacity: int, budget: WorkBudget
) -> Ints | None:
    """Place some buffers of a piece as if there were no others, within ``capacity`` units of the piece.

    Without the others, they may be several independent pieces. Each is placed by exact search, with a share of
    the budget for all.

    Returns:
        For each buffer of the piece its offset, NOWHERE for those not in ``subset``; None if no placement
        was found.
    """
    buffers = [
        Buffer(BufferId(str(i)), piece.size[i], LiveRange(piece.start[i], piece.end[i]))
        for i in subset
    ]
    reduction = reduce_problem(Problem(tuple(buffers)))
    part = budget.share(_SUBSET_SHARE)
    placements: list[Placement] = []
    for inner in reduction.pieces:
        if len(inner.size) > _SEARCHED_BUFFERS:
            return None
        answer, placement = Searcher(inner).fit(capacity // reduction.unit, part)
        if answer is not Answer.YES:
            return None
        placements.append(placement)
    offsets = np.full(len(piece.size), NOWHERE, np.int64)
    for index, offset in arena_offsets(reduction, placements).items():
        offsets[int(index)] = offset
    return offsets


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
    """Place every buffer that has no offset yet by first fit; return the height of all buffers.

    Args:
        start: First section of each buffer.
        end: Section after the last of each buffer.
        size: Units of each buffer.
        offset: Units below each buffer, or -1 (NOWHERE) if it is not placed. Changed: all are placed.
        by_offset: All buffers, the placed ones sorted by offset. Changed: all are sorted by offset.
        order: All buffers, in the order in which they are placed.
    """
    # ``by_offset[:count]`` has the placed buffers; first, those that are placed from the start come there.
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
        # Insert the buffer before those of a larger offset, which move up by one.
        index = count
        while index > 0 and offset[by_offset[index - 1]] > floor:
            by_offset[index] = by_offset[index - 1]
            index -= 1
        by_offset[index] = buffer
        count += 1
        height = max(height, floor + size[buffer])
    return int(height)
