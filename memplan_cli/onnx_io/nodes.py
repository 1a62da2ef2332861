"""A graph's names, and which of its nodes a result needs: what whoever adds nodes asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import graphs, reads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import GraphProto, NodeProto

NODE = 5_000
"""Bytes that a session holds for a node, about (18,000 nodes of an unrolled LSTM: 91 MB)."""


def names_in(graph: GraphProto) -> set[str]:
    """Return every name a graph or its subgraphs use, so that new ones can differ."""
    found: set[str] = set()
    for inner in graphs(graph):
        found.update(value.name for value in (*inner.input, *inner.output))
        found.update(tensor.name for tensor in inner.initializer)
        for node in inner.node:
            found.update((*node.input, *node.output, node.name))
    return found


def live_nodes(nodes: Iterable[NodeProto], results: Iterable[str]) -> list[NodeProto]:
    """Return the nodes that the results need, in order."""
    needed = set(results)
    kept: list[NodeProto] = []
    for node in reversed(list(nodes)):
        if needed.intersection(filter(None, node.output)):
            kept.append(node)
            needed.update(reads(node))
    return kept[::-1]
