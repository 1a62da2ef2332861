"""Models from which ONNX Runtime finds the shapes that ONNX's inference does not know.

One has every wanted value as an output without a type: a session that is only loaded infers them. In
the other, nodes have numbers as names, so that the events of a profiled run can be matched to nodes.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.onnx_io.shapes.light_model import (
    add_known,
    as_constants,
    bind_graph,
    block_paths,
    dims_from_shapes,
    light_copy,
    name_free_dims,
)
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onnx import ModelProto

    from memplan_cli.onnx_io.shapes.bindings import Bindings


@dataclass(frozen=True, slots=True)
class RuntimeQuery:
    """A model for a session that is only loaded.

    Attributes:
        data: the serialized model.
        symbols: the names in the dims of its inputs that are not bound.
    """

    data: bytes = field(repr=False)
    symbols: frozenset[str]


def runtime_query(
    model: ModelProto, bindings: Bindings, names: Collection[str]
) -> RuntimeQuery:
    """Return a light copy of a model whose further outputs are the named values of the main graph.

    These outputs have no type: a session infers it when it loads the model.

    Raises:
        SettingsError: a given shape contradicts the model, or names no value of it.
    """
    light = light_copy(model)
    name_free_dims(light)
    dims = {**bindings.dims, **dims_from_shapes(light, bindings.shapes)}
    for graph in graphs(light.graph):
        bind_graph(graph, dims)
    add_known(light, bindings, dims)
    as_constants(light, bindings.values)
    wanted = [name for node in light.graph.node for name in node.output if name in names]
    declared_outputs = {value.name for value in light.graph.output}
    for name in dict.fromkeys(wanted):
        if name not in declared_outputs:
            light.graph.output.add().name = name
    symbols: set[str] = set()
    for value in light.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            symbols |= symbols_of(dim.dim_param or None)
    return RuntimeQuery(light.SerializeToString(), frozenset(symbols))


@dataclass(frozen=True, slots=True)
class NumberedModel:
    """A copy of a model whose nodes are named by number.

    Attributes:
        data: the serialized model.
        reads: by node name, the values that the node reads, as ``<block path>/<name>``.
        writes: by node name, the values that the node writes.
    """

    data: bytes = field(repr=False)
    reads: Mapping[str, tuple[str, ...]]
    writes: Mapping[str, tuple[str, ...]]


def number_nodes(model: ModelProto) -> NumberedModel:
    """Return a copy of a model in which every node of every block has a unique number as its name.

    A value that a subgraph captures is listed with the path of the block that reads it.
    """
    copied = deepcopy(model)
    reads: dict[str, tuple[str, ...]] = {}
    writes: dict[str, tuple[str, ...]] = {}
    # Block paths contain node names: read them all before changing one.
    for path, graph in list(block_paths(copied.graph, "")):
        prefix = f"{path}/" if path else ""
        for node in graph.node:
            node.name = f"node{len(reads)}"
            reads[node.name] = tuple(prefix + name for name in node.input if name)
            writes[node.name] = tuple(prefix + name for name in node.output if name)
    return NumberedModel(copied.SerializeToString(), reads, writes)
