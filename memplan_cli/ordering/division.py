"""Lower the fullest step of an order by dividing the ops around it with a minimum cut.

The minimum cut at the op of the fullest step says which ops best run before it and which after:

    ... A B C [x] D E F ...    ->    ... A D C [x] B E F ...
                                         before     after

Both sides are ordered anew, each on its own. Then x needs as little as it can, and another step
is the fullest. Rounds go on until no division helps. A cut of the whole graph that is not below
the fullest step proves that the order is optimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.ordering.cut_bounds import CutBounds
from memplan_cli.ordering.list_orders import file_order, greedy, greedy_backward
from memplan_cli.ordering.task_graph import Schedule, peak

if TYPE_CHECKING:
    from memplan_cli.ordering.task_graph import Order, TaskGraph
    from memplan_cli.ordering.work_budget import WorkBudget

_WORK_PER_OP = 10
"""Units of work spent for each op that is ordered anew."""

_SECTION_SHARE_DIVISOR = 2
"""One section may spend the remaining work divided by this."""

_REACHES = (25, 100, 400, 1600, 6400)
"""Numbers of ops on both sides of the fullest step that a section has, before the whole order."""

_ZOOM_FACTOR = 8
"""After a section has helped much, sections down to this many times smaller are tried next."""

_LITTLE_GAIN_DIVISOR = 1000
"""A round that lowers the peak by less than the peak divided by this has helped little."""


@dataclass(frozen=True, slots=True)
class DividedOrder:
    """An order after division.

    Attributes:
        order: the ops in their new order.
        peak: its most live bytes.
        bound: a lower bound on the peak of all orders of the same ops.
        middle: position of the op at which the ops were divided; 0 if they were not.
    """

    order: Order
    peak: int
    bound: int
    middle: int = 0


def divide(
    graph: TaskGraph, order: Order, bound: int, budget: WorkBudget, smallest: int = 0
) -> DividedOrder:
    """Lower the peak of an order step by step.

    Args:
        graph: The ops.
        order: The order to start from.
        bound: A known lower bound; an order that meets it is not divided further.
        budget: The work to spend.
        smallest: Sections with fewer ops are tried last. A few wide divisions find ops that have
            to move far; many narrow ones find small mistakes in many places.
    """
    schedule = Schedule(graph, order)
    sections = _SectionChoice(graph.size, smallest)
    while schedule.peak_and_count[0] > bound and budget.remaining > 0 and budget.in_time:
        former_peak = schedule.peak_and_count[0]
        place = schedule.steps.index(former_peak)
        for begin, end in sections.around(place):
            if _SECTION_SHARE_DIVISOR * _WORK_PER_OP * (end - begin) > budget.remaining:
                continue  # too large for the remaining work
            section = schedule.section(begin, end)
            divided = _divide_section(section, place - begin, budget)
            if divided.middle:
                schedule.replace_section(begin, section, divided.order)
                sections.split(begin, begin + divided.middle, end)
                sections.adapt_size(end - begin, former_peak, schedule.peak_and_count[0])
                break
            if section.size == graph.size:  # a cut of all ops bounds every order
                bound = max(bound, divided.bound)
        else:
            if not sections.include_small():
                break
    return DividedOrder(schedule.order, schedule.peak_and_count[0], bound)


class _SectionChoice:
    """The sections to try in the next round, chosen by the gains of former rounds.

    The parts are the intervals between the divisions made so far; they cover the order.

    Attributes:
        _size: number of ops in the order.
        _parts: the (begin, end) of each part.
        _smallest: number of ops of the smallest section to try.
    """

    def __init__(self, size: int, smallest: int) -> None:
        self._size = size
        self._parts = [(0, size)]
        self._smallest = smallest

    def around(self, place: int) -> list[tuple[int, int]]:
        """Return the sections around a position as (begin, end), the smallest first.

        They are windows around it, and the part between the divisions made so far. Those smaller
        than the smallest size to try are left out. The whole order always comes last.
        """
        windows = [
            (max(place - reach, 0), min(place + reach, self._size)) for reach in _REACHES
        ]
        part = next(part for part in self._parts if part[0] <= place < part[1])
        spans = sorted({part, *windows}, key=lambda span: (span[1] - span[0], span))
        sections = [
            (begin, end) for begin, end in spans if self._smallest <= end - begin < self._size
        ]
        return [*sections, (0, self._size)]

    def adapt_size(self, size: int, before: int, after: int) -> None:
        """Set the smallest size for the next round, after a section of ``size`` ops changed the peak.

        The peak was ``before`` and is ``after`` bytes.
        If the peak fell much, somewhat smaller sections are tried next. If it fell little, many
        steps are nearly as full, and a larger section lowers more of them at once.
        """
        has_much_gain = (before - after) * _LITTLE_GAIN_DIVISOR >= before
        self._smallest = size // _ZOOM_FACTOR if has_much_gain else min(2 * size, self._size)

    def include_small(self) -> bool:
        """Include sections of all sizes; return whether any size was left out."""
        left_out, self._smallest = self._smallest > 0, 0
        return left_out

    def split(self, begin: int, middle: int, end: int) -> None:
        """Make the two sides of a divided section, and the op at its middle, parts of their own."""
        pieces = [(start, min(stop, begin)) for start, stop in self._parts]
        pieces += [(max(start, end), stop) for start, stop in self._parts]
        pieces += [(begin, middle), (middle, middle + 1), (middle + 1, end)]
        self._parts = [piece for piece in pieces if piece[0] < piece[1]]


def _divide_section(section: TaskGraph, place: int, budget: WorkBudget) -> DividedOrder:
    """Divide a section at the op at ``place``, both as early and as late as the cut allows.

    Returns the better of both orders, with the number of ops before the division as ``middle``.
    If neither has a lower peak or reaches it at fewer steps, returns the section as it is, with 0.
    The bound is that of the cut. Spends budget.
    """
    cut = CutBounds(section).at(place, max(budget.remaining, section.size))
    budget.spend(cut.work // 4)  # about four edges are examined in one unit of work
    best = Schedule(section, range(section.size))
    middle = 0  # not divided
    if cut.bound < best.peak_and_count[0]:
        for first in (cut.earliest(), cut.latest()):
            budget.spend(_WORK_PER_OP * section.size)
            schedule = _order_sides(section, place, first)
            if schedule.peak_and_count < best.peak_and_count:
                best, middle = schedule, len(first)
    return DividedOrder(best.order, best.peak_and_count[0], cut.bound, middle)


def _order_sides(section: TaskGraph, place: int, first: set[int]) -> Schedule:
    """Return the order that runs ``first``, then the op at ``place``, then the others.

    Each side is ordered anew. It gets the best of three orders: its present one, and the greedy
    ones.
    """
    others = [op for op in range(section.size) if op != place and op not in first]
    schedule = Schedule(section, [*sorted(first), place, *others])
    for begin, end in ((0, len(first)), (len(first) + 1, section.size)):
        if begin < end:
            side = schedule.section(begin, end)
            orders = [file_order(side), greedy(side), greedy_backward(side)]
            best = min(orders, key=lambda order: peak(side, order))
            schedule.replace_section(begin, side, best)
    return schedule
