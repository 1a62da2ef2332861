"""The orders in which ONNX Runtime runs the ops of a block.

A node's index is its place in the file, as long as the graph is loaded as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import successors
from memplan_cli.analysis.topological import nearest_order
from memplan_cli.core.program import Block, captures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.program import Op, VarId

Order = tuple["Op", ...]

_EAGER = frozenset({"Shape", "Size"})


def reads(op: Op) -> tuple[VarId, ...]:
    """Return what an op reads from its own block: its inputs, then its subgraphs' captures."""
    if not op.bodies:
        return op.inputs
    implicit = dict.fromkeys(var for body in op.bodies for var in captures(body))
    return (*op.inputs, *implicit)


def _edges(block: Block) -> list[tuple[int, ...]]:
    """Return for each op the indices of the ops it reads from, ascending."""
    maker = {var: index for index, op in enumerate(block.ops) for var in op.outputs if var}
    return [
        tuple(sorted({maker[var] for var in reads(op) if var in maker})) for op in block.ops
    ]


def default_order(block: Block) -> Order:
    """``ExecutionOrder.DEFAULT``: depth first, backwards from the last leaf.

    Of an op's producers the one with the highest index is visited first.
    """
    edges = _edges(block)
    read = {producer for producers in edges for producer in producers}
    stack = [(index, False) for index in range(len(edges)) if index not in read]
    seen: set[int] = set()
    order: list[int] = []
    while stack:
        index, leaving = stack.pop()
        if leaving:
            order.append(index)
            continue
        if index in seen:
            continue
        seen.add(index)
        stack.append((index, True))
        stack += [(producer, False) for producer in edges[index] if producer not in seen]
    return tuple(block.ops[index] for index in order)


def priority_order(block: Block) -> Order:
    """``ExecutionOrder.PRIORITY_BASED``: file order, but Shape and Size when ready."""
    ops = block.ops

    def rank(index: int) -> int:
        return 0 if ops[index].type in _EAGER and not ops[index].domain else 1

    order = nearest_order(successors(_edges(block)), rank)
    return tuple(ops[index] for index in order)


def file_order(block: Block) -> Order:
    """Return the ops as they stand: how a file dumped by the runtime was run."""
    return block.ops


ORDERS: Mapping[str, Callable[[Block], Order]] = {
    "DEFAULT": default_order,
    "PRIORITY_BASED": priority_order,
}
