"""Is what has to be placed packed lower in a looser order of the same live peak?

An order is put back to the file's as far as its peak allows, which fills sections beside the
fullest one, and an arena that is full for long is hard to pack. Where sweeps miss the bound,
the order that leaves more room (`ordering.straighten.loosen`) is packed in turn with the one
that was chosen, with ever more work, until one of them is at the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.packing.portfolio import DEFAULT_WORK
from memplan_cli.planning.allocation import place_level
from memplan_cli.settings.choices import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.planning.allocation import Needs, Placed

LITTLE_WORK = DEFAULT_WORK // 6
"""Work of the first searches: of twelve generated training steps whose looser order is packed at
its bound, all but two needed no more; what misses it has failed in a second. ResNet-18's step, in
the order that was chosen, needs an eighth of the work."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """What has to be placed in an order, and where it lies at level 2."""

    needs: Needs
    placed: Placed

    def again(self, work: int) -> InOrder:
        """Return the same, placed again with some work."""
        return place_in_order(self.needs, work)

    @property
    def is_aligned(self) -> bool:
        """Whether every arena has the alignment that is asked for."""
        asked = self.needs.alignment or DEFAULT_ALIGNMENT
        return all(arena.problem.alignment == asked for arena in self.placed.arenas)

    def reaches(self, bound: int) -> bool:
        """Whether every arena is proved, and none is higher than a bound."""
        arenas = self.placed.arenas
        return all(arena.layout.proved and arena.layout.height <= bound for arena in arenas)


def place_in_order(needs: Needs, work: int) -> InOrder:
    """Place everything at level 2, with some work for each arena.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    return InOrder(needs, place_level(needs, 2, work))


def place_in_better_order(needs: Needs, looser: Callable[[], Needs]) -> InOrder:
    """Place everything in the order of ``needs``, or in a looser one if it is packed lower.

    Args:
        needs: What has to be placed, in the order that was chosen; sizes are numbers.
        looser: Says the same of the other order; it is asked only where it may be of use.

    Raises:
        InvalidLayoutError: an allocator gave a layout that is not safe.
    """
    chosen = place_in_order(needs, 0)
    if not chosen.is_aligned:
        return chosen.again(DEFAULT_WORK)
    bound = max((arena.bound for arena in chosen.placed.arenas), default=0)
    if chosen.reaches(bound):
        return chosen
    other = place_in_order(looser(), 0)
    if other.placed.live_peak > chosen.placed.live_peak or not other.is_aligned:
        return chosen.again(DEFAULT_WORK)
    if other.reaches(bound):
        return other
    contenders = [chosen, other]
    for work in (LITTLE_WORK, DEFAULT_WORK):
        for at, contender in enumerate(contenders):
            contenders[at] = min(contender, contender.again(work), key=_rank)
            if contenders[at].reaches(bound):
                return contenders[at]
    return min(contenders, key=_rank)


def _rank(found: InOrder) -> tuple[int, int]:
    """Return the height, and how many arenas are not proved."""
    unproved = [arena for arena in found.placed.arenas if not arena.layout.proved]
    return sum(found.placed.heights.values()), len(unproved)
