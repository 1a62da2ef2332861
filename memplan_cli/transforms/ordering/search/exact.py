"""Best-first search over the sets of executed ops: the optimum, where it ends in time."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.search.space import Space, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.transforms.ordering.graph import Order, TaskGraph


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    ``order`` is None where there is none below the limit, or the search was cut short;
    ``bound`` holds for all orders, as far as the limit: the search has seen every set of
    ops that can be reached with less.
    """

    order: Order | None
    bound: int


def best_first(
    graph: TaskGraph, bound: int, limit: int, keep_going: Callable[[int], bool]
) -> Outcome:
    """Search for the order with the least peak among those with a peak below ``limit``.

    States are expanded by their peak, then by the number of ops left, so that the first
    one that has run everything is an optimum, and what is at the head of the queue is a
    bound at any time. After Kahn et al.'s DP over downsets (Serenity, MLSys 2020) and
    HMCOS (DAC 2022), with the moves of `Space` that need no choice.

    Args:
        graph: The ops to order.
        bound: A proven bound on the peak.
        limit: Only orders with a smaller peak are of interest.
        keep_going: Asked with the work done so far, in steps looked at.
    """
    space = Space(graph)
    first = space.first(bound)
    known = {first.left: first.peak}
    queue: list[tuple[int, int, int, int, State]] = []
    heappush(queue, (first.peak, 0, 0, 0, first))
    count = 0
    while queue:
        peak, _, _, _, state = heappop(queue)
        if known[state.left] < peak:
            continue
        if not state.ready:
            return Outcome(state.order(), peak)
        if not keep_going(space.work):
            return Outcome(None, peak)
        for child in space.children(state, limit):
            if known.get(child.left, limit) > child.peak:
                known[child.left] = child.peak
                count += 1
                entry = (child.peak, child.left.bit_count(), child.live, count, child)
                heappush(queue, entry)
    return Outcome(None, limit)
