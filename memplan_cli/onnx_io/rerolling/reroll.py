"""A model's repeated steps made Scans, where a session gets smaller by it.

Exporters that trace a program write what it repeats as often as it ran: 512 steps of a recurrent
net are 16,000 nodes, for each of which a session holds some 5 KB. The same nodes run in a Scan,
so results keep their bits. Compilers call this loop rerolling (LLVM's pass of that name does it for
loops that were unrolled in part):

    h1 = f(x1, h0); h2 = f(x2, h1); ...; y = Concat(h1, h2, ...)   ->   y, h = Scan(f)(h0, x)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from memplan_cli.onnx_io.load import graphs
from memplan_cli.onnx_io.nodes import (
    NODE,
    Names,
    drop_unread,
    in_order,
    keep,
    live_nodes,
    names_in,
)
from memplan_cli.onnx_io.rerolling.exports import exports
from memplan_cli.onnx_io.rerolling.graph import UnrolledGraph
from memplan_cli.onnx_io.rerolling.links import linked
from memplan_cli.onnx_io.rerolling.scan import OPSET, Rolled, Writing, rolled
from memplan_cli.onnx_io.rerolling.steps import LEAST, WORTH, chains, grown
from memplan_cli.onnx_io.weights.constants import held_tensor
from memplan_cli.onnx_io.weights.small import standard_opset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onnx import ModelProto, NodeProto, TensorProto

    from memplan_cli.onnx_io.rerolling.exports import Exports
    from memplan_cli.onnx_io.rerolling.graph import ValueType

_LONG = 2_000
"""Nodes of a model that is looked at in any case."""

_TRIES = 30
"""Chains of nodes that are looked at for a loop; those of a GPT-2's training step are 140, and its
layers have weights of their own."""


@dataclass(frozen=True, slots=True)
class Rerolled:
    """A model with loops in place of steps.

    Attributes:
        model: it.
        loops: how many there are.
        types: of the values that are new at its top.
    """

    model: ModelProto
    loops: int
    types: Mapping[str, ValueType]


def may_repeat(model: ModelProto) -> bool:
    """Whether a model may have steps that repeat: they read a matrix often, or it is long."""
    graph = model.graph
    if len(graph.node) < WORTH:
        return False
    held = ((node.output[0], held_tensor(node)) for node in graph.node)
    tensors = chain(((tensor.name, tensor) for tensor in graph.initializer), held)
    weights = {name for name, tensor in tensors if tensor is not None and len(tensor.dims) > 1}
    readers = Counter(
        (node.op_type, name) for node in graph.node for name in node.input if name in weights
    )
    return len(graph.node) >= _LONG or max(readers.values(), default=0) >= LEAST


def reroll(
    model: ModelProto, types: Mapping[str, Any], dims: Mapping[str, int]
) -> Rerolled | None:
    """Return a model with its repeated steps as Scans; None where nothing is won.

    Args:
        model: is not changed; its nodes stand in an order in which they can run.
        types: dtype and dims of its values, as far as a runtime knows them.
        dims: numbers of symbolic dims.
    """
    opset = standard_opset(model)
    if len(model.graph.node) < WORTH or opset < OPSET:
        return None
    writing = Writing(Names(names_in(model.graph)).fresh, opset)
    known, copied, loops = dict(types), list[str](), 0
    new = _with_nodes(model, model.graph.node, ())
    while (
        found := _rolled_once(UnrolledGraph.of(new, known, dims), new, writing)
    ) is not None:
        new, loop = found
        known |= loop.types
        copied += loop.copied
        loops += 1
    view = UnrolledGraph.of(new, known, dims)
    more = sum(view.bytes_of(name) or 0 for name in copied if name in view.makers)
    if not loops or NODE * (_count(model) - _count(new)) <= more:
        return None
    added = {name: view.types[name] for name in view.makers if name not in types}
    return Rerolled(new, loops, added)


def _rolled_once(
    graph: UnrolledGraph, model: ModelProto, writing: Writing
) -> tuple[ModelProto, Rolled] | None:
    """Return a model with one more loop, and that; None where there is none to be had."""
    for nodes, depths in islice(chains(graph), _TRIES):
        found = linked(graph, grown(graph, nodes, depths))
        kept = exports(graph, found) if found is not None else None
        if kept is None:
            continue
        loop = rolled(graph, kept, writing)
        if kept.linked.steps.saves - len(loop.nodes) < WORTH:
            continue
        order = in_order(list(_replaced(graph, kept, loop)))
        if order is not None:
            return _with_nodes(model, order, loop.constants), loop
    return None


def _replaced(graph: UnrolledGraph, found: Exports, loop: Rolled) -> Iterator[NodeProto]:
    """Yield a graph's nodes with a loop where the first of its steps was."""
    inside = found.linked.steps.places()
    first = min(inside)
    for number, node in enumerate(graph.nodes):
        if number == first:
            yield from loop.nodes
        if number not in inside:
            new = loop.replaced.get(number, node)
            if new is not None:
                yield new


def _with_nodes(
    model: ModelProto, nodes: Iterable[NodeProto], constants: Iterable[TensorProto]
) -> ModelProto:
    """Return a model with other nodes, of them those that its results need, and more constants."""
    new = type(model)()
    new.CopyFrom(model)
    graph = new.graph
    kept = live_nodes(nodes, [value.name for value in graph.output])
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    graph.initializer.extend(constants)
    drop_unread(graph, {tensor.name for tensor in graph.initializer})
    made = {name for node in graph.node for name in node.output}
    keep(graph.value_info, lambda value: value.name in made)
    return new


def _count(model: ModelProto) -> int:
    return sum(len(graph.node) for graph in graphs(model.graph))
