"""A graph's names and nodes: what whoever adds nodes, or takes some away, asks."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from memplan_cli.analysis.precedence import successors
from memplan_cli.analysis.topological import nearest_order
from memplan_cli.onnx_io.load import graphs, reads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, MutableSequence, Sequence

    from onnx import GraphProto, NodeProto

NODE = 5_000
"""Bytes that a session holds for a node, about (18,000 nodes of an unrolled LSTM: 91 MB)."""


class Names:
    """Names in use, and new ones that differ from all of them."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def fresh(self, wish: str) -> str:
        """Return a name that nothing has yet, the wish itself if possible."""
        name = wish
        while name in self._taken:
            self._counts[wish] = self._counts.get(wish, 0) + 1
            name = f"{wish}_{self._counts[wish]}"
        self._taken.add(name)
        return name


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


def in_order(nodes: Sequence[NodeProto]) -> list[NodeProto] | None:
    """Return nodes so that each is made before it is read, as near as can be to how they stand.

    None where they need each other.
    """
    makers = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    order = nearest_order(successors(needs))
    return [nodes[at] for at in order] if len(order) == len(nodes) else None


def keep(items: MutableSequence[Any], is_kept: Callable[[Any], bool]) -> None:
    """Take the other messages of a repeated field away, neighbours at once."""
    runs = [
        (kept, list(run))
        for kept, run in groupby(range(len(items)), lambda at: is_kept(items[at]))
    ]
    for kept, run in reversed(runs):
        if not kept:
            del items[run[0] : run[-1] + 1]


def drop_unread(graph: GraphProto, names: Collection[str]) -> None:
    """Take weights of these names away that nothing reads any more and no result is."""
    read = {name for node in graph.node for name in reads(node)}
    read.update(value.name for value in (*graph.input, *graph.output))
    keep(graph.initializer, lambda tensor: tensor.name not in names or tensor.name in read)
