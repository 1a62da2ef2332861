"""Walks over graphs and the subgraphs in node attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import GraphProto, NodeProto


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and every graph in its nodes' attributes."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            if not node.attribute:
                continue
            for attribute in node.attribute:  # as `subgraphs`, without a generator for each
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the subgraphs of a node, by attribute name."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def defined(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a graph itself defines, one for each definition."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from filter(None, node.output)


def free_names(graph: GraphProto) -> tuple[str, ...]:
    """Return what a graph, or any graph below it, reads from outside, in order, once each.

    The nodes may stand in any order: a name that one of them makes is never free.
    """
    inside = set(defined(graph))
    found = dict.fromkeys(name for node in graph.node for name in reads(node))
    found.update(dict.fromkeys(value.name for value in graph.output))
    return tuple(name for name in found if name and name not in inside)


def captures(node: NodeProto) -> tuple[str, ...]:
    """Return what a node's subgraphs read from outside of them, in order, once each."""
    if not node.attribute:
        return ()
    return tuple(dict.fromkeys(n for _, graph in subgraphs(node) for n in free_names(graph)))


def reads(node: NodeProto) -> tuple[str, ...]:
    """Return a node's inputs, omitted ones as ``""``, then what its subgraphs capture."""
    return (*node.input, *captures(node))
