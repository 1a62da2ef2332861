"""Schedulers: functions that find an order in one pass over the ops.

They are the order of the file and depth-first orders as runtimes use them. All take near-linear time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.analysis.precedence import Edges
    from memplan_cli.ordering.task_graph import Order, TaskGraph

Scheduler = Callable[["TaskGraph"], "Order"]
"""Returns an order of a graph's ops in which every op follows its predecessors."""


def file_order(graph: TaskGraph) -> Order:
    """Return the order of the model file."""
    return list(range(graph.size))


def runtime_default(graph: TaskGraph) -> Order:
    """Return the order of ONNX Runtime's ``ExecutionOrder.DEFAULT``.

    It is the post-order of a depth-first search from the last op without successors, against
    the edges, the predecessor with the highest index first (``Graph::ReverseDFSFrom``).
    """
    return _post_order(graph.succs, graph.preds)


def reverse_post_order(graph: TaskGraph) -> Order:
    """Return the reverse of the post-order of a depth-first search along the edges."""
    return _post_order(graph.preds, graph.succs)[::-1]


def _post_order(backward: Edges, forward: Edges) -> Order:
    """Return the post-order of a depth-first search along ``forward``.

    The search starts at the ops without edges in ``backward``. It visits the last start and the
    last of several edges first. Each op is placed after all ops that it reaches.
    """
    visited = [False] * len(forward)
    order: Order = []
    # Pairs: an op, and whether all ops that it reaches have been placed.
    stack = [(op, False) for op, edges in enumerate(backward) if not edges]
    while stack:
        op, is_finished = stack.pop()
        if is_finished:
            order.append(op)
        elif not visited[op]:
            visited[op] = True
            stack.append((op, True))
            stack.extend((other, False) for other in forward[op] if not visited[other])
    return order


SCHEDULERS: Mapping[str, Scheduler] = {
    "file": file_order,
    "runtime_default": runtime_default,
    "reverse_post_order": reverse_post_order,
}
"""All schedulers by name. Searches start from their orders, which are also candidates of a plan."""
