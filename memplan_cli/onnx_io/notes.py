"""What does a model file say about itself in memplan's own metadata?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

PREFIX = "pkg.memplan."
"""Every key that memplan writes begins so."""


def read_notes(model: ModelProto) -> dict[str, str]:
    """Return what ``pkg.memplan.plan`` says: digest, level, totals; empty if it is absent."""
    for entry in model.metadata_props:
        if entry.key == f"{PREFIX}plan":
            pairs = (item.partition("=") for item in entry.value.split(","))
            return {key: value for key, _, value in pairs}
    return {}


def recorded_phases(model: ModelProto) -> dict[str, str]:
    """Return the phase that the maker of a training step wrote on its nodes, by label."""
    found: dict[str, str] = {}
    for index, node in enumerate(model.graph.node):
        for entry in node.metadata_props:
            if entry.key == f"{PREFIX}phase":
                found[node.name or f"{node.op_type}#{index}"] = entry.value
    return found
