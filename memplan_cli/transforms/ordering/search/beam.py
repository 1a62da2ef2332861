"""Beam search over the sets of executed ops: a good order, in time linear in the width."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.search.space import Space, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.transforms.ordering.graph import Order, TaskGraph


def beam(
    graph: TaskGraph, bound: int, limit: int, width: int, keep_going: Callable[[int], bool]
) -> Order | None:
    """Return an order with a peak below ``limit``, or None if the beam loses its way.

    Of the states that have run equally many ops, the ``width`` with the least peak go on
    (peaks below ``bound`` count as equal: nothing is gained by them), of equals those
    with the least live.
    """
    space = Space(graph)
    first = space.first(bound)
    layers: dict[int, dict[int, State]] = {first.left.bit_count(): {first.left: first}}
    sizes = [-first.left.bit_count()]
    while sizes:
        layer = layers.pop(-heappop(sizes))
        best = sorted(layer.values(), key=lambda state: (state.peak, state.live, state.left))
        if not best[0].ready:
            return best[0].order()
        if not keep_going(space.work):
            return None
        for state in best[:width]:
            for child in space.children(state, limit):
                size = child.left.bit_count()
                if size not in layers:
                    layers[size] = {}
                    heappush(sizes, -size)
                known = layers[size].get(child.left)
                if known is None or child.peak < known.peak:
                    layers[size][child.left] = child
    return None
