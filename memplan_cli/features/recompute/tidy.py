"""Reordering before recomputation: ops that take memory run late, ops that free it run early.

Two passes over an order, linear in its edges. They do not aim at the smallest peak. A value
that is made late need not be dropped and recomputed, which makes the search for drops cheaper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from memplan_cli.analysis.repetition import repeatable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.program import Program, VarId


def tidy(program: Program, weights: Mapping[VarId, int]) -> Program:
    """Return the program with ops of the top block moved down, then up.

    Args:
        program: the program.
        weights: bytes of the vars that count; keeping any other var costs nothing.
    """
    count = len(program.body.ops)
    downwards = _MoveDown(program, weights).run(reversed(range(count)))
    moved_down = _in_order(program, downwards[::-1])
    return _in_order(moved_down, _MoveUp(moved_down, weights).run(range(count)))


def _in_order(program: Program, order: list[int]) -> Program:
    """Return the program with the ops of the top block in an order of their indices."""
    ops = program.body.ops
    return program.with_ops(ops[index] for index in order)


class _Pass(ABC):
    """Puts ops into a new order: that of the program, except that some ops go before their turn.

    When an op is emitted, its neighbours may go next, then theirs, and so on. A subclass says
    which ops are neighbours and which may go.

    Attributes:
        dataflow: producers and consumers of the top block.
        graph_outputs: the graph outputs, which stay live to the end.
        weights: the bytes of the vars that count.
        order: the indices of the ops that were emitted so far.
        is_emitted: whether each op was emitted.
        remaining_consumers: for each var how many of its consumers were not emitted yet.
        is_movable: whether each op may run at another place at all.
    """

    def __init__(self, program: Program, weights: Mapping[VarId, int]) -> None:
        self.dataflow = program.dataflow
        self.graph_outputs = frozenset(program.body.outputs)
        self.weights = weights
        self.order: list[int] = []
        self.is_emitted = [False] * len(self.dataflow.ops)
        self.remaining_consumers = {
            var: len(consumers) for var, consumers in self.dataflow.consumers.items()
        }
        self.is_movable = repeatable(program)

    def run(self, turns: Iterable[int]) -> list[int]:
        """Emit all ops and return their order; may be called once.

        Args:
            turns: the indices of all ops, in the order in which they are emitted if no op goes
                before its turn.
        """
        for index in turns:
            stack = [index]
            while stack:
                top = stack.pop()
                if not self.is_emitted[top]:
                    self._emit(top)
                    stack.extend(filter(self._may_go_first, self._neighbours(top)))
        return self.order

    @abstractmethod
    def _neighbours(self, index: int) -> Iterable[int]:
        """Return the ops that are tried after an op was emitted, the first to try last."""

    @abstractmethod
    def _may_go_first(self, index: int) -> bool:
        """Whether an op may be emitted before its turn."""

    def _output_bytes(self, index: int) -> int:
        """Return the bytes that an op makes."""
        return sum(self.weights.get(var, 0) for var in self.dataflow.ops[index].outputs)

    def _emit(self, index: int) -> None:
        """Append an op to the order."""
        self.is_emitted[index] = True
        self.order.append(index)
        for var in self.dataflow.reads[index]:
            self.remaining_consumers[var] -= 1


class _MoveDown(_Pass):
    """Emits ops from last to first, so that a producer may run directly before its first consumer.

    A producer goes if running it that late keeps at most as many bytes of its inputs live for
    longer as it makes itself. The order has to be reversed at the end.
    """

    def _neighbours(self, index: int) -> Iterable[int]:
        """Return the producers of an op's inputs."""
        producers = (self.dataflow.producer.get(var) for var in self.dataflow.reads[index])
        return (producer for producer in producers if producer is not None)

    def _may_go_first(self, index: int) -> bool:
        """Whether an op may run right before its first consumer.

        Its consumers must have been emitted. An input is kept longer if it has no consumer
        among the emitted ops, which run later.
        """
        outputs = [var for var in self.dataflow.ops[index].outputs if var]
        has_consumers_left = any(self.remaining_consumers.get(var, 0) for var in outputs)
        if not self.is_movable[index] or has_consumers_left:
            return False
        if any(var in self.graph_outputs for var in outputs):
            return False
        consumers = self.dataflow.consumers
        kept_longer = sum(
            self.weights.get(var, 0)
            for var in self.dataflow.reads[index]
            if self.remaining_consumers[var] == len(consumers[var])
            and var not in self.graph_outputs
        )
        return kept_longer <= self._output_bytes(index)


class _MoveUp(_Pass):
    """Emits ops from first to last; an op that frees memory may go as soon as it is ready.

    It goes if it is the last consumer of at least as many bytes as it makes.
    """

    def _neighbours(self, index: int) -> Iterable[int]:
        """Return ops that may have become ready, or the last consumer of a var, by this op."""
        candidates = {
            consumer
            for var in self.dataflow.ops[index].outputs
            for consumer in self.dataflow.consumers.get(var, ())
        }
        for var in self.dataflow.reads[index]:
            if self.remaining_consumers[var] == 1 and var in self.dataflow.producer:
                consumers = self.dataflow.consumers[var]
                candidates.update(
                    reader for reader in consumers if not self.is_emitted[reader]
                )
        return sorted(candidates, reverse=True)

    def _may_go_first(self, index: int) -> bool:
        """Whether an op is ready and frees at least as many bytes as it makes."""
        if self.is_emitted[index] or not self.is_movable[index]:
            return False
        producers = (self.dataflow.producer.get(var) for var in self.dataflow.reads[index])
        if not all(producer is None or self.is_emitted[producer] for producer in producers):
            return False
        # Graph inputs, weights and graph outputs are not freed.
        freed = sum(
            self.weights.get(var, 0)
            for var in self.dataflow.reads[index]
            if self.remaining_consumers[var] == 1
            and var not in self.graph_outputs
            and var in self.dataflow.producer
        )
        return 0 < freed >= self._output_bytes(index)
