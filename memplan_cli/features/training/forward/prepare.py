"""A model as the gradient rules want it: recent opset, no functions, constants as initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from memplan_cli.features.training.forward.tensors import FLOATS, UNKNOWN, infer_tensors
from memplan_cli.onnx_io.constants import constant_tensors, named_constant
from memplan_cli.onnx_io.functions import inlined
from memplan_cli.onnx_io.graph_editor import rename_values, replace_nodes
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    ready.CopyFrom(inlined(model) if model.functions else model)
    ready = _converted(ready)
    _drop_weights_from_inputs(ready.graph)  # after: old files need them there to be converted
    ready.ir_version = max(ready.ir_version, _IR_WITH_METADATA)
    for graph in graphs(ready.graph):
        for node in graph.node:
            node.domain = canonical_domain(node.domain)
        _lift_constants(graph)
    return ready


def _drop_weights_from_inputs(graph: GraphProto) -> None:
    weights = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(kept)


def _converted(model: ModelProto) -> ModelProto:
    if standard_opset(model) >= OLDEST_OPSET:
        return model
    old = _old_resizes(model)
    try:
        later = version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelError(
            f"the model has opset {standard_opset(model)}, a training step needs {OLDEST_OPSET} or"
            f" later, and it cannot be converted: {reason}",
            hint="export the model again with a later opset",
        ) from error
    _say_how_they_resized(later, old)
    _retype_constants(later)
    return later


_FIRST_WITH_PLACES = 11
"""The opset from which a Resize says where its places are; the converter assumes another."""


def _old_resizes(model: ModelProto) -> list[tuple[str, str]]:
    """Return the result and the rounding of each Upsample and old Resize, in order.

    They took an element's place to be its number divided by the scale, rounded down where
    an axis grows and up where it shrinks.

    Raises:
        ModelError: one rounding would not do for all axes, or the scales are not constant.
    """
    if standard_opset(model) >= _FIRST_WITH_PLACES:
        return []
    found: list[tuple[str, str]] = []
    for graph in graphs(model.graph):
        known = dict(constant_tensors(graph))
        for node in graph.node:
            if node.op_type == "Upsample":
                found.append((node.output[0], "floor"))
            elif node.op_type == "Resize" and not node.domain:
                found.append((node.output[0], _old_rounding(node, known)))
    return found


def _old_rounding(node: NodeProto, known: Mapping[str, TensorProto]) -> str:
    nearest = all(a.s == b"nearest" for a in node.attribute if a.name == "mode")
    if not nearest:
        return "floor"
    scales = known.get(node.input[1])
    if scales is not None:
        ratios = numpy_helper.to_array(scales).ravel().tolist()
        if min(ratios) >= 1 or max(ratios) <= 1:
            return "floor" if min(ratios) >= 1 else "ceil"
    raise ModelError(
        f"Resize {node.name or node.output[0]!r} of opset 10 shrinks some axes and not others,"
        " or its scales are not constant: it cannot be converted",
        hint="export the model again with opset 11 or later",
    )


def _say_how_they_resized(model: ModelProto, old: Sequence[tuple[str, str]]) -> None:
    """Give the Resizes that the converter made their places, and their results' own names."""
    if not old:
        return
    inner = list(graphs(model.graph))
    resizes = [node for graph in inner for node in graph.node if node.op_type == "Resize"]
    names: dict[str, str] = {}
    for node, (name, rounding) in zip(resizes, old, strict=True):
        kept = [a for a in node.attribute if a.name == "mode"]
        del node.attribute[:]
        places = helper.make_attribute("coordinate_transformation_mode", "asymmetric")
        node.attribute.extend([*kept, places, helper.make_attribute("nearest_mode", rounding)])
        names[node.output[0]] = name
    rename_values(model.graph.node, names)
    for graph in inner:
        for value in (*graph.value_info, *graph.output):
            value.name = names.get(value.name, value.name)


_NUMBERS_AT: Mapping[str, tuple[int, ...]] = {"Clip": (1, 2), "Pad": (2,)}
"""Inputs that were attributes: the converter makes them float32 constants, whatever X is."""


def _retype_constants(model: ModelProto) -> None:
    """Give numbers that were attributes the type of what they are compared with."""
    tensors = infer_tensors(model)
    for graph in graphs(model.graph):
        weights = dict(constant_tensors(graph))
        for node in graph.node:
            dtype = tensors.get(node.input[0], UNKNOWN).dtype if node.input else 0
            if dtype not in FLOATS or dtype == TensorProto.FLOAT:
                continue
            for index in _NUMBERS_AT.get(node.op_type, ()):
                number = weights.get(node.input[index]) if index < len(node.input) else None
                if number is not None and number.data_type == TensorProto.FLOAT:
                    values = numpy_helper.to_array(number)
                    number.CopyFrom(
                        helper.make_tensor(number.name, dtype, values.shape, values.ravel())
                    )


def _lift_constants(graph: GraphProto) -> None:
    """Make each Constant node an initializer of the same name."""
    kept = []
    for node in graph.node:
        tensor = named_constant(node)
        if tensor is None:
            kept.append(node)
        else:
            graph.initializer.append(tensor)
    if len(kept) < len(graph.node):
        replace_nodes(graph, kept)
