"""Move ops of a found order back to their places in the file, as far as memory allows.

The ops of any span of an order may be sorted by their places in the file: the file's order
respects every edge, and the live bytes after the span do not change. Spans are halved until
they can be sorted, from the first to the last, or until the budget is spent.

`restore_source_order` allows each step as many bytes as the peak, so the order gets as close to
the file's as possible. `relax_order` allows each step only the most that its span has needed so
far. That leaves more room beside the fullest steps, which makes tensors easier to pack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.ordering.task_graph import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.ordering.task_graph import Order, TaskGraph
    from memplan_cli.ordering.work_budget import WorkBudget


def restore_source_order(
    graph: TaskGraph, order: Order, peak: int, budget: WorkBudget
) -> Order:
    """Return the order with spans sorted as in the file where no step exceeds ``peak`` bytes."""
    return _sort_spans(graph, order, lambda _, __: peak, budget)


def relax_order(graph: TaskGraph, order: Order, budget: WorkBudget) -> Order:
    """Return the order with spans sorted as in the file where the span's own peak does not rise."""
    steps = trace(graph, order).steps
    return _sort_spans(graph, order, lambda begin, end: max(steps[begin:end]), budget)


def _sort_spans(
    graph: TaskGraph, order: Order, limit: Callable[[int, int], int], budget: WorkBudget
) -> Order:
    """Return the order with all spans sorted that stay within their limit of live bytes.

    Args:
        graph: The ops.
        order: The order to sort.
        limit: From the begin and end of a span to the most bytes that may be live in it.
        budget: Spent by the length of each span that is tried.
    """
    execution = _Execution(graph)
    result: Order = []
    spans = [(0, graph.size)]
    while spans:
        begin, end = spans.pop()
        ops = order[begin:end]
        by_file = sorted(ops)
        if end - begin == 1 or by_file == ops:
            execution.run(ops)
            result += ops
            continue
        has_work = budget.remaining > 0 and budget.in_time
        budget.spend(end - begin)
        if has_work and execution.run_within(by_file, limit(begin, end)):
            result += by_file
        elif has_work and end - begin > 2:  # halves of one op cannot be sorted
            middle = (begin + end) // 2
            spans += [(middle, end), (begin, middle)]
        else:
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
        self._run(ops, None)

    def run_within(self, ops: Sequence[int], limit: int) -> bool:
        """Run ops if no step exceeds ``limit`` bytes; else change nothing and return False."""
        count = self._run(ops, limit)
        if count == len(ops):
            return True
        for op in ops[:count]:
            for tensor in self._graph.accesses[op]:
                self._remaining[tensor] += 1
        return False

    def _run(self, ops: Sequence[int], limit: int | None) -> int:
        """Run ops until a step exceeds the limit, and return how many ran.

        If not all ops ran, the live bytes are as before the call, but the access counts of the
        ops that ran are changed.
        """
        graph, remaining, live = self._graph, self._remaining, self._live
        size, accesses, defined = graph.tensor_bytes, graph.accesses, graph.defined_bytes
        for index, op in enumerate(ops):
            if limit is not None:
                step = live + graph.step_bytes[op]
                if step > limit and any(remaining[t] == 1 for t in graph.in_place_inputs[op]):
                    step -= graph.in_place_bytes[op]
                if step > limit:
                    return index
            live += defined[op]
            for tensor in accesses[op]:
                remaining[tensor] -= 1
                if not remaining[tensor]:
                    live -= size[tensor]
        self._live = live
        return len(ops)
