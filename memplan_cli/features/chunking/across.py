"""Chains: what makes a large tensor that a product reads across the rows, from small ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.operators import Family, operator, qualified_name
from memplan_cli.features.chunking.axes.terms import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.program import VarId
    from memplan_cli.features.chunking.axes.terms import Node
    from memplan_cli.features.chunking.graph import Graph

_SMALL = 4
"""What is so many times smaller than the tensor computed again stays as it is."""

_MOST_OPS = 32
"""Ops that are computed again for one product."""

_LARGE = 4
"""Tensors of less than the budget's part are no reason."""

_SIDES = frozenset({Role.ROWS, Role.COLUMNS})
"""What is split of one input of a product, the other being read whole."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What a product reads, and the ops that make it from small tensors.

    Attributes:
        consumer: The product.
        var: What it reads.
        axes: The axis along which each result is cut.
        ops: In their order.
        has_statistics: Whether some op mixes that axis, but for statistics of rows.
    """

    consumer: int
    var: VarId
    axes: Mapping[VarId, int]
    ops: tuple[int, ...]
    has_statistics: bool


def crossed_chains(graph: Graph, budget: int) -> list[Chain]:
    """Return what is worth computing again for a product, the best first.

    Args:
        graph: The program as it is.
        budget: Bytes; a tensor far below is no reason to compute it again.
    """
    found = [
        chain
        for at in range(len(graph.ops))
        for chain in _chains(graph, at, budget)
        if _is_crossed(graph, chain) and _frees(graph, chain)
    ]
    return sorted(found, key=lambda each: (not each.has_statistics, each.consumer))


def _chains(graph: Graph, at: int, budget: int) -> Iterator[Chain]:
    """Yield what a product's large inputs are made by, along the axis that is not summed."""
    op = graph.ops[at]
    if operator(op).family is not Family.MATRIX_PRODUCT:
        return
    for split in graph.splits(at):
        cut = [place for place in (0, 1) if split.inputs[place] is not None]
        if len(cut) != 1 or split.role not in _SIDES:
            continue
        var, part = op.inputs[cut[0]], split.inputs[cut[0]]
        if part is not None and graph.bytes(var) * _LARGE > budget:
            chain = _chain(graph, at, var, part.axis)
            if chain is not None:
                yield chain


def _chain(graph: Graph, consumer: int, var: VarId, axis: int) -> Chain | None:
    """Return the ops that make a tensor from small ones; None where some mixes the axis."""
    least = graph.bytes(var) // _SMALL
    axes: dict[VarId, int] = {}
    left = [(var, axis)]
    while left:
        wanted, along = left.pop()
        at = graph.flow.producer.get(wanted)
        if at is None or graph.bytes(wanted) < least:
            continue
        is_new = wanted not in axes
        if axes.setdefault(wanted, along) != along or len(axes) > _MOST_OPS:
            return None
        read = _read(graph, at, wanted, along)
        if read is None:
            return None
        left += read if is_new else ()
    ops = sorted({graph.flow.producer[each] for each in axes})
    mixed = (graph.flow.producer[each] for each, along in axes.items())
    nodes = [(graph.node(at), axis) for at, axis in zip(mixed, axes.values(), strict=True)]
    statistics = any(node is not None and is_log_softmax(node, at) for node, at in nodes)
    return Chain(consumer, var, axes, tuple(ops), statistics) if axes else None


def _read(graph: Graph, at: int, var: VarId, axis: int) -> list[tuple[VarId, int]] | None:
    """Return what an op reads, along which axes, for a result along one; None where it mixes."""
    op, node = graph.ops[at], graph.node(at)
    if node is None or graph.program.vars[var].dtype != "float32":
        return None
    if is_log_softmax(node, axis) or puts_one(graph, node, axis):
        return [(op.inputs[0], axis)]
    for split in graph.splits(at):
        made = split.outputs[op.outputs.index(var)]
        if made is not None and made.axis == axis:
            pairs = zip(op.inputs, split.inputs, strict=True)
            return [(read, part.axis) for read, part in pairs if part is not None]
    return None


def is_log_softmax(node: Node, axis: int) -> bool:
    """Whether an op normalises an axis by its logarithm."""
    return qualified_name(node.op) == "LogSoftmax" and _own_axis(node, -1) == axis


def puts_one(graph: Graph, node: Node, axis: int) -> bool:
    """Whether an op adds to one element of each row, rows being the last axis."""
    put, made = node.shape(1) or (), node.made
    return (
        qualified_name(node.op) == "ScatterElements"
        and graph.program.vars[node.op.inputs[1]].dtype == "int64"
        and node.text("reduction", "none") == "add"
        and _own_axis(node, 0) == axis == len(made) - 1
        and put == (*made[:-1], 1)
    )


def _own_axis(node: Node, default: int) -> int:
    return node.integer("axis", default) % len(node.made)


def _is_crossed(graph: Graph, chain: Chain) -> bool:
    """Whether an op that makes or reads one of the tensors cannot go along with the product."""
    return any(
        not _makes_so(graph, var, axis) or not all(_reads_so(graph, var, axis, chain.consumer))
        for var, axis in chain.axes.items()
    )


def _frees(graph: Graph, chain: Chain) -> bool:
    """Whether the others who read what the product reads can have it in pieces without it."""
    var, axis = chain.var, chain.axes[chain.var]
    others = (axes_read(graph, at, var) - {axis} for at in staying(graph, chain))
    return all(
        any(_chain(graph, chain.consumer, var, other) for other in sorted(axes))
        for axes in others
    )


def staying(graph: Graph, chain: Chain) -> list[int]:
    """Return who goes on reading what a product reads: all that can take it another way."""
    own = {chain.axes[chain.var]}
    consumers = graph.consumers(chain.var)
    return [
        at
        for at in consumers
        if at != chain.consumer and axes_read(graph, at, chain.var) != own
    ]


def _makes_so(graph: Graph, var: VarId, axis: int) -> bool:
    at = graph.flow.producer[var]
    place = graph.ops[at].outputs.index(var)
    parts = (split.outputs[place] for split in graph.splits(at))
    return any(part is not None and part.axis == axis for part in parts)


def _reads_so(graph: Graph, var: VarId, axis: int, but: int) -> Iterator[bool]:
    """Yield for each consumer of a var, one left out, whether it may take it along an axis."""
    for at in graph.consumers(var):
        if at != but:
            yield axis in axes_read(graph, at, var)


def axes_read(graph: Graph, at: int, var: VarId) -> frozenset[int]:
    """Return the axes along which an op may take a var."""
    return frozenset(
        part.axis
        for split in graph.splits(at)
        for read, part in zip(graph.ops[at].inputs, split.inputs, strict=True)
        if read == var and part is not None
    )
