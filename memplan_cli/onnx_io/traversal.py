"""Walks over graphs and the subgraphs in node attributes, and the names that graphs define and read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from memplan_cli.core.program import label, var_id

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


def block_paths(main: GraphProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield each graph of a model with the path of its block in the program, outer graphs first.

    The path of the main graph is empty.
    """
    return _with_inner_graphs("", main, BlockPaths(main))


def _with_inner_graphs(
    path: str, graph: GraphProto, paths: BlockPaths
) -> Iterator[tuple[str, GraphProto]]:
    yield path, graph
    for index, node in enumerate(graph.node):
        for attribute, body in subgraphs(node):
            yield from _with_inner_graphs(paths.new(path, index, node, attribute), body, paths)


class BlockPaths:
    """Makes unique paths for the subgraphs of a model, as long as it is asked for them in file order."""

    def __init__(self, main: GraphProto) -> None:
        self._main = main
        self._taken: set[str] = set()

    def new(self, outer: str, index: int, node: NodeProto, attribute: str) -> str:
        """Return the path of a node's subgraph, such as ``outer/If_3.then_branch``; ``outer`` is the node's block.

        If another subgraph has this path, a ``'`` is appended. The same is done if some value has a name like
        ``If_3.then_branch/x``: in the main graph it would have the id of the value ``x`` of this subgraph.
        """
        step = f"{label(node.name, node.op_type, index)}.{attribute}"
        while var_id(outer, step) in self._taken or step in self._name_prefixes:
            step += "'"
        path = var_id(outer, step)
        self._taken.add(path)
        return path

    @cached_property
    def _name_prefixes(self) -> set[str]:
        """The parts of all values' names before a slash: ``a/b`` and ``a`` of ``a/b/c``."""
        prefixes: set[str] = set()
        for graph in graphs(self._main):
            for name in defined(graph):
                prefix, slash, _ = name.rpartition("/")
                # The prefixes of a known prefix are known too.
                while slash and prefix not in prefixes:
                    prefixes.add(prefix)
                    prefix, slash, _ = prefix.rpartition("/")
        return prefixes


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
