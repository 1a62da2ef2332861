"""A model as the gradient rules want it: recent opset, no functions, constants as initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    inliner,
    numpy_helper,
    version_converter,
)

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import graphs

if TYPE_CHECKING:
    from onnx import GraphProto

OLDEST_OPSET = 18
"""Reductions take their axes as an input, ScatterElements adds: the forms the rules write."""

_IR_WITH_METADATA = 10
"""The first ONNX IR version whose nodes have metadata."""


def prepare(model: ModelProto) -> ModelProto:
    """Return a copy ready for the gradient rules; the model itself is not changed.

    Raises:
        ModelError: its opset is too old and it cannot be converted.
    """
    ready = ModelProto()
    ready.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    ready = _converted(ready)
    _drop_weights_from_inputs(ready.graph)  # after: old files need them there to be converted
    ready.ir_version = max(ready.ir_version, _IR_WITH_METADATA)
    for graph in graphs(ready.graph):
        _lift_constants(graph)
    return ready


def opset_of(model: ModelProto) -> int:
    """Return the version of the standard operators that a model uses."""
    return max(
        (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0
    )


def _drop_weights_from_inputs(graph: GraphProto) -> None:
    weights = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(kept)


def _converted(model: ModelProto) -> ModelProto:
    if opset_of(model) >= OLDEST_OPSET:
        return model
    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelError(
            f"the model has opset {opset_of(model)}, a training step needs {OLDEST_OPSET} or"
            f" later, and it cannot be converted: {reason}",
            hint="export the model again with a later opset",
        ) from error


def _lift_constants(graph: GraphProto) -> None:
    """Make each Constant node an initializer of the same name."""
    kept = []
    for node in graph.node:
        tensor = constant_of(node)
        if tensor is None:
            kept.append(node)
        else:
            graph.initializer.append(tensor)
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


def constant_of(node: NodeProto) -> TensorProto | None:
    """Return a Constant node's tensor under its output's name; None for what is no tensor."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    tensor = TensorProto()
    if attribute.name == "value":
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        return tensor
    kinds = {"value_float": "float32", "value_floats": "float32"}
    kinds |= {"value_int": "int64", "value_ints": "int64"}
    if attribute.name not in kinds:
        return None
    import numpy as np

    return numpy_helper.from_array(np.array(value, kinds[attribute.name]), node.output[0])
