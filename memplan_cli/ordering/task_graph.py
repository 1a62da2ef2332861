"""The ops of one block as integers, and the bytes that are live along an order of them.

Ops and tensors are numbered from 0. An order is a permutation of ``range(graph.size)``, and the
identity is the order of the model file. Variables that are views of one another are one tensor.

An output may be written over an input that dies at the op. Which inputs die depends on the
order, so `trace` decides it step by step, with the rule of `analysis.aliasing.share_storage`.
Peaks therefore equal `live_peak` to the byte, except for subgraphs that run at most once (If):
an outer tensor that dies inside such a subgraph is counted until the end of the op.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Order = list[int]
"""Ops in the order in which they run."""


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The ops of one block with the memory that they define, read and free.

    Attributes:
        preds: for each op, the ops that have to run before it.
        succs: for each op, the ops that have to run after it.
        defines: for each op, the tensors whose live range it begins.
        accesses: for each op, the tensors that it defines or reads, ascending.
        in_place_inputs: for each op, the tensors that its first output may be written over if
            the op is their last reader. None of them is a result of the block.
        in_place_bytes: for each op, the bytes that its step saves if it writes in place.
        step_bytes: for each op, the bytes that its step needs beyond those live before it: its
            outputs, and for an op with subgraphs the peak of these.
        tensor_bytes: the size of each tensor.
        access_counts: for each tensor, the number of ops that access it, plus one for a result.
        is_result: for each tensor, whether it is live after the last op.
        initial_bytes: bytes live before the first op.
        defined_bytes: for each op, the total size of the tensors in ``defines``.
    """

    preds: tuple[tuple[int, ...], ...]
    succs: tuple[tuple[int, ...], ...]
    defines: tuple[tuple[int, ...], ...]
    accesses: tuple[tuple[int, ...], ...]
    in_place_inputs: tuple[tuple[int, ...], ...]
    in_place_bytes: tuple[int, ...]
    step_bytes: tuple[int, ...]
    tensor_bytes: tuple[int, ...]
    access_counts: tuple[int, ...]
    is_result: tuple[bool, ...]
    initial_bytes: int
    defined_bytes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        size = self.tensor_bytes
        totals = [sum([size[t] for t in row]) if row else 0 for row in self.defines]
        object.__setattr__(self, "defined_bytes", tuple(totals))

    @property
    def size(self) -> int:
        """Number of ops."""
        return len(self.preds)

    def descendants(self, op: int) -> set[int]:
        """Return the ops that depend on an op, directly or indirectly."""
        reached: set[int] = set()
        stack = [op]
        while stack:
            fresh = [succ for succ in self.succs[stack.pop()] if succ not in reached]
            reached.update(fresh)
            stack += fresh
        return reached

    def always_live_bytes(self) -> int:
        """Return the bytes of tensors that are live at every step and accessed by no op."""
        # The tensors that ops read and none defines are live before the first op, but may die.
        inputs = set().union(*self.accesses).difference(*self.defines)
        return self.initial_bytes - sum([self.tensor_bytes[tensor] for tensor in inputs])

    def final_bytes(self) -> int:
        """Return the bytes that are live after the last op, the same in every order."""
        accessed = set().union(*self.accesses)
        freed = sum([self.tensor_bytes[t] for t in accessed if not self.is_result[t]])
        return self.initial_bytes + sum(self.defined_bytes) - freed


class LiveBytes(NamedTuple):
    """The live bytes along an order.

    Attributes:
        steps: bytes live while each op runs, by position in the order.
        before: bytes live just before each op, by position in the order.
        after: bytes live after the last op.
    """

    steps: list[int]
    before: list[int]
    after: int


def trace(graph: TaskGraph, order: Sequence[int]) -> LiveBytes:
    """Return the bytes that are live along an order, in time linear in the accesses."""
    remaining = list(graph.access_counts)
    size, accesses, defined = graph.tensor_bytes, graph.accesses, graph.defined_bytes
    in_place_inputs, in_place_bytes = graph.in_place_inputs, graph.in_place_bytes
    step_bytes = graph.step_bytes
    live = graph.initial_bytes
    steps, before = [], []
    for op in order:
        need = step_bytes[op]
        for tensor in in_place_inputs[op]:
            if remaining[tensor] == 1:  # dies here, so the first output is written over it
                need -= in_place_bytes[op]
                break
        before.append(live)
        steps.append(live + need)
        live += defined[op]
        for tensor in accesses[op]:
            remaining[tensor] -= 1
            if not remaining[tensor]:
                live -= size[tensor]
    return LiveBytes(steps, before, live)


def peak(graph: TaskGraph, order: Sequence[int]) -> int:
    """Return the most bytes that are live at one step of an order."""
    return max(trace(graph, order).steps, default=graph.initial_bytes)


def displacement(order: Sequence[int]) -> int:
    """Return the sum over all ops of the distance between their places in the file and here."""
    return sum(abs(position - op) for position, op in enumerate(order))


class Schedule:
    """An order of a graph together with its live bytes; sections of it can be replaced.

    Attributes:
        graph: the ops.
        order: the ops in the order in which they run.
        steps: bytes live while each op runs, by position in ``order``.
        before: bytes live just before each op, by position in ``order``.
        _last_access: for each tensor, the position of the last op that accesses it; -1 if none.
    """

    def __init__(self, graph: TaskGraph, order: Sequence[int]) -> None:
        self.graph = graph
        self.order = list(order)
        self.steps, self.before, _ = trace(graph, self.order)
        self._last_access = [-1] * len(graph.tensor_bytes)
        for position, op in enumerate(self.order):
            for tensor in graph.accesses[op]:
                self._last_access[tensor] = position

    def section(self, begin: int, end: int) -> TaskGraph:
        """Return the ops at positions ``begin <= position < end`` as a graph of their own.

        The ops are numbered from 0 in their present order. Tensors that are live before the
        section are part of ``initial_bytes``. Tensors with a reader after the section are results.
        """
        graph, ops = self.graph, self.order[begin:end]
        op_number = {op: index for index, op in enumerate(ops)}
        accessed = [graph.accesses[op] for op in ops]
        tensors = sorted(set().union(*accessed))
        tensor_number = {tensor: index for index, tensor in enumerate(tensors)}
        accesses = tuple([tuple([tensor_number[t] for t in row]) for row in accessed])
        access_counts = [0] * len(tensors)
        for row in accesses:
            for tensor in row:
                access_counts[tensor] += 1
        last_access = self._last_access
        is_result = tuple([graph.is_result[t] or last_access[t] >= end for t in tensors])
        return TaskGraph(
            preds=_renumbered(graph.preds, ops, op_number),
            succs=_renumbered(graph.succs, ops, op_number),
            defines=tuple(
                [tuple([tensor_number[t] for t in graph.defines[op]]) for op in ops]
            ),
            accesses=accesses,
            in_place_inputs=tuple(
                [
                    tuple([tensor_number[t] for t in row if not is_result[tensor_number[t]]])
                    if row
                    else ()
                    for row in [graph.in_place_inputs[op] for op in ops]
                ]
            ),
            in_place_bytes=tuple([graph.in_place_bytes[op] for op in ops]),
            step_bytes=tuple([graph.step_bytes[op] for op in ops]),
            tensor_bytes=tuple([graph.tensor_bytes[t] for t in tensors]),
            access_counts=tuple(map(add, access_counts, is_result)),
            is_result=is_result,
            initial_bytes=self.before[begin],
        )

    def replace_section(self, begin: int, section: TaskGraph, order: Sequence[int]) -> None:
        """Run the ops of a section in another order, and update the live bytes there.

        Args:
            begin: Position of the section's first op.
            section: The result of `section` for these positions.
            order: An order of ``section``.
        """
        end = begin + section.size
        ops = self.order[begin:end]
        self.order[begin:end] = [ops[index] for index in order]
        self.steps[begin:end], self.before[begin:end], _ = trace(section, order)
        last_access, accesses = self._last_access, self.graph.accesses
        # The last access of these tensors is behind the section and stays as it is.
        accessed_later = {t for op in ops for t in accesses[op] if last_access[t] >= end}
        for position in range(begin, end):
            for tensor in accesses[self.order[position]]:
                if tensor not in accessed_later:
                    last_access[tensor] = position

    @property
    def peak_and_count(self) -> tuple[int, int]:
        """The most bytes live at one step, and the number of steps with so many live bytes."""
        most = max(self.steps, default=self.graph.initial_bytes)
        return most, self.steps.count(most)


def _renumbered(
    edges: Sequence[Sequence[int]], ops: Sequence[int], op_number: Mapping[int, int]
) -> tuple[tuple[int, ...], ...]:
    """Return the edges between the given ops, in the numbers of ``op_number``, ascending."""
    rows = [[op_number[other] for other in edges[op] if other in op_number] for op in ops]
    return tuple([tuple(sorted(row)) if len(row) > 1 else tuple(row) for row in rows])
