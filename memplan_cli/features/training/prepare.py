"""Forward models in the form that gradient rules expect: recent opset, no functions, no Constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import ModelProto, version_converter

from memplan_cli.core.operators import canonical_domain
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.constants import named_constant
from memplan_cli.onnx_io.functions import inlined
from memplan_cli.onnx_io.graph_editor import keep, replace_nodes
from memplan_cli.onnx_io.load import first_line, standard_opset
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from onnx import GraphProto

OLDEST_OPSET = 18
"""From this opset reductions take their axes as an input, and ScatterElements can add."""

_OLDEST_CONVERTED_OPSET = 11
"""Models of older opsets are not converted: onnx's converter gets Resize wrong, and Clip and Pad in float16."""

_IR_WITH_METADATA = 10
"""The first ONNX IR version whose nodes have metadata."""


def prepare(model: ModelProto) -> ModelProto:
    """Return a copy of a model that is ready for the gradient rules.

    Raises:
        ModelError: its opset is too old and it cannot be converted.
    """
    ready = ModelProto()
    ready.CopyFrom(inlined(model) if model.functions else model)
    ready = _with_recent_opset(ready)
    # After the conversion: models of old IR versions must list their weights as inputs.
    _drop_weights_from_inputs(ready.graph)
    ready.ir_version = max(ready.ir_version, _IR_WITH_METADATA)
    for graph in graphs(ready.graph):
        for node in graph.node:
            node.domain = canonical_domain(node.domain)
        _lift_constants(graph)
    return ready


def _drop_weights_from_inputs(graph: GraphProto) -> None:
    """Remove the graph inputs that have an initializer, in place."""
    weights = {tensor.name for tensor in graph.initializer}
    keep(graph.input, lambda value: value.name not in weights)


def _lift_constants(graph: GraphProto) -> None:
    """Replace each Constant node of a graph by an initializer of the same name, in place."""
    nodes = []
    for node in graph.node:
        tensor = named_constant(node)
        if tensor is None:
            nodes.append(node)
        else:
            graph.initializer.append(tensor)
    if len(nodes) < len(graph.node):
        replace_nodes(graph, nodes)


def _with_recent_opset(model: ModelProto) -> ModelProto:
    """Return a model of `OLDEST_OPSET` or later: the model itself, or a converted copy.

    Raises:
        ModelError: the opset is below `_OLDEST_CONVERTED_OPSET`, or onnx cannot convert the model.
    """
    opset, hint = standard_opset(model), "export the model again with a later opset"
    if opset >= OLDEST_OPSET:
        return model
    if opset < _OLDEST_CONVERTED_OPSET:
        raise ModelError(
            f"the model has opset {opset}, a training step needs {_OLDEST_CONVERTED_OPSET} or later",
            hint=hint,
        )
    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:
        raise ModelError(
            f"the model has opset {opset}, a training step needs {OLDEST_OPSET} or"
            f" later, and it cannot be converted: {first_line(error)}",
            hint=hint,
        ) from error
