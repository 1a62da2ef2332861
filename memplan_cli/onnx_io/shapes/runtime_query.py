"""Models for a runtime that is to say the shapes that ONNX inference does not know.

Two models: one whose every result is an output without a type, for a session that is only
loaded, and one whose nodes have names of ours, for a profile of a run.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.onnx_io.shapes.given import (
    add_known,
    bind_graph,
    block_paths,
    dims_from_shapes,
    light_copy,
    name_free_dims,
)
from memplan_cli.onnx_io.shapes.given_values import as_constants
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onnx import ModelProto

    from memplan_cli.onnx_io.shapes.bindings import Bindings


@dataclass(frozen=True, slots=True)
class RuntimeQuery:
    """A model for a session that is only loaded, and the symbols its inputs have."""

    data: bytes = field(repr=False)
    symbols: frozenset[str]


def runtime_query(
    model: ModelProto, bindings: Bindings, names: Collection[str]
) -> RuntimeQuery:
    """Return a copy whose outputs are the named values, without a type; weights are inputs."""
    light = light_copy(model)
    name_free_dims(light)
    dims = {**bindings.dims, **dims_from_shapes(light, bindings.shapes)}
    for graph in graphs(light.graph):
        bind_graph(graph, dims)
    add_known(light, bindings, dims)
    as_constants(light, bindings.values)
    wanted = [name for node in light.graph.node for name in node.output if name in names]
    taken = {value.name for value in light.graph.output}
    for name in dict.fromkeys(wanted):
        if name not in taken:
            light.graph.output.add().name = name
    symbols: set[str] = set()
    for value in light.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            symbols |= symbols_of(dim.dim_param or None)
    return RuntimeQuery(light.SerializeToString(), frozenset(symbols))


@dataclass(frozen=True, slots=True)
class Numbered:
    """A copy whose nodes are named by number, and what each reads and writes.

    Values are named ``<block path>/<name>``, by the block of the node.
    """

    data: bytes = field(repr=False)
    reads: Mapping[str, tuple[str, ...]]
    writes: Mapping[str, tuple[str, ...]]


def numbered(model: ModelProto) -> Numbered:
    """Name every node of every block by a number, so that a profile's events say which."""
    copy = deepcopy(model)
    reads: dict[str, tuple[str, ...]] = {}
    writes: dict[str, tuple[str, ...]] = {}
    # Paths come from the old names: all of them are read before one is changed.
    for path, graph in list(block_paths(copy.graph, "")):
        here = f"{path}/" if path else ""
        for node in graph.node:
            node.name = f"node{len(reads)}"
            reads[node.name] = tuple(here + name for name in node.input if name)
            writes[node.name] = tuple(here + name for name in node.output if name)
    return Numbered(copy.SerializeToString(), reads, writes)
