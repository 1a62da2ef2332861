"""Restoring the source order: an order gets back as much of the file's as costs nothing.

A span of consecutive ops may always be sorted by place in the file, since the file's order
respects every edge, and what comes after it does not notice. Spans are halved until they can
be, the first ones first, or the effort ends.

What that may cost is either anything up to the peak, so that the order is as near to the
file's as it can be, or nothing anywhere: no span gets heavier than it was. The second leaves
more room beside the fullest steps, so that the tensors can be packed more easily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.ordering.task_graph import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.ordering.effort import Effort
    from memplan_cli.ordering.task_graph import Order, TaskGraph


def restore_source_order(graph: TaskGraph, order: Order, peak: int, effort: Effort) -> Order:
    """Sort spans of an order by place in the file wherever no step takes more than ``peak``."""
    return _sorted_spans(graph, order, lambda _, __: peak, effort)


def relax_order(graph: TaskGraph, order: Order, effort: Effort) -> Order:
    """Sort spans of an order by place in the file wherever none gets heavier than it was."""
    steps, _, _ = trace(graph, order)
    return _sorted_spans(graph, order, lambda begin, end: max(steps[begin:end]), effort)


def _sorted_spans(
    graph: TaskGraph, order: Order, limit: Callable[[int, int], int], effort: Effort
) -> Order:
    """Sort spans wherever no step takes more than the limit of its span."""
    run = _Run(graph)
    sorted_back: Order = []
    spans = [(0, graph.size)]
    while spans:
        begin, end = spans.pop()
        ops = order[begin:end]
        by_file = sorted(ops)
        if end - begin == 1 or by_file == ops:
            run.take(ops)
            sorted_back += ops
            continue
        go_on = effort.left > 0 and effort.in_time
        effort.spend(end - begin)
        if go_on and run.takes(by_file, limit(begin, end)):
            sorted_back += by_file
        elif go_on and end - begin > 2:
            middle = (begin + end) // 2
            spans += [(middle, end), (begin, middle)]
        else:
            run.take(ops)
            sorted_back += ops
    return sorted_back


class _Run:
    """What is live after the ops that are scheduled."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._left = list(graph.uses)
        self._live = graph.start
        self._taken = graph.taken

    def takes(self, ops: Sequence[int], limit: int) -> bool:
        """Run ops if every step stays within the limit."""
        done = self._run(ops, limit)
        if done == len(ops):
            return True
        for op in ops[:done]:
            for tensor in self._graph.touches[op]:
                self._left[tensor] += 1
        return False

    def take(self, ops: Sequence[int]) -> None:
        """Run ops that are known to stay within the limit, or have to."""
        self._run(ops, None)

    def _run(self, ops: Sequence[int], limit: int | None) -> int:
        """Run ops as far as the limit allows, all or in vain; return how many."""
        graph, left, live = self._graph, self._left, self._live
        weight, touches = graph.weight, graph.touches
        for at, op in enumerate(ops):
            if limit is not None:
                step = live + graph.need[op]
                if step > limit and any(left[t] == 1 for t in graph.replaces[op]):
                    step -= graph.saved[op]
                if step > limit:
                    return at
            live += self._taken[op]
            for tensor in touches[op]:
                left[tensor] -= 1
                if not left[tensor]:
                    live -= weight[tensor]
        self._live = live
        return len(ops)
