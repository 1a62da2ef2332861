"""Rescheduling for recomputation: what takes memory late, what frees it early.

Two passes over an order, linear in its edges. They do not look for the least peak: they
make what comes after cheap, because a value that is made late need not be computed again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from memplan_cli.analysis.repetition import repeatable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.program import Program, VarId


def tidy(program: Program, weight: Mapping[VarId, int]) -> Program:
    """Move ops of the top block: late what takes memory, then early what frees it.

    Args:
        program: In some order.
        weight: Bytes of the vars that count; what is not in it is free to keep.
    """
    backwards = _Late(program, weight).run(reversed(range(len(program.body.ops))))
    late = _in_order(program, backwards[::-1])
    return _in_order(late, _Early(late, weight).run(range(len(late.body.ops))))


def _in_order(program: Program, order: list[int]) -> Program:
    ops = program.body.ops
    return program.with_ops(ops[at] for at in order)


class _Pass(ABC):
    """Emits ops one by one; some near the last one go before their turn."""

    def __init__(self, program: Program, weight: Mapping[VarId, int]) -> None:
        self.flow = program.dataflow
        self.kept = frozenset(program.body.outputs)
        self.weight = weight
        self.order: list[int] = []
        self.done = [False] * len(self.flow.ops)
        self.unread = {var: len(who) for var, who in self.flow.consumers.items()}
        """How many consumers of a var are not emitted yet."""
        self.movable = repeatable(program)

    def run(self, turns: Iterable[int]) -> list[int]:
        """Return all ops as they were emitted."""
        for at in turns:
            stack = [at]
            while stack:
                top = stack.pop()
                if not self.done[top]:
                    self._emit(top)
                    stack.extend(filter(self._may_go, self._near(top)))
        return self.order

    @abstractmethod
    def _near(self, at: int) -> Iterable[int]:
        """Return the ops that may go next, the first choice last."""

    @abstractmethod
    def _may_go(self, at: int) -> bool:
        """Whether an op may go before its turn."""

    def _made(self, at: int) -> int:
        """Return the bytes that an op begins."""
        return sum(self.weight.get(var, 0) for var in self.flow.ops[at].outputs)

    def _emit(self, at: int) -> None:
        """Emit an op."""
        self.done[at] = True
        self.order.append(at)
        for var in self.flow.reads[at]:
            self.unread[var] -= 1


class _Late(_Pass):
    """Backwards: an op goes right behind (in time: before) its consumers."""

    def _near(self, at: int) -> Iterable[int]:
        producers = (self.flow.producer.get(var) for var in self.flow.reads[at])
        return (above for above in producers if above is not None)

    def _may_go(self, at: int) -> bool:
        outputs = [var for var in self.flow.ops[at].outputs if var]
        if not self.movable[at] or any(self.unread.get(var, 0) for var in outputs):
            return False
        if any(var in self.kept for var in outputs):
            return False
        consumers = self.flow.consumers
        longer = sum(
            self.weight.get(var, 0)
            for var in self.flow.reads[at]
            if self.unread[var] == len(consumers[var]) and var not in self.kept
        )
        return longer <= self._made(at)


class _Early(_Pass):
    """Forwards: an op goes as soon as it is ready and frees at least what it begins."""

    def _near(self, at: int) -> Iterable[int]:
        """Return ops that may have become ready, or the last consumers of something."""
        woken = [
            consumer
            for var in self.flow.ops[at].outputs
            for consumer in self.flow.consumers.get(var, ())
        ]
        for var in self.flow.reads[at]:
            if self.unread[var] == 1 and var in self.flow.producer:
                woken += [r for r in self.flow.consumers[var] if not self.done[r]]
        return sorted(set(woken), reverse=True)

    def _may_go(self, at: int) -> bool:
        if self.done[at] or not self.movable[at]:
            return False
        producers = (self.flow.producer.get(var) for var in self.flow.reads[at])
        if not all(above is None or self.done[above] for above in producers):
            return False
        freed = sum(
            self.weight.get(var, 0)
            for var in self.flow.reads[at]
            if self.unread[var] == 1 and var not in self.kept and var in self.flow.producer
        )
        return 0 < freed >= self._made(at)
