"""Operators that ONNX itself defines by a function of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import defs, helper

from memplan_cli.features.training.expansion.bodies import give, paste
from memplan_cli.features.training.forward.prepare import OLDEST_OPSET
from memplan_cli.onnx_io.constants import named_constant
from memplan_cli.onnx_io.functions import schema_function, with_attribute_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import FunctionProto, TypeProto

    from memplan_cli.features.training.tape import Call


def expand_function(call: Call, opset: int) -> bool:
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
        copy = with_attribute_values(node, attributes)
        tensor = named_constant(copy)
        if tensor is None:
            nodes.append(copy)
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
    try:
        schema = defs.get_schema(call.node.op_type, opset, "")
    except defs.SchemaError:
        return None
    versions = range(OLDEST_OPSET, opset + 1)
    return schema_function(schema, call.node, _input_types(call), versions)


def _input_types(call: Call) -> Iterator[TypeProto]:
    for name in call.node.input:
        tensor = call.tape.tensor(name)
        yield helper.make_tensor_type_proto(tensor.dtype, tensor.shape)
