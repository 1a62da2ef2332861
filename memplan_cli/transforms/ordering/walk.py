"""An order with all that is live along it, and parts of it as problems of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.graph import TaskGraph, trace

if TYPE_CHECKING:
    from collections.abc import Sequence


class Walk:
    """An order of a graph that is changed part by part.

    ``steps`` and ``before`` are the bytes live at each place of the order, and just
    before it.
    """

    def __init__(self, graph: TaskGraph, order: Sequence[int]) -> None:
        self.graph = graph
        self.order = list(order)
        self.steps, self.before, _ = trace(graph, self.order)
        self._last = [-1] * len(graph.weight)
        for at, op in enumerate(self.order):
            for tensor in graph.touches[op]:
                self._last[tensor] = at

    def section(self, begin: int, end: int) -> TaskGraph:
        """Return the places ``begin <= at < end`` as a graph, numbered from 0.

        What lives before and after them is live at its start and outlives it; a tensor
        whose last reader is among them dies there, whoever else has read it before.
        """
        graph, ops = self.graph, self.order[begin:end]
        number = {op: at for at, op in enumerate(ops)}
        tensors = sorted({tensor for op in ops for tensor in graph.touches[op]})
        tensor_number = {tensor: at for at, tensor in enumerate(tensors)}
        uses = [0] * len(tensors)

        def known(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(tensor_number[tensor] for tensor in rows[op]) for op in ops)

        def near(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple(
                tuple(sorted(number[other] for other in rows[op] if other in number))
                for op in ops
            )

        touches = known(graph.touches)
        for touched in touches:
            for tensor in touched:
                uses[tensor] += 1
        outlives = tuple(graph.outlives[t] or self._last[t] >= end for t in tensors)
        return TaskGraph(
            preds=near(graph.preds),
            succs=near(graph.succs),
            opens=known(graph.opens),
            touches=touches,
            replaces=tuple(
                tuple(tensor for tensor in sources if not outlives[tensor])
                for sources in known(graph.replaces)
            ),
            saved=tuple(graph.saved[op] for op in ops),
            need=tuple(graph.need[op] for op in ops),
            weight=tuple(graph.weight[tensor] for tensor in tensors),
            uses=tuple(many + out for many, out in zip(uses, outlives, strict=True)),
            outlives=outlives,
            start=self.before[begin],
        )

    def splice(self, begin: int, part: TaskGraph, order: Sequence[int]) -> None:
        """Put a new order of a section in the section's place."""
        end = begin + part.size
        ops = self.order[begin:end]
        self.order[begin:end] = [ops[at] for at in order]
        self.steps[begin:end], self.before[begin:end], _ = trace(part, order)
        touched = {tensor for op in ops for tensor in self.graph.touches[op]}
        for tensor in touched:
            if begin <= self._last[tensor] < end:
                self._last[tensor] = -1
        for at in range(begin, end):
            for tensor in self.graph.touches[self.order[at]]:
                self._last[tensor] = max(self._last[tensor], at)

    @property
    def worst(self) -> tuple[int, int]:
        """The most live at one step, and at how many steps that is so: to be lowered."""
        most = max(self.steps, default=self.graph.start)
        return most, self.steps.count(most)
