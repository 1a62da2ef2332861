"""Schedulers: functions that find an order in one pass over the ops.

They are the order of the file, depth-first orders as runtimes use them, and greedy list
scheduling. All take near-linear time, and the op that stands first in the file wins ties.
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


def greedy(graph: TaskGraph) -> Order:
    """Return the order that always runs the ready op after which the fewest bytes are live.

    Of several such ops, the one whose step needs least runs first.

    O(accesses x log ops), see `_ForwardQueue`.
    """
    queue = _ForwardQueue(graph)
    order: Order = []
    while queue.heap:
        _, _, op = heappop(queue.heap)
        # Changes only get lower, so an op's first entry to leave the heap is its latest one.
        if not queue.done[op]:
            order.append(op)
            queue.run(op)
    return order


class _ForwardQueue:
    """The ready ops as a heap of (change of live bytes, bytes of the step, op).

    An op is pushed again when its change gets lower; older entries stay in the heap.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.done = [False] * graph.size
        """For each op, whether it has run."""
        self._missing_preds = [len(preds) for preds in graph.preds]
        """For each op, how many of its predecessors have not run."""
        self._remaining = list(graph.access_counts)
        """For each tensor, how many ops still have to access it, the end of the block included."""
        self._end = graph.size
        """The number of the end of the block: an op that never runs and accesses all results."""
        self._sum_of_remaining_ops = [
            self._end if is_result else 0 for is_result in graph.is_result
        ]
        """For each tensor, the sum of the numbers of the ops that still have to access it. Once one op is
        left, which frees the tensor, the sum is its number: no search is needed to find it."""
        for op, accessed in enumerate(graph.accesses):
            for tensor in accessed:
                self._sum_of_remaining_ops[tensor] += op
        self._change = list(graph.defined_bytes)
        """For each op, by how much it changes the live bytes if it runs next."""
        for op, accessed in enumerate(graph.accesses):
            for tensor in accessed:
                # No other op accesses the tensor, so ``op`` frees it.
                if graph.access_counts[tensor] == 1:
                    self._change[op] -= graph.tensor_bytes[tensor]
        self.heap = [
            (self._change[op], graph.step_bytes[op], op)
            for op in range(graph.size)
            if not self._missing_preds[op]
        ]
        heapify(self.heap)

    def run(self, op: int) -> None:
        """Mark an op as executed, and push the ops that become ready or change fewer live bytes.

        An op that is now the last to access some tensor frees it, so its change is lowered.
        """
        graph, remaining = self.graph, self._remaining
        self.done[op] = True
        for tensor in graph.accesses[op]:
            remaining[tensor] -= 1
            self._sum_of_remaining_ops[tensor] -= op
            if remaining[tensor] == 1:
                # A sum of one number: the number of the op that accesses the tensor last.
                last_op = self._sum_of_remaining_ops[tensor]
                if last_op != self._end:  # no op frees a result
                    self._lower_change(last_op, graph.tensor_bytes[tensor])
        for succ in graph.succs[op]:
            self._missing_preds[succ] -= 1
            if not self._missing_preds[succ]:
                heappush(self.heap, (self._change[succ], graph.step_bytes[succ], succ))

    def _lower_change(self, op: int, size: int) -> None:
        """Lower an op's change, as it is now the last to access a tensor of ``size`` bytes.

        If the op is ready, it is pushed again. Its older entry in the heap is skipped later, because
        the op has run by then.
        """
        self._change[op] -= size
        if not self._missing_preds[op]:
            heappush(self.heap, (self._change[op], self.graph.step_bytes[op], op))


def greedy_backward(graph: TaskGraph) -> Order:
    """Return the order that is built from its end, adding the op that raises live bytes least.

    Going backward over an op, its outputs stop being live and its inputs start to be. So an op
    that waits for late readers only (the transpose of a weight) runs just before them, and an
    op that reads much (a gradient of a weight) runs as early as it can.
    """
    queue = _BackwardQueue(graph)
    order: Order = []
    while queue.heap:
        change, negated = heappop(queue.heap)
        op = -negated
        # Other entries are out of date: the op was pushed again with a lower change.
        if not queue.done[op] and change == queue.change[op]:
            order.append(op)
            queue.run(op)
    return order[::-1]


class _BackwardQueue:
    """The ops with all successors scheduled, as a heap of (change of live bytes, -op).

    The order is built from its end. An op is pushed again when its change gets lower; an entry with
    another change than ``change[op]`` is out of date.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.done = [False] * graph.size
        """For each op, whether it is scheduled."""
        self._missing_succs = [len(succs) for succs in graph.succs]
        """For each op, how many of its successors are not scheduled."""
        self._is_live = list(graph.is_result)
        """For each tensor, whether a scheduled op reads it or it is a result."""
        self._readers: list[list[int]] = [[] for _ in graph.tensor_bytes]
        """For each tensor, the ops that access it without defining it."""
        self.change = [-outlasting for outlasting in graph.outlasting_bytes()]
        """For each op, by how much scheduling it next, before all scheduled ops, raises the live bytes:
        the bytes of its inputs that are not live yet, less those of its outputs that are."""
        for op, accessed in enumerate(graph.accesses):
            defined = graph.defines[op]
            for tensor in accessed:
                if tensor not in defined:
                    self._readers[tensor].append(op)
                    if not self._is_live[tensor]:
                        self.change[op] += graph.tensor_bytes[tensor]
        # Of equal changes the last op in the file is scheduled first, hence ``-op``.
        self.heap = [
            (self.change[op], -op)
            for op, missing in enumerate(self._missing_succs)
            if not missing
        ]
        heapify(self.heap)

    def run(self, op: int) -> None:
        """Schedule an op before all ops scheduled so far, and push the ops that this affects."""
        self.done[op] = True
        defined = self.graph.defines[op]
        for tensor in self.graph.accesses[op]:
            if tensor not in defined and not self._is_live[tensor]:
                self._is_live[tensor] = True
                self._lower_changes(self._readers[tensor], self.graph.tensor_bytes[tensor])
        for pred in self.graph.preds[op]:
            self._missing_succs[pred] -= 1
            if not self._missing_succs[pred]:
                heappush(self.heap, (self.change[pred], -pred))

    def _lower_changes(self, readers: list[int], size: int) -> None:
        """Lower the changes of a tensor's readers: it is live now, so they add no bytes for it.

        ``size`` is the bytes of the tensor. Readers that can be scheduled are pushed again.
        """
        for reader in readers:
            if not self.done[reader]:
                self.change[reader] -= size
                if not self._missing_succs[reader]:
                    heappush(self.heap, (self.change[reader], -reader))


SCHEDULERS: Mapping[str, Scheduler] = {
    "file": file_order,
    "runtime_default": runtime_default,
    "reverse_post_order": reverse_post_order,
    "greedy": greedy,
    "greedy_backward": greedy_backward,
}
"""All schedulers by name. Searches start from their orders, which are also candidates of a plan."""
