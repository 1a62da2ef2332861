"""Orders that one pass finds: what runtimes do, and greedy list scheduling.

All are linear or nearly so, and every tie is broken by the place in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.analysis.precedence import Edges
    from memplan_cli.ordering.task_graph import Order, TaskGraph

Scheduler = Callable[["TaskGraph"], "Order"]
"""From the ops of a block to an order of them: a permutation that keeps to the edges."""


def file_order(graph: TaskGraph) -> Order:
    """Return the order in which the ops stand."""
    return list(range(graph.size))


def runtime_default(graph: TaskGraph) -> Order:
    """Return the order of ONNX Runtime's ``ExecutionOrder.DEFAULT``.

    A post-order depth-first search against the edges, from the last op that nothing reads,
    the input with the highest index first (``Graph::ReverseDFSFrom``).
    """
    return _post_order(graph.succs, graph.preds)


def reverse_post_order(graph: TaskGraph) -> Order:
    """Return the reverse of the post-order of a depth-first search along the edges."""
    return _post_order(graph.preds, graph.succs)[::-1]


def _post_order(back: Edges, ahead: Edges) -> Order:
    """Search depth first along ``ahead`` from the ops that have no edge ``back``.

    An op follows all that is ahead of it; of several edges the last one is followed first.
    """
    done = [False] * len(ahead)
    order: Order = []
    stack = [(op, False) for op, edges in enumerate(back) if not edges]
    while stack:
        op, left = stack.pop()
        if left:
            order.append(op)
        elif not done[op]:
            done[op] = True
            stack.append((op, True))
            stack.extend((other, False) for other in ahead[op] if not done[other])
    return order


def greedy(graph: TaskGraph) -> Order:
    """Run the ready op that leaves least live; of equals the one that takes least.

    O(edges x log ops): a tensor keeps the sum of the ops that still touch it, so when one
    is left its number is known, and only that op's place in the queue changes.
    """
    state = _Greedy(graph)
    order: Order = []
    while state.queue:
        op = heappop(state.queue)[-1]
        if not state.done[
            op
        ]:  # a change only falls: what comes first is the last that is known
            order.append(op)
            state.run(op)
    return order


class _Greedy:
    """The ready ops by what running them changes, kept up to date."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.done = [False] * graph.size
        self.waiting = [len(preds) for preds in graph.preds]
        self.left = list(graph.uses)
        # What outlives the block waits for an op that never comes.
        self.remaining = [graph.size * many for many in graph.outlives]
        for op, touched in enumerate(graph.touches):
            for tensor in touched:
                self.remaining[tensor] += op
        self.change = list(graph.taken)
        for op, touched in enumerate(graph.touches):
            for tensor in touched:
                if graph.uses[tensor] == 1:
                    self.change[op] -= graph.weight[tensor]
        self.queue = [
            (self.change[op], graph.need[op], op)
            for op in range(graph.size)
            if not self.waiting[op]
        ]
        heapify(self.queue)

    def run(self, op: int) -> None:
        """Mark an op as executed; queue what becomes ready or cheaper."""
        graph, left = self.graph, self.left
        self.done[op] = True
        for tensor in graph.touches[op]:
            left[tensor] -= 1
            self.remaining[tensor] -= op
            if left[tensor] == 1:
                self._last_reader(self.remaining[tensor], graph.weight[tensor])
        for succ in graph.succs[op]:
            self.waiting[succ] -= 1
            if not self.waiting[succ]:
                heappush(self.queue, (self.change[succ], graph.need[succ], succ))

    def _last_reader(self, op: int, weight: int) -> None:
        if op == self.graph.size:
            return
        self.change[op] -= weight
        if not self.waiting[op]:
            heappush(self.queue, (self.change[op], self.graph.need[op], op))


def greedy_backward(graph: TaskGraph) -> Order:
    """Build the order from its end: of the ops that may be last, the one that adds least.

    Before an op, its results are not live yet, but its inputs are. So what frees much and
    what only waits for later readers (a weight's transpose) is put where it belongs, and
    what reads much (a weight's gradient) comes as soon as it can.
    """
    state = _Backward(graph)
    order: Order = []
    while state.queue:
        change, negated = heappop(state.queue)
        op = -negated
        if not state.done[op] and change == state.change[op]:
            order.append(op)
            state.run(op)
    return order[::-1]


class _Backward:
    """The ops all of whose successors are scheduled, by what scheduling them next adds."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.done = [False] * graph.size
        self.waiting = [len(succs) for succs in graph.succs]
        self.live = list(graph.outlives)
        self.readers: list[list[int]] = [[] for _ in graph.weight]
        self.change = [-taken for taken in graph.taken]
        for op, touched in enumerate(graph.touches):
            opened = graph.opens[op]
            for tensor in touched:
                if tensor not in opened:
                    self.readers[tensor].append(op)
                    if not self.live[tensor]:
                        self.change[op] += graph.weight[tensor]
        self.queue = [
            (self.change[op], -op) for op, waiting in enumerate(self.waiting) if not waiting
        ]
        heapify(self.queue)

    def run(self, op: int) -> None:
        """Schedule an op before all those scheduled so far."""
        self.done[op] = True
        opened = self.graph.opens[op]
        for tensor in self.graph.touches[op]:
            if tensor not in opened and not self.live[tensor]:
                self.live[tensor] = True
                self._cheaper(self.readers[tensor], self.graph.weight[tensor])
        for pred in self.graph.preds[op]:
            self.waiting[pred] -= 1
            if not self.waiting[pred]:
                heappush(self.queue, (self.change[pred], -pred))

    def _cheaper(self, readers: list[int], weight: int) -> None:
        for reader in readers:
            if not self.done[reader]:
                self.change[reader] -= weight
                if not self.waiting[reader]:
                    heappush(self.queue, (self.change[reader], -reader))


SCHEDULERS: Mapping[str, Scheduler] = {
    "file": file_order,
    "runtime_default": runtime_default,
    "reverse_post_order": reverse_post_order,
    "greedy": greedy,
    "greedy_backward": greedy_backward,
}
"""Every order of one pass by name: where the searches begin, and candidates for a plan."""
