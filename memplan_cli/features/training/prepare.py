"""Forward models in the form that gradient rules expect: recent opset, no functions, no Constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
    version_converter,
)

from memplan_cli.core.operators import canonical_domain
from memplan_cli.errors import ModelError
from memplan_cli.features.training.tensors import FLOATS, UNKNOWN, infer_tensors
from memplan_cli.onnx_io.constants import constant_tensors, named_constant
from memplan_cli.onnx_io.functions import inlined
from memplan_cli.onnx_io.graph_editor import rename_values, replace_nodes
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)


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
    resizes = _resizes_before_opset_11(model)  # the conversion loses their coordinate mode
    try:
        converted = version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelError(
            f"the model has opset {opset}, a training step needs {OLDEST_OPSET} or"
            f" later, and it cannot be converted: {reason}",
            hint="export the model again with a later opset",
        ) from error
    _restore_resizes(converted, resizes)
    _retype_former_attributes(converted)
    return converted


_COORDINATE_MODE_OPSET = 11
"""The opset from which Resize has a coordinate transformation mode.

An earlier Resize, and Upsample, divides the output index by the scale, and rounds down where an
axis grows and up where it shrinks. onnx's converter does not set the mode accordingly.
"""


class _OldResize(NamedTuple):
    """The output of an Upsample or Resize before opset 11, and the equivalent ``nearest_mode``."""

    output: str
    nearest_mode: str


def _resizes_before_opset_11(model: ModelProto) -> list[_OldResize]:
    """Return each Upsample and Resize of a model before opset 11, in order; empty for later models.

    Raises:
        ModelError: no one rounding mode is right for all axes of a Resize, or its scales are not constant.
    """
    if standard_opset(model) >= _COORDINATE_MODE_OPSET:
        return []
    resizes: list[_OldResize] = []
    for graph in graphs(model.graph):
        constants = dict(constant_tensors(graph))
        for node in graph.node:
            if node.op_type == "Upsample":  # never shrinks an axis
                resizes.append(_OldResize(node.output[0], "floor"))
            elif node.op_type == "Resize" and not node.domain:
                resizes.append(_OldResize(node.output[0], _nearest_mode(node, constants)))
    return resizes


def _nearest_mode(node: NodeProto, constants: Mapping[str, TensorProto]) -> str:
    """Return the ``nearest_mode`` of opset 11 that rounds like a Resize of opset 10.

    That Resize rounds down along axes that grow and up along axes that shrink.

    Raises:
        ModelError: some axes grow and others shrink, or the scales are not constant.
    """
    is_nearest = all(a.s == b"nearest" for a in node.attribute if a.name == "mode")
    if not is_nearest:
        return "floor"  # ignored by linear interpolation
    scales = constants.get(node.input[1])
    if scales is not None:
        values = numpy_helper.to_array(scales).ravel().tolist()
        if min(values) >= 1:
            return "floor"
        if max(values) <= 1:
            return "ceil"
    raise ModelError(
        f"Resize {node.name or node.output[0]!r} of opset 10 shrinks some axes and not others,"
        " or its scales are not constant: it cannot be converted",
        hint="export the model again with opset 11 or later",
    )


def _restore_resizes(model: ModelProto, resizes: Sequence[_OldResize]) -> None:
    """Give converted Resize nodes the coordinate mode and output names of their originals, in place.

    The conversion keeps the order of these nodes, and renames their outputs.
    """
    if not resizes:
        return
    all_graphs = list(graphs(model.graph))
    nodes = [node for graph in all_graphs for node in graph.node if node.op_type == "Resize"]
    names: dict[str, str] = {}
    for node, original in zip(nodes, resizes, strict=True):
        mode = [a for a in node.attribute if a.name == "mode"]
        del node.attribute[:]
        coordinates = helper.make_attribute("coordinate_transformation_mode", "asymmetric")
        rounding = helper.make_attribute("nearest_mode", original.nearest_mode)
        node.attribute.extend([*mode, coordinates, rounding])
        names[node.output[0]] = original.output
    rename_values(model.graph.node, names)
    for graph in all_graphs:
        for value in (*graph.value_info, *graph.output):
            value.name = names.get(value.name, value.name)


_FORMER_ATTRIBUTES: Mapping[str, tuple[int, ...]] = {"Clip": (1, 2), "Pad": (2,)}
"""Inputs that were attributes in old opsets. onnx's converter makes them float32 whatever X is."""


def _retype_former_attributes(model: ModelProto) -> None:
    """Give constants that were attributes the element type of their node's first input, in place."""
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
