"""Walks over graphs and the subgraphs in node attributes, and the names that graphs define and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import GraphProto, NodeProto


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all graphs nested in the attributes of its nodes, outer graphs first."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            if not node.attribute:
                continue
            for attribute in node.attribute:  # like `subgraphs`, but faster for many nodes
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the subgraphs of a node with the name of their attribute, ``name[i]`` in a list."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def defined(graph: GraphProto) -> Iterator[str]:
    """Yield the names of inputs, weights and results of a graph, once for each definition."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from filter(None, node.output)


def free_names(graph: GraphProto) -> tuple[str, ...]:
    """Return the names that a graph and its subgraphs read from outer graphs, each once.

    Nodes may be in any order: a name that one of them produces is never free.
    """
    own = set(defined(graph))
    names = dict.fromkeys(name for node in graph.node for name in reads(node))
    names.update(dict.fromkeys(value.name for value in graph.output))
    return tuple(name for name in names if name and name not in own)


def captures(node: NodeProto) -> tuple[str, ...]:
    """Return the names that the subgraphs of a node read from outer graphs, each once."""
    if not node.attribute:
        return ()
    return tuple(
        dict.fromkeys(name for _, graph in subgraphs(node) for name in free_names(graph))
    )


def reads(node: NodeProto) -> tuple[str, ...]:
    """Return the inputs of a node (``""`` for omitted ones), then the captures of its subgraphs."""
    return (*node.input, *captures(node))
