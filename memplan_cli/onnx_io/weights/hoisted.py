"""Packed weights of subgraphs made weights of the main graph.

ONNX Runtime gives back what kernels have packed where the main graph has it, also if
a kernel in a subgraph has. What a subgraph has itself stays in memory, read and mapped, beside
the packed form. A kernel in a subgraph of a subgraph packs nothing that the main graph has.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import captures, defined, graphs, subgraphs
from memplan_cli.onnx_io.weights.on_pages import packed_blobs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto


def hoist_packed(model: ModelProto) -> tuple[str, ...]:
    """Move packed weights from subgraphs of the main graph into it, in place, and name them.

    One stays where it is if its name is another value's too, if it is the subgraph's input or
    output, and if a subgraph within reads it: there it would not be packed.
    """
    found = [
        (inner, tensor)
        for node in model.graph.node
        for _, inner in subgraphs(node)
        for tensor in _packed(inner)
    ]
    if not found:
        return ()
    values = Counter(name for graph in graphs(model.graph) for name in defined(graph))
    moved = [(graph, tensor) for graph, tensor in found if values[tensor.name] == 1]
    for graph, tensor in moved:
        model.graph.initializer.append(tensor)
        graph.initializer.remove(tensor)
    return tuple(tensor.name for _, tensor in moved)


def _packed(graph: GraphProto) -> list[TensorProto]:
    """Return the weights of a subgraph that are packed, and are read by its own nodes alone."""
    packed = [tensor for tensor in graph.initializer if any(packed_blobs(tensor))]
    if not packed:
        return []
    others = {value.name for value in graph.output}
    others.update(name for node in graph.node for name in captures(node))
    return [tensor for tensor in packed if tensor.name not in others]
