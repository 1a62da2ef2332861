"""New nodes in a graph: fresh names, an order in which each is made before it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import reads, subgraphs
from memplan_cli.onnx_io.nodes import Names, drop_unread, in_order, live_nodes, names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import GraphProto, NodeProto

INT64 = 7
"""ONNX's number of the type."""


class Editor:
    """A graph that gets nodes one by one; all of them are put in order at the end."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self.own: list[NodeProto] = []
        self.fresh = Names(names_in(graph)).fresh
        self._read = {name for node in graph.node for name in reads(node)}

    def constant(self, name: str, values: Sequence[int]) -> str:
        """Add an initializer of whole numbers."""
        from onnx import helper

        name = self.fresh(name)
        tensor = helper.make_tensor(name, INT64, [len(values)], values)
        self.graph.initializer.append(tensor)
        self._read.add(name)
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        """Add a node with one result; return its name."""
        from onnx import helper

        name = self.fresh(f"{output}/{kind}")
        self.own.append(helper.make_node(kind, inputs, [output], name, **attributes))
        return output

    def made(self, kind: str, inputs: Sequence[str], like: str, **attributes: object) -> str:
        """Add a node whose result has a new name."""
        return self.node(kind, inputs, self.fresh(like), **attributes)

    def put_in(self, nodes: Iterable[NodeProto]) -> None:
        """Make nodes and the new ones those of the graph, but for what nobody needs.

        Its inputs and outputs are final. Initializers that no node reads any more go.
        """
        graph = self.graph
        ordered = in_order([*nodes, *self.own])
        assert ordered is not None  # noqa: S101 - what is added reads nothing that is made of it
        alive = live_nodes(ordered, {value.name for value in graph.output})
        del graph.node[:]
        graph.node.extend(alive)
        drop_unread(graph, self._read)


def rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Let a node, and its subgraphs, read other values."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for _, graph in subgraphs(node):
        for inner in graph.node:
            rename(inner, names)
        for value in graph.output:
            value.name = names.get(value.name, value.name)


def copied(node: NodeProto, inputs: Sequence[str], output: str) -> NodeProto:
    """Return a node with other inputs and one output."""
    copy = type(node)()
    copy.CopyFrom(node)
    copy.input[:], copy.output[:] = inputs, [output]
    return copy
