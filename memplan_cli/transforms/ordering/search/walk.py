"""An order with all that is live along it, and parts of it as problems of their own."""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.graph import TaskGraph, trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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

        What is live before and after them is live at its start and outlives it; a tensor
        whose last reader is among them dies there, whatever else has read it before.
        """
        graph, ops = self.graph, self.order[begin:end]
        number = {op: at for at, op in enumerate(ops)}
        touched = [graph.touches[op] for op in ops]
        tensors = sorted(set().union(*touched))
        known = {tensor: at for at, tensor in enumerate(tensors)}
        touches = tuple([tuple([known[t] for t in row]) for row in touched])
        uses = [0] * len(tensors)
        for row in touches:
            for tensor in row:
                uses[tensor] += 1
        last, outlives = self._last, graph.outlives
        out = tuple([outlives[t] or last[t] >= end for t in tensors])
        return TaskGraph(
            preds=_near(graph.preds, ops, number),
            succs=_near(graph.succs, ops, number),
            opens=tuple([tuple([known[t] for t in graph.opens[op]]) for op in ops]),
            touches=touches,
            replaces=tuple(
                [
                    tuple([known[t] for t in row if not out[known[t]]]) if row else ()
                    for row in [graph.replaces[op] for op in ops]
                ]
            ),
            saved=tuple([graph.saved[op] for op in ops]),
            need=tuple([graph.need[op] for op in ops]),
            weight=tuple([graph.weight[t] for t in tensors]),
            uses=tuple(map(add, uses, out)),
            outlives=out,
            start=self.before[begin],
        )

    def splice(self, begin: int, part: TaskGraph, order: Sequence[int]) -> None:
        """Put a new order of a section in the section's place."""
        end = begin + part.size
        ops = self.order[begin:end]
        self.order[begin:end] = [ops[at] for at in order]
        self.steps[begin:end], self.before[begin:end], _ = trace(part, order)
        last, touches = self._last, self.graph.touches
        beyond = {t for op in ops for t in touches[op] if last[t] >= end}
        for at in range(begin, end):
            for tensor in touches[self.order[at]]:
                if tensor not in beyond:
                    last[tensor] = at

    @property
    def worst(self) -> tuple[int, int]:
        """The most live at one step, and at how many steps that is so: to be lowered."""
        most = max(self.steps, default=self.graph.start)
        return most, self.steps.count(most)


def _near(
    rows: Sequence[Sequence[int]], ops: Sequence[int], number: Mapping[int, int]
) -> tuple[tuple[int, ...], ...]:
    """Return the neighbours of some ops among themselves, by their new numbers."""
    found = [[number[other] for other in rows[op] if other in number] for op in ops]
    return tuple([tuple(sorted(row)) if len(row) > 1 else tuple(row) for row in found])
