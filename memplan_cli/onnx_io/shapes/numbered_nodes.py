"""Models from which ONNX Runtime finds the shapes that ONNX's inference does not know.

One has every wanted value as an output without a type: a session that is only loaded infers them. In
the other, nodes have numbers as names, so that the events of a profiled run can be matched to nodes.
"""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.interface import names_taken
from memplan_cli.onnx_io.shapes.annotations import names_of_inputs
from memplan_cli.onnx_io.shapes.light_model import (
    bind_model,
    block_paths,
    dims_from_shapes,
    light_copy,
    name_free_dims,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onnx import ModelProto

    from memplan_cli.onnx_io.shapes.bindings import Bindings


@dataclass(frozen=True, slots=True)
class RuntimeQuery:
    """A model for a session that infers types when it is loaded, and does not run.

    Attributes:
        data: the serialized model.
        symbols: the names in the dims of its inputs that are not bound.
    """

    data: bytes = field(repr=False)
    symbols: frozenset[str]


def runtime_query(
    model: ModelProto, bindings: Bindings, names: Collection[str]
) -> RuntimeQuery:
    """Return the query for the types of some node outputs of the main graph.

    Its model is a copy without large weights (`light_copy`), in which dims, shapes and small input values are
    bound. ``names`` are further outputs of it, without a type: the session infers it.

    Raises:
        SettingsError: a given shape contradicts the model, or names no value of it.
    """
    light = light_copy(model)
    name_free_dims(light, names_taken(model))
    dims = {**bindings.dims, **dims_from_shapes(light, bindings.shapes)}
    bind_model(light, bindings, dims)
    wanted = [name for node in light.graph.node for name in node.output if name in names]
    declared_outputs = {value.name for value in light.graph.output}
    for name in dict.fromkeys(wanted):
        if name not in declared_outputs:
            light.graph.output.add().name = name
    return RuntimeQuery(light.SerializeToString(), names_of_inputs(light))


_NUMBERED_NODE = re.compile(r"(?<=['(])node\d+(?=[')])")
"""A node of a numbered model in ONNX Runtime's messages: ``Name:'node7'``, ``Node (node7)``."""


@dataclass(frozen=True, slots=True)
class NumberedModel:
    """A copy of a model whose nodes are named by number.

    Attributes:
        data: the serialized model.
        reads: by node name, the values that the node reads, as ``<block path>/<name>``.
        writes: by node name, the values that the node writes.
        original_names: by node name, the name in the model; of a node without one, its first output.
    """

    data: bytes = field(repr=False)
    reads: Mapping[str, tuple[str, ...]]
    writes: Mapping[str, tuple[str, ...]]
    original_names: Mapping[str, str]

    def with_original_names(self, message: str) -> str:
        """Return a message of ONNX Runtime on this copy with the names of the model's own nodes."""
        # A value of the model may have such a name too.
        return _NUMBERED_NODE.sub(
            lambda match: self.original_names.get(match[0], match[0]), message
        )


def number_nodes(model: ModelProto) -> NumberedModel:
    """Return a copy of a model in which every node of every block has a unique number as its name.

    A value that a subgraph captures is listed with the path of the block that reads it.
    """
    copied = deepcopy(model)
    reads: dict[str, tuple[str, ...]] = {}
    writes: dict[str, tuple[str, ...]] = {}
    original_names: dict[str, str] = {}
    # Block paths contain node names: read them all before changing one.
    for path, graph in list(block_paths(copied.graph, "")):
        prefix = f"{path}/" if path else ""
        for node in graph.node:
            original_name = (
                node.name or f"computes {next(filter(None, node.output), 'nothing')}"
            )
            node.name = f"node{len(reads)}"
            original_names[node.name] = original_name
            reads[node.name] = tuple(prefix + name for name in node.input if name)
            writes[node.name] = tuple(prefix + name for name in node.output if name)
    return NumberedModel(copied.SerializeToString(), reads, writes, original_names)
