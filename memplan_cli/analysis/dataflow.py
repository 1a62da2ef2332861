"""Dataflow of the top block: its ops as a graph of indices, producers and readers of vars.

A control-flow op counts as one node that also reads what its subgraphs capture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from memplan_cli.core.program import captures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.program import Block, Op, VarId


@dataclass(frozen=True)
class Dataflow:
    """Edges between the ops of one block, each op named by its index in the schedule."""

    ops: tuple[Op, ...]
    reads: tuple[tuple[VarId, ...], ...]
    """What each op reads, once each, captures of its subgraphs included."""
    producer: Mapping[VarId, int]

    @cached_property
    def readers(self) -> Mapping[VarId, Sequence[int]]:
        """The ops that read each var; large, and no matter where nothing is trained."""
        found: dict[VarId, list[int]] = {}
        for at, variables in enumerate(self.reads):
            for var in variables:
                found.setdefault(var, []).append(at)
        return found

    def ancestors(self, targets: Iterable[VarId]) -> frozenset[int]:
        """Return the ops that the targets need."""
        reads, producer = self.reads, self.producer
        stack = [producer[var] for var in targets if var in producer]
        found = set(stack)
        while stack:
            for var in reads[stack.pop()]:
                above = producer.get(var, -1)
                if above >= 0 and above not in found:
                    found.add(above)
                    stack.append(above)
        return frozenset(found)

    def descendants(self, sources: Iterable[VarId]) -> frozenset[int]:
        """Return the ops that need one of the sources."""
        stack = list(sources)
        found: set[int] = set()
        while stack:
            for reader in self.readers.get(stack.pop(), ()):
                if reader not in found:
                    found.add(reader)
                    stack.extend(self.ops[reader].outputs)
        return frozenset(found)


def dataflow(block: Block) -> Dataflow:
    """Return the edges between the ops of a block."""
    reads = tuple(op_reads(op) for op in block.ops)
    producer = {var: at for at, op in enumerate(block.ops) for var in op.outputs if var}
    return Dataflow(block.ops, reads, producer)


def op_reads(op: Op) -> tuple[VarId, ...]:
    """Return what an op reads, once each: its inputs and what its subgraphs capture."""
    if not op.bodies:
        inputs = op.inputs
        if len(set(inputs)) == len(inputs) and "" not in inputs:  # nearly always
            return inputs
        return tuple(dict.fromkeys(filter(None, inputs)))
    captured = (var for body in op.bodies for var in captures(body))
    return tuple(dict.fromkeys((*filter(None, op.inputs), *captured)))
