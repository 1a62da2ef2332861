"""Forward models in the form that gradient rules expect: recent opset, no functions, no Constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import ModelProto, TensorProto, helper, numpy_helper, version_converter

from memplan_cli.core.operators import canonical_domain
from memplan_cli.errors import ModelError
from memplan_cli.features.training.tensors import FLOATS, UNKNOWN, infer_tensors
from memplan_cli.onnx_io.constants import constant_tensors, named_constant
from memplan_cli.onnx_io.functions import inlined
from memplan_cli.onnx_io.graph_editor import keep, replace_nodes
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import GraphProto

OLDEST_OPSET = 18
"""From this opset reductions take their axes as an input, and ScatterElements can add."""

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
    """Return a model of opset 18 or later: the model itself, or a converted copy."""
    opset = standard_opset(model)
    if opset >= OLDEST_OPSET:
        return model
    _reject_old_resizes(model)
    try:
        converted = version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise ModelError(
            f"the model has opset {opset}, a training step needs {OLDEST_OPSET} or"
            f" later, and it cannot be converted: {reason}",
            hint="export the model again with a later opset",
        ) from error
    _retype_former_attributes(converted)
    return converted


_COORDINATE_MODE_OPSET = 11
"""The opset from which Resize has a coordinate mode; onnx's converter sets it wrongly for older ones."""


def _reject_old_resizes(model: ModelProto) -> None:
    """Raise ModelError if a model before opset 11 has an Upsample or Resize."""
    if standard_opset(model) >= _COORDINATE_MODE_OPSET:
        return
    for node in (node for graph in graphs(model.graph) for node in graph.node):
        if node.op_type in ("Resize", "Upsample") and not node.domain:
            raise ModelError(
                f"{node.op_type} {node.name or node.output[0]!r} is older than opset"
                f" {_COORDINATE_MODE_OPSET}: it cannot be converted",
                hint=f"export the model again with opset {_COORDINATE_MODE_OPSET} or later",
            )


_FORMER_ATTRIBUTES: Mapping[str, tuple[int, ...]] = {"Clip": (1, 2), "Pad": (2,)}
"""Inputs that were attributes in old opsets. onnx's converter adds a float32 Constant for each of them,
whatever the element type of X is."""


def _retype_former_attributes(model: ModelProto) -> None:
    """Give constants that were attributes the element type of their node's first input, in place.

    No other node reads such a constant: the converter has added one for each input.
    """
    tensors = infer_tensors(model)
    for graph in graphs(model.graph):
        weights = dict(constant_tensors(graph))
        for node in graph.node:
            dtype = tensors.get(node.input[0], UNKNOWN).dtype if node.input else 0
            if dtype not in FLOATS or dtype == TensorProto.FLOAT:  # float32 is right already
                continue
            for index in _FORMER_ATTRIBUTES.get(node.op_type, ()):
                weight = weights.get(node.input[index]) if index < len(node.input) else None
                if weight is not None and weight.data_type == TensorProto.FLOAT:
                    values = numpy_helper.to_array(weight)
                    weight.CopyFrom(
                        helper.make_tensor(weight.name, dtype, values.shape, values.ravel())
                    )
