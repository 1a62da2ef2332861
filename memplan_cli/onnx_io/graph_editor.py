"""Editing of a model's graphs: names in use, producers and consumers, replacement of nodes.

All code that adds, replaces, renames or removes nodes of a `ModelProto` uses these functions.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from memplan_cli.analysis.precedence import nearest_order, successors
from memplan_cli.core.names import FreshNames
from memplan_cli.onnx_io.traversal import defined, reads, subgraphs

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Mapping,
        MutableSequence,
        Sequence,
    )

    from onnx import GraphProto, ModelProto, NodeProto

NODE = 5_000
"""Approximate bytes that an ONNX Runtime session holds for a node (an unrolled LSTM: 91 MB for 18,000)."""

INT64 = 7
"""TensorProto.INT64."""


def fresh_names(model: ModelProto) -> FreshNames:
    """Return a maker of names that are unused in the graph, its subgraphs and the model's functions."""
    taken = names_in(model.graph)
    for function in model.functions:
        taken.update((*function.input, *function.output))
        taken.update(_names_of_nodes(function.node))
    return FreshNames(taken)


def names_in(graph: GraphProto) -> set[str]:
    """Return the names of all values and nodes of a graph and its subgraphs."""
    names = {value.name for value in (*graph.input, *graph.output)}
    names.update(tensor.name for tensor in graph.initializer)
    return names | _names_of_nodes(graph.node)


def _names_of_nodes(nodes: Iterable[NodeProto]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        names.update((*node.input, *node.output, node.name))
        for _, body in subgraphs(node):
            names |= names_in(body)
    return names


def producers(nodes: Iterable[NodeProto]) -> dict[str, int]:
    """Return the index of the node that produces each value."""
    return {name: index for index, node in enumerate(nodes) for name in node.output if name}


def producer_nodes(nodes: Iterable[NodeProto]) -> dict[str, NodeProto]:
    """Return the node that produces each value."""
    return {name: node for node in nodes for name in node.output if name}


def consumers(nodes: Iterable[NodeProto]) -> dict[str, list[NodeProto]]:
    """Return the nodes that read each value, in order; captures of a subgraph count as reads."""
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in dict.fromkeys(filter(None, reads(node))):
            readers.setdefault(name, []).append(node)
    return readers


def live_nodes(nodes: Iterable[NodeProto], results: Iterable[str]) -> list[NodeProto]:
    """Return the nodes that the named results depend on, in their present order.

    Each producer must come before its consumers.
    """
    needed = set(results)
    kept: list[NodeProto] = []
    for node in reversed(list(nodes)):
        if needed.intersection(filter(None, node.output)):
            kept.append(node)
            needed.update(reads(node))
    return kept[::-1]


def in_order(nodes: Sequence[NodeProto]) -> list[NodeProto] | None:
    """Return nodes with each producer before its consumers, as near to their order as possible.

    Returns None if the nodes form a cycle.
    """
    producer = producers(nodes)
    needs = [{producer[name] for name in reads(node) if name in producer} for node in nodes]
    order = nearest_order(successors(needs))
    return [nodes[index] for index in order] if len(order) == len(nodes) else None


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Set the nodes of a graph, in place; they may be nodes of the graph itself."""
    nodes = list(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def keep(items: MutableSequence[Any], is_kept: Callable[[Any], bool]) -> None:
    """Remove the messages of a repeated field that ``is_kept`` rejects, in place.

    Adjacent messages are removed in one step, and from the end, so that the other indices stay valid.
    """
    runs = [
        (kept, list(run))
        for kept, run in groupby(range(len(items)), lambda index: is_kept(items[index]))
    ]
    for kept, run in reversed(runs):
        if not kept:
            del items[run[0] : run[-1] + 1]


def drop_unread(graph: GraphProto, names: Collection[str]) -> None:
    """Remove the named initializers that no node reads, in place; graph inputs and outputs are kept."""
    read = {name for node in graph.node for name in reads(node)}
    read.update(value.name for value in (*graph.input, *graph.output))
    keep(graph.initializer, lambda tensor: tensor.name not in names or tensor.name in read)


def rename_reads(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    """Rename what nodes and their subgraphs read, in place; results keep their names.

    A subgraph that defines one of these names itself keeps reading its own value.
    """
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        for _, body in subgraphs(node):
            own = set(defined(body))
            outer = {name: new for name, new in names.items() if name not in own}
            rename_reads(body.node, outer)
            _rename_outputs(body, outer)


def rename_values(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    """Rename the results of nodes and what the nodes and their subgraphs read, in place.

    A value that a subgraph defines itself is another one, even if it has one of these names: it keeps its name.
    """
    for node in nodes:
        rename_reads([node], names)
        node.output[:] = [names.get(name, name) for name in node.output]


def _rename_outputs(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename the outputs of a subgraph, in place: they refer to values, as inputs of nodes do."""
    for value in graph.output:
        value.name = names.get(value.name, value.name)


def with_values(
    node: NodeProto, name: str, inputs: Sequence[str], outputs: Sequence[str]
) -> NodeProto:
    """Return a node with this name, inputs and outputs: the node itself if it has them already."""
    if (name, list(inputs), list(outputs)) == (node.name, node.input[:], node.output[:]):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = name
    copy.input[:], copy.output[:] = inputs, outputs
    return copy


class GraphEditor:
    """Adds nodes to the main graph of a model, in place.

    Added nodes are collected in ``new_nodes``; `set_nodes` puts all nodes in order at the end.
    """

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.new_nodes: list[NodeProto] = []
        self.fresh = fresh_names(model).fresh
        self._removable = {name for node in self.graph.node for name in reads(node)}
        """Names that had a consumer or were added: `set_nodes` removes only these initializers."""

    def add_constant(self, name: str, values: Sequence[int]) -> str:
        """Add a one-dimensional int64 initializer; return its name, a fresh one like ``name``.

        `set_nodes` removes the initializer if no node reads it.
        """
        from onnx import helper

        name = self.fresh(name)
        tensor = helper.make_tensor(name, INT64, [len(values)], values)
        self.graph.initializer.append(tensor)
        self._removable.add(name)
        return name

    def add_named_node(
        self, op_type: str, inputs: Sequence[str], output: str, **attributes: object
    ) -> str:
        """Add a node of operator ``op_type`` whose one result is called ``output``; return that name."""
        from onnx import helper

        name = self.fresh(f"{output}/{op_type}")
        self.new_nodes.append(helper.make_node(op_type, inputs, [output], name, **attributes))
        return output

    def add_node(
        self, op_type: str, inputs: Sequence[str], like: str, **attributes: object
    ) -> str:
        """Add a node whose result gets a fresh name, like ``like``; return the name."""
        return self.add_named_node(op_type, inputs, self.fresh(like), **attributes)

    def set_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Set the graph's nodes to these and the added ones, in order, without unused ones.

        Initializers that lost their last consumer are removed. Graph inputs and outputs must be
        final before this call.
        """
        ordered = in_order([*nodes, *self.new_nodes])
        assert ordered is not None  # noqa: S101 - added nodes form no cycle
        replace_nodes(
            self.graph, live_nodes(ordered, {value.name for value in self.graph.output})
        )
        drop_unread(self.graph, self._removable)
