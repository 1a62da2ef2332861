"""Copies of models whose nodes have numbers as names, to match the events of a profiled run to nodes."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.traversal import block_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

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
    for path, graph in list(block_paths(copied.graph)):
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
