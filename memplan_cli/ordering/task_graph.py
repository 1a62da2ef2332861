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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OpIndex = int
"""The number of an op: its position in the order of the model file."""

TensorIndex = int
"""The number of a tensor, in the order in which live ranges begin."""

Order = list[OpIndex]
"""Ops in the order in which they run."""


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The ops of one block with the memory that they define, read and free.

    Attributes:
        preds: for each op, the ops that have to run before it (predecessors).
        succs: for each op, the ops that have to run after it.
        defines: for each op, the tensors whose live range it begins.
        accesses: for each op, the tensors that it defines or reads, ascending.
        in_place_inputs: for each op, the tensors that its first output may be written over if
            the op is their last reader. None of them is a result of the block.
        in_place_bytes: for each op, the bytes that its step saves if it writes in place.
        step_bytes: for each op, the bytes that are live during its step beyond those live before
            it: its outputs, and for an op with subgraphs the peak of these.
        tensor_bytes: the size of each tensor.
        access_counts: for each tensor, the number of ops that access it, plus one for a result.
        is_result: for each tensor, whether it is live after the last op.
        initial_bytes: bytes live before the first op.
        defined_bytes: for each op, the total size of the tensors in ``defines``.
    """

    preds: tuple[tuple[OpIndex, ...], ...]
    succs: tuple[tuple[OpIndex, ...], ...]
    defines: tuple[tuple[TensorIndex, ...], ...]
    accesses: tuple[tuple[TensorIndex, ...], ...]
    in_place_inputs: tuple[tuple[TensorIndex, ...], ...]
    in_place_bytes: tuple[int, ...]
    step_bytes: tuple[int, ...]
    tensor_bytes: tuple[int, ...]
    access_counts: tuple[int, ...]
    is_result: tuple[bool, ...]
    initial_bytes: int
    defined_bytes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        size = self.tensor_bytes
        totals = [sum([size[tensor] for tensor in defined]) for defined in self.defines]
        object.__setattr__(self, "defined_bytes", tuple(totals))

    @property
    def size(self) -> int:
        """Number of ops."""
        return len(self.preds)

    def descendants(self, op: OpIndex) -> set[OpIndex]:
        """Return the ops that depend on an op, directly or indirectly."""
        reached: set[OpIndex] = set()
        stack = [op]
        while stack:
            fresh = [succ for succ in self.succs[stack.pop()] if succ not in reached]
            reached.update(fresh)
            stack += fresh
        return reached

    def always_live_bytes(self) -> int:
        """Return the bytes of tensors that are live at every step and accessed by no op."""
        # The tensors that ops read and none defines are live before the first op, but may die.
        accessed = set().union(*self.accesses)
        inputs = accessed.difference(*self.defines)
        return self.initial_bytes - sum([self.tensor_bytes[tensor] for tensor in inputs])

    def final_bytes(self) -> int:
        """Return the bytes that are live after the last op, the same in every order."""
        accessed = set().union(*self.accesses)
        freed_bytes = sum([self.tensor_bytes[t] for t in accessed if not self.is_result[t]])
        return self.initial_bytes + sum(self.defined_bytes) - freed_bytes


def trace(graph: TaskGraph, order: Sequence[OpIndex]) -> list[int]:
    """Return the bytes live while each op runs, by position in an order.

    Takes time linear in the accesses.
    """
    remaining_accesses = list(graph.access_counts)  # of each tensor
    size, accesses, defined_bytes = graph.tensor_bytes, graph.accesses, graph.defined_bytes
    in_place_inputs, in_place_bytes = graph.in_place_inputs, graph.in_place_bytes
    live_bytes = graph.initial_bytes  # between two ops
    bytes_during = []
    for op in order:
        added_during_step = graph.step_bytes[op]
        for tensor in in_place_inputs[op]:
            if remaining_accesses[tensor] == 1:  # it dies here: the output is written over it
                added_during_step -= in_place_bytes[op]
                break
        bytes_during.append(live_bytes + added_during_step)
        live_bytes += defined_bytes[op]
        for tensor in accesses[op]:
            remaining_accesses[tensor] -= 1
            if not remaining_accesses[tensor]:
                live_bytes -= size[tensor]
    return bytes_during


def peak(graph: TaskGraph, order: Sequence[OpIndex]) -> int:
    """Return the most bytes that are live at one step of an order."""
    return max(trace(graph, order), default=graph.initial_bytes)


def displacement(order: Sequence[OpIndex]) -> int:
    """Return the sum over all ops of the distance between their places in the file and here."""
    return sum(abs(position - op) for position, op in enumerate(order))
