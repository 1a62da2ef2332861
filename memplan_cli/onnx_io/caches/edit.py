"""New nodes in a graph: fresh names, an order in which each is made before it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.topological import nearest_order
from memplan_cli.onnx_io.load import reads, subgraphs
from memplan_cli.onnx_io.nodes import live_nodes, names_in

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
        self._names = names_in(graph)
        self._read = {name for node in graph.node for name in reads(node)}

    def fresh(self, name: str) -> str:
        """Return a name that nothing has."""
        taken, number = name, 1
        while taken in self._names:
            taken, number = f"{name}_{number}", number + 1
        self._names.add(taken)
        return taken

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
        ordered = _in_order([*nodes, *self.own])
        alive = live_nodes(ordered, {value.name for value in graph.output})
        del graph.node[:]
        graph.node.extend(alive)
        used = {name for node in alive for name in reads(node)}
        used |= {value.name for value in (*graph.input, *graph.output)}
        for at in reversed(range(len(graph.initializer))):
            name = graph.initializer[at].name
            if name in self._read and name not in used:
                del graph.initializer[at]


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


def _in_order(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Return nodes in the order nearest to theirs in which each is made before it is read."""
    producer = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    after: list[set[int]] = [set() for _ in nodes]
    for at, node in enumerate(nodes):
        for name in reads(node):
            if name in producer:
                after[producer[name]].add(at)
    return [nodes[at] for at in nearest_order(after)]
