"""Lower the worst step of an order: divide the ops where that step needs least.

The minimum cut at the worst op says which ops are best run before it and which after.
With the two sides ordered anew, each for itself, the op is as cheap as it can be and
another step is the worst. Rounds go on until no division helps; a cut of the whole graph
that is no lower than the step proves the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.beam import beam
from memplan_cli.transforms.ordering.bound import CutBounds
from memplan_cli.transforms.ordering.candidates import (
    file_order,
    greedy,
    greedy_backward,
)
from memplan_cli.transforms.ordering.contract import contract
from memplan_cli.transforms.ordering.exact import best_first
from memplan_cli.transforms.ordering.graph import peak
from memplan_cli.transforms.ordering.walk import Walk

if TYPE_CHECKING:
    from memplan_cli.transforms.ordering.effort import Effort
    from memplan_cli.transforms.ordering.graph import Order, TaskGraph

_COST = 10
"""Work, in steps looked at, of ordering one op anew."""

_REACH = (25, 100, 400, 1600, 6400)
"""How far around the worst step a section reaches, before the whole order is one."""


_SEARCHED = 250
"""Sections of so many ops are also searched, with so much work, by a beam so wide."""

_SEARCH_WORK = 20_000
_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Divided:
    """An order; ``bound`` is one on the peak of any order of the same ops.

    ``middle`` is the place of the op at which the order was divided, 0 if it was not.
    """

    order: Order
    bound: int
    middle: int = 0


def divide(graph: TaskGraph, order: Order, bound: int, effort: Effort) -> Divided:
    """Lower the peak of an order step by step, as far as ``bound`` if that is possible."""
    walk = Walk(graph, order)
    parts = [(0, graph.size)]
    while walk.worst[0] > bound and effort.left > 0 and effort.in_time:
        at = walk.steps.index(walk.worst[0])
        for begin, end in _sections(parts, at, graph.size):
            if _COST * (end - begin) > effort.left:
                return Divided(walk.order, bound)
            section = walk.section(begin, end)
            found = _divided(section, at - begin, effort)
            if found.middle:
                walk.splice(begin, section, found.order)
                parts = _split(parts, (begin, begin + found.middle, end))
                break
            searched = _searched(section, bound, effort)
            if searched is not None:
                walk.splice(begin, section, searched)
                break
            if section.size == graph.size:
                bound = max(bound, found.bound)
        else:
            break
    return Divided(walk.order, bound)


def _sections(parts: list[tuple[int, int]], at: int, size: int) -> list[tuple[int, int]]:
    """Return where to look for a better order around a place, near ones first."""
    windows = [(max(at - reach, 0), min(at + reach, size)) for reach in _REACH]
    part = next(part for part in parts if part[0] <= at < part[1])
    return sorted({part, *windows, (0, size)}, key=lambda span: (span[1] - span[0], span))


def _split(parts: list[tuple[int, int]], span: tuple[int, int, int]) -> list[tuple[int, int]]:
    """Cut a span out of the parts and put the span's own in: two sides and the middle."""
    begin, middle, end = span
    pieces = [(start, min(stop, begin)) for start, stop in parts]
    pieces += [(max(start, end), stop) for start, stop in parts]
    pieces += [(begin, middle), (middle, middle + 1), (middle + 1, end)]
    return [piece for piece in pieces if piece[0] < piece[1]]


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
    return Divided(best.order, cut.bound, middle)


def _searched(section: TaskGraph, bound: int, effort: Effort) -> Order | None:
    """Search a small section for an order with a smaller peak than it has."""
    if section.size > _SEARCHED:
        return None
    small = contract(section)
    limit = peak(section, range(section.size))
    outcome = best_first(small.graph, bound, limit, effort.allow(_SEARCH_WORK))
    if outcome.order is not None:
        return small.expand(outcome.order)
    if outcome.bound == limit:
        return None
    order = beam(small.graph, bound, limit, _WIDTH, effort.allow(_SEARCH_WORK))
    return None if order is None else small.expand(order)


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
