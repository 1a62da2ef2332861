"""Lowering of an order's worst step: the ops are divided where that step needs least.

The minimum cut at the worst op says which ops are best run before it and which after.
With the two sides ordered anew, each for itself, the op is as cheap as it can be and
another step is the worst. Rounds go on until no division helps; a cut of the whole graph
that is no lower than the step proves the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.ordering.contraction import contract
from memplan_cli.ordering.cut_bounds import CutBounds
from memplan_cli.ordering.exact_search import beam, best_first
from memplan_cli.ordering.list_orders import (
    file_order,
    greedy,
    greedy_backward,
)
from memplan_cli.ordering.task_graph import Walk, peak

if TYPE_CHECKING:
    from memplan_cli.ordering.effort import Effort
    from memplan_cli.ordering.task_graph import Order, TaskGraph

_COST = 10
"""Work, in steps looked at, of ordering one op anew."""

_SHARE = 2
"""One section may take one part in so many of what is left of an effort."""

_REACH = (25, 100, 400, 1600, 6400)
"""How far around the worst step a section reaches, before the whole order is one."""


_ZOOM = 8
"""After a section has helped much, those that are so many times smaller are left out."""

_LITTLE = 1000
"""Less than one part in so many is little to have won in a round."""

_SEARCHED = 250
"""Sections of so many ops are also searched, with so much work, by a beam so wide."""

_SEARCH_WORK = 20_000
_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Divided:
    """An order and its peak; ``bound`` is one on the peak of any order of the same ops.

    ``middle`` is the place of the op at which the order was divided, 0 if it was not.
    """

    order: Order
    peak: int
    bound: int
    middle: int = 0


def divide(
    graph: TaskGraph, order: Order, bound: int, effort: Effort, least: int = 0
) -> Divided:
    """Lower the peak of an order step by step, as far as ``bound`` if that is possible.

    Sections of fewer than ``least`` ops are tried last: few wide divisions find what has
    to move far, many narrow ones what is wrong in many places.
    """
    walk = Walk(graph, order)
    rounds = _Rounds(graph.size, least)
    while walk.worst[0] > bound and effort.left > 0 and effort.in_time:
        before, at = walk.worst[0], walk.steps.index(walk.worst[0])
        for begin, end in rounds.sections(at):
            if _SHARE * _COST * (end - begin) > effort.left:
                continue
            section = walk.section(begin, end)
            found = _divided(section, at - begin, effort)
            better = found.order if found.middle else _searched(section, bound, effort)
            if better:
                walk.splice(begin, section, better)
                rounds.helped((begin, begin + found.middle, end), before, walk.worst[0])
                break
            if section.size == graph.size:
                bound = max(bound, found.bound)
        else:
            if not rounds.again():
                break
    return Divided(walk.order, walk.worst[0], bound)


class _Rounds:
    """Where to look in the next round, from what has helped in those before it."""

    def __init__(self, size: int, least: int) -> None:
        self._size = size
        self._parts = [(0, size)]
        self._least = least

    def sections(self, at: int) -> list[tuple[int, int]]:
        """Return where to look for a better order around a place, near ones first."""
        windows = [(max(at - reach, 0), min(at + reach, self._size)) for reach in _REACH]
        part = next(part for part in self._parts if part[0] <= at < part[1])
        spans = sorted({part, *windows}, key=lambda span: (span[1] - span[0], span))
        large = [span for span in spans if self._least <= span[1] - span[0] < self._size]
        return [*large, (0, self._size)]

    def helped(self, span: tuple[int, int, int], before: int, after: int) -> None:
        """Note that a section was divided, at its middle if that is not its beginning.

        Where much was won, somewhat smaller sections are tried next; where little, there
        are many steps like this one, and a larger section takes more of them at once.
        """
        begin, middle, end = span
        if middle > begin:
            self._split(begin, middle, end)
        much = (before - after) * _LITTLE >= before
        size = end - begin
        self._least = size // _ZOOM if much else min(2 * size, self._size)

    def again(self) -> bool:
        """Whether sections have been left out that are now worth a try."""
        left_out, self._least = self._least > 0, 0
        return left_out

    def _split(self, begin: int, middle: int, end: int) -> None:
        """Cut a span out of the parts and put its two sides and its middle in."""
        pieces = [(start, min(stop, begin)) for start, stop in self._parts]
        pieces += [(max(start, end), stop) for start, stop in self._parts]
        pieces += [(begin, middle), (middle, middle + 1), (middle + 1, end)]
        self._parts = [piece for piece in pieces if piece[0] < piece[1]]


def _divided(section: TaskGraph, at: int, effort: Effort) -> Divided:
    """Order a section anew around the op at ``at``, if that makes it better."""
    cut = CutBounds(section).at(at, max(effort.left, section.size))
    effort.spend(cut.work // 4)
    best = Walk(section, range(section.size))
    middle = 0
    if cut.bound < best.worst[0]:
        for first in (cut.earliest(), cut.latest()):
            effort.spend(_COST * section.size)
            walk = _around(section, at, first)
            if walk.worst < best.worst:
                best, middle = walk, len(first)
    return Divided(best.order, best.worst[0], cut.bound, middle)


def _searched(section: TaskGraph, bound: int, effort: Effort) -> Order:
    """Search a small section for an order with a smaller peak than it has, else empty."""
    if section.size > _SEARCHED:
        return []
    small = contract(section)
    limit = peak(section, range(section.size))
    outcome = best_first(small.graph, bound, limit, effort.allow(_SEARCH_WORK))
    if outcome.order is not None:
        return small.expand(outcome.order)
    if outcome.bound == limit:
        return []
    order = beam(small.graph, bound, limit, _WIDTH, effort.allow(_SEARCH_WORK))
    return [] if order is None else small.expand(order)


def _around(section: TaskGraph, at: int, first: set[int]) -> Walk:
    """Run ``first``, then the op at ``at``, then the others, each side in its best order."""
    others = [op for op in range(section.size) if op != at and op not in first]
    walk = Walk(section, [*sorted(first), at, *others])
    for begin, end in ((0, len(first)), (len(first) + 1, section.size)):
        side = walk.section(begin, end) if begin < end else None
        if side is not None:
            orders = [file_order(side), greedy(side), greedy_backward(side)]
            walk.splice(begin, side, min(orders, key=lambda order: peak(side, order)))
    return walk
