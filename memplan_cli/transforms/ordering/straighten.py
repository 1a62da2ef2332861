"""Give an order back as much of the file's order as it can have at no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.graph import trace
from memplan_cli.transforms.ordering.walk import Walk

if TYPE_CHECKING:
    from memplan_cli.transforms.ordering.effort import Effort
    from memplan_cli.transforms.ordering.graph import Order, TaskGraph

_COST = 10
"""Work, in steps looked at, of trying one op at its place in the file."""


def straighten(graph: TaskGraph, order: Order, effort: Effort) -> Order:
    """Sort spans of an order by place in the file wherever the peak stays what it is.

    A span of consecutive ops may always be sorted, since the file's order respects every
    edge. Spans are halved until they can be, the last ones first, or the effort ends.
    """
    walk = Walk(graph, order)
    limit = walk.worst[0]
    spans = [(0, graph.size)]
    while spans and effort.left > 0 and effort.in_time:
        begin, end = spans.pop()
        ops = walk.order[begin:end]
        by_file = sorted(range(end - begin), key=ops.__getitem__)
        if by_file == list(range(end - begin)):
            continue
        effort.spend(_COST * (end - begin))
        section = walk.section(begin, end)
        steps, _, _ = trace(section, by_file)
        if max(steps) <= limit:
            walk.splice(begin, section, by_file)
        elif end - begin > 2:
            middle = (begin + end) // 2
            spans += [(begin, middle), (middle, end)]
    return walk.order
