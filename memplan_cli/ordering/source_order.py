"""Move ops of a found order back to their places in the file, as far as memory allows.

The ops of any span of an order may be sorted by their places in the file: the file's order
respects every edge, and the live bytes after the span do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.ordering.task_graph import Order, TaskGraph
    from memplan_cli.ordering.work_budget import WorkBudget


def restore_source_order(
    graph: TaskGraph, order: Order, peak: int, budget: WorkBudget
) -> Order:
    """Return the order with its ops sorted by their places in the file where ``peak`` bytes suffice.

    The whole order is tried first, and then, where a step would exceed the peak, each half of it, halves of
    this half, and so on. Once the budget is spent, the other spans keep their order.

    Args:
        graph: The ops, numbered by their places in the file.
        order: The order to sort.
        peak: The most bytes that may be live at a step.
        budget: Spent by the length of each span that is tried.
    """
    execution = _Execution(graph)
    result: Order = []
    spans = [(0, graph.size)]  # the next one is the last item
    while spans:
        begin, end = spans.pop()
        ops = order[begin:end]
        by_file = sorted(ops)
        if ops != by_file and budget.remaining > 0 and budget.in_time:
            budget.spend(len(ops))
            if execution.run_within(by_file, peak):
                result += by_file
                continue
            if len(ops) > 2:  # else the halves are single ops
                middle = (begin + end) // 2
                spans += [(middle, end), (begin, middle)]
                continue
        execution.run(ops)
        result += ops
    return result


class _Execution:
    """The live bytes after the ops that have run so far.

    Attributes:
        _remaining: for each tensor, how many ops still have to access it, plus one for a result.
        _live: bytes live now.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._remaining = list(graph.access_counts)
        self._live = graph.initial_bytes

    def run(self, ops: Sequence[int]) -> None:
        """Run ops, whatever they need."""
        _, self._live = self._advance(ops, None)

    def run_within(self, ops: Sequence[int], limit: int) -> bool:
        """Run ops if no step exceeds ``limit`` bytes; else change nothing and return False."""
        count, live = self._advance(ops, limit)
        if count == len(ops):
            self._live = live
            return True
        # Undo the accesses of the ops that ran. The live bytes have not been set.
        for op in ops[:count]:
            for tensor in self._graph.accesses[op]:
                self._remaining[tensor] += 1
        return False

    def _advance(self, ops: Sequence[int], limit: int | None) -> tuple[int, int]:
        """Count the accesses of ops until a step exceeds the limit; None: there is no limit.

        Returns:
            How many ops ran, and the bytes live after them, which the caller has to set.
        """
        graph, remaining, live = self._graph, self._remaining, self._live
        size, accesses, defined = graph.tensor_bytes, graph.accesses, graph.defined_bytes
        for index, op in enumerate(ops):
            if limit is not None:
                step = live + graph.step_bytes[op]
                if step > limit and any(remaining[t] == 1 for t in graph.in_place_inputs[op]):
                    step -= graph.in_place_bytes[op]
                if step > limit:
                    return index, live
            live += defined[op]
            for tensor in accesses[op]:
                remaining[tensor] -= 1
                if not remaining[tensor]:
                    live -= size[tensor]
        return len(ops), live
