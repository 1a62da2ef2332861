"""Decoded constants of a graph: initializers, and Constant nodes of any form."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.program import VarId
from memplan_cli.onnx_io.protobuf import messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_MAX_SMALL = 64
"""Most elements of a small constant, which may be an operand such as axes or a shape; more is data."""

_FLOAT, _INT64 = 1, 7
_NUMBERS = frozenset({_FLOAT, 6, _INT64, 10, 11})
"""TensorProto.DataType: float32, int32, int64, float16 and float64."""


def stored_tensor(node: NodeProto) -> TensorProto | None:
    """Return the tensor in the ``value`` of a Constant node; None for every other node."""
    if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS:
        for attribute in node.attribute:
            if attribute.name == "value":
                return attribute.t
    return None


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the value of a Constant node as a tensor, whatever attribute holds it.

    Returns None for other nodes, and for sparse tensors and strings.
    """
    stored = stored_tensor(node)
    if stored is not None or node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
        return stored
    tensor_class = messages().TensorProto
    for attribute in node.attribute:
        match attribute.name:
            case "value_int":
                return tensor_class(data_type=_INT64, int64_data=[attribute.i])
            case "value_ints":
                return tensor_class(
                    data_type=_INT64, dims=[len(attribute.ints)], int64_data=attribute.ints
                )
            case "value_float":
                return tensor_class(data_type=_FLOAT, float_data=[attribute.f])
            case "value_floats":
                return tensor_class(
                    data_type=_FLOAT, dims=[len(attribute.floats)], float_data=attribute.floats
                )
    return None


def named_constant(node: NodeProto) -> TensorProto | None:
    """Return a copy of a Constant node's value under the name of the node's output."""
    value = constant_tensor(node)
    if value is None:
        return None
    tensor: TensorProto = messages().TensorProto()
    tensor.CopyFrom(value)
    tensor.name = node.output[0]
    return tensor


def constant_tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield the initializers of a graph, then the values of its Constant nodes, by name."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        value = constant_tensor(node)
        if value is not None:
            yield node.output[0], value


def small_numbers(tensor: TensorProto) -> tuple[int | float, ...] | None:
    """Return the elements of a small numeric tensor; None for others, and if its data is missing."""
    from onnx import numpy_helper

    has_data = tensor.data_location != tensor.EXTERNAL
    if not has_data or tensor.data_type not in _NUMBERS or prod(tensor.dims) > _MAX_SMALL:
        return None
    try:
        return tuple(numpy_helper.to_array(tensor).ravel().tolist())
    except ValueError:  # the tensor holds fewer elements than its dims say
        return None


def small_constants(model: ModelProto) -> Mapping[VarId, tuple[int | float, ...]]:
    """Return the elements of the main graph's small constants that a caller cannot override."""
    fed = {value.name for value in model.graph.input}
    constants = {}
    for name, tensor in constant_tensors(model.graph):
        numbers = small_numbers(tensor) if name not in fed else None
        if numbers is not None:
            constants[VarId(name)] = numbers
    return constants
