"""Operators that ONNX itself defines by a function of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import AttributeProto, FunctionProto, NodeProto, defs, helper

from memplan_cli.onnx_io.gradients.bodies import give, paste
from memplan_cli.onnx_io.gradients.prepare import OLDEST_OPSET, constant_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.onnx_io.gradients.tape import Call


def function_body(call: Call, opset: int) -> bool:
    """Write a node's function to the tape; False where ONNX defines none for it.

    Only definitions in operators of a recent opset count: older forms have no rules.
    """
    function = _function(call, opset)
    if function is None:
        return False
    tape, label = call.tape, call.node.name or call.output()
    given = dict.fromkeys(function.input, "")
    given |= dict(zip(function.input, call.node.input, strict=False))
    attributes = {a.name: a for a in (*function.attribute_proto, *call.node.attribute)}
    nodes = []
    for node in function.node:
        filled = _filled(node, attributes)
        tensor = constant_of(filled)
        if tensor is None:
            nodes.append(filled)
            continue
        given[tensor.name] = tape.pool.fresh(f"{label}/{tensor.name}")
        tensor.name = given[tensor.name]
        tape.pool.tensors.append(tensor)
    names = paste(tape, nodes, given, label)
    for formal, output in zip(function.output, call.node.output, strict=False):
        if output:
            give(tape, names[formal], output)
    return True


def _function(call: Call, opset: int) -> FunctionProto | None:
    node = call.node
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return None
    for versions, fetch in (
        (schema.function_opset_versions, schema.get_function_with_opset_version),
        (
            schema.context_dependent_function_opset_versions,
            lambda version: schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), _input_types(call)
            ),
        ),
    ):
        usable = [v for v in versions if OLDEST_OPSET <= v <= opset]
        if usable:
            function = FunctionProto()
            function.ParseFromString(fetch(max(usable)))
            return function
    return None


def _input_types(call: Call) -> list[bytes]:
    found = []
    for name in call.node.input:
        tensor = call.tape.tensor(name)
        kind = helper.make_tensor_type_proto(tensor.dtype, tensor.shape)
        found.append(kind.SerializeToString())
    return found


def _filled(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a function's node with its references to attributes replaced by values."""
    copy = NodeProto()
    copy.CopyFrom(node)
    kept = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept.append(attribute)
        elif attribute.ref_attr_name in attributes:
            value = AttributeProto()
            value.CopyFrom(attributes[attribute.ref_attr_name])
            value.name = attribute.name
            kept.append(value)
    del copy.attribute[:]
    copy.attribute.extend(kept)
    return copy
