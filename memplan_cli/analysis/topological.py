"""Topological order nearest to the given one: Kahn's algorithm with a heap."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


def nearest_order(
    after: Sequence[Collection[int]], rank: Callable[[int], int] = int
) -> list[int]:
    """Return nodes so that each stands before those ``after`` it.

    Nodes in a circle, and what comes after them, are left out.

    Args:
        after: For each node, by index, the nodes that have to come later, each once.
        rank: Of all nodes that may go, one of the least rank does, and of these the first.
    """
    waiting = [0] * len(after)
    for later in after:
        for at in later:
            waiting[at] += 1
    ready = [(rank(at), at) for at, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, at = heappop(ready)
        order.append(at)
        for later_at in after[at]:
            waiting[later_at] -= 1
            if not waiting[later_at]:
                heappush(ready, (rank(later_at), later_at))
    return order
