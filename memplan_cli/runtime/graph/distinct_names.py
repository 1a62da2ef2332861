"""Graphs that the runtime wrote, whose inner graphs have names of their own."""

from __future__ import annotations

from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.graph_editor import FreshNames
from memplan_cli.onnx_io.traversal import defined, graphs, subgraphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import GraphProto, ModelProto, NodeProto


def with_distinct_names(model: ModelProto) -> ModelProto | None:
    """Return a copy in which inner graphs have names of their own; None if all have them.

    ONNX Runtime gives the values of an inlined function names that are new in their
    own graph only: called outside an If and inside, one function defines the same names in
    both. The file that the runtime then writes is no valid model, and it refuses to load it.
    """
    if len(list(islice(graphs(model.graph), 2))) == 1:
        return None
    twin = deepcopy(model)
    taken = FreshNames(name for graph in graphs(model.graph) for name in defined(graph))
    outside = frozenset(defined(model.graph))
    return twin if _rename_below(twin.graph, taken, outside, {}) else None


def _rename_below(
    graph: GraphProto, taken: FreshNames, outside: frozenset[str], names: Mapping[str, str]
) -> bool:
    """Rename what graphs below define again; say whether anything was.

    Args:
        graph: changed in place.
        taken: every name of any graph.
        outside: names that are seen in the graphs below.
        names: what names of the graphs above are called now.
    """
    changed = False
    for node in graph.node:
        for _, inner in subgraphs(node):
            own = dict.fromkeys(defined(inner))
            new = {name: taken.fresh(name) for name in own if name in outside}
            seen = {name: now for name, now in names.items() if name not in own} | new
            if seen:
                _rename(inner, seen)
            below = _rename_below(inner, taken, outside | own.keys() | set(new.values()), seen)
            changed = changed or bool(new) or below
    return changed


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Replace names in one graph, in place."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for tensor in graph.sparse_initializer:
        tensor.values.name = names.get(tensor.values.name, tensor.values.name)
    for node in graph.node:
        _rename_node(node, names)


def _rename_node(node: NodeProto, names: Mapping[str, str]) -> None:
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
