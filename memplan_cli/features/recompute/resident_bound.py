"""A lower bound on ``resident``: what intermediates and outputs take together, in any order.

An output that is made stays to the end. So whoever makes the last of them has all of them
there, beside what it touches; and whoever makes any has that one beside what it touches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.features.recompute.bound import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.features.recompute.bound import Bound
    from memplan_cli.ordering.terms import Terms


def resident_bound(intermediates: Bound, terms: Terms) -> int:
    """Return what no order, with whatever copies, keeps ``resident`` below.

    Args:
        intermediates: bounds of these alone, under the sharing that ``resident`` allows.
        terms: what the graph gives, beside what is planned.
    """
    producers = tuple(_producers(intermediates, terms))
    given = sum(producer.given for producer in producers)
    beside = (producer.touched + producer.largest for producer in producers)
    last = min((producer.touched for producer in producers), default=0)
    return max(intermediates.least, given + last, *beside, 0)


class _Producer(NamedTuple):
    """An op that makes outputs: what it touches besides, and their bytes."""

    touched: int
    given: int
    largest: int


def _producers(intermediates: Bound, terms: Terms) -> Iterator[_Producer]:
    """Yield what each op that makes outputs touches besides, and what these take.

    A copy may make one of several; what a branch reads may be gone when the results of an If
    are there; and a view takes nothing beside what it shows.
    """
    for at, op in enumerate(intermediates.ops):
        made = [number(terms.results, var) for var in op.outputs if var in terms.results]
        if made and not SHARE_VIEWS.is_view(op):
            touched = 0 if op.bodies else intermediates.need_at(at)
            yield _Producer(touched, sum(made), max(made))
