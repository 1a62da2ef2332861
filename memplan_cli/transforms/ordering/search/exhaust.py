"""The exhausted search as data: every state that can be reached below a bound, and its moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.results.certificate import Move
from memplan_cli.transforms.ordering.search.space import Space

if TYPE_CHECKING:
    from memplan_cli.transforms.ordering.graph import TaskGraph
    from memplan_cli.transforms.ordering.search.space import State

MOST_STATES = 50_000
"""A search that takes more is not written down."""

MOST_ENTRIES = 2_000_000
"""Nor is one whose moves name more ops, some ten megabytes."""


def exhausted(graph: TaskGraph, bound: int) -> tuple[tuple[Move, ...], ...] | None:
    """Return all states that a search below ``bound`` goes through, the first one first.

    None: there is an order below the bound, or the search takes too much.
    """
    space = Space(graph)
    # No step may take more than the bound allows; below that, no peak is worse than another.
    first = space.first(bound - 1)
    if first.peak >= bound:
        return None
    number = {first.left: 1}
    states: list[tuple[Move, ...]] = [(Move((), first.ran, 1),)]
    queue = [first]
    entries = 0
    for state in queue:
        if not state.ready:
            return None
        moves = []
        for way, child in space.ways(state, bound):
            if child.left not in number:
                number[child.left] = len(number) + 1
                queue.append(child)
            moves.append(Move(way, child.ran[len(way) :], number[child.left]))
            entries += len(child.ran)
        states.append(tuple(moves))
        if len(queue) > MOST_STATES or entries > MOST_ENTRIES:
            return None
    return _sorted(states, [0, *map(_left, queue)])


def _left(state: State) -> int:
    return state.left.bit_count()


def _sorted(states: list[tuple[Move, ...]], left: list[int]) -> tuple[tuple[Move, ...], ...]:
    """Return the states so that every move leads to a later one: by the ops that are left."""
    order = sorted(range(1, len(states)), key=lambda at: -left[at])
    number = {at: place for place, at in enumerate(order, 1)}
    return tuple(
        tuple(move._replace(to=number[move.to]) for move in states[at]) for at in (0, *order)
    )
