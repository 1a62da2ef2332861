"""Partly known types: `TypeProto` messages in which the type, the rank or some dims may be missing.

`merged` combines two sources of knowledge about one value. `widened` keeps what holds for both of two
values, for example the outputs of two branches.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.protobuf import messages

if TYPE_CHECKING:
    from onnx import GraphProto, TensorShapeProto, TypeProto

    from memplan_cli.core.program import Dim, Shape


_MAX_DIM = 2**63 - 1
"""The largest dim that a file can hold, as an int64."""


def shape_in(type_proto: TypeProto) -> Shape | None:
    """Return the dims of a tensor type: numbers, names or None. None if it has no shape."""
    tensor = _tensor(type_proto)
    if tensor is None or not tensor.HasField("shape"):
        return None
    return tuple(_dim(dim) for dim in tensor.shape.dim)


def _tensor(type_proto: TypeProto) -> TypeProto.Tensor | None:
    """Return the tensor type; None for an empty type, and for sequences, maps and the like."""
    is_tensor = type_proto.WhichOneof("value") == "tensor_type"
    return type_proto.tensor_type if is_tensor else None


def _dim(dim: TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None


def tensor_type(elem_type: int, shape: Shape | None) -> TypeProto:
    """Return a tensor's `TypeProto` from a ``TensorProto.DataType`` number and a shape."""
    type_proto: TypeProto = messages().TypeProto()
    type_proto.tensor_type.elem_type = elem_type
    return with_shape(type_proto, shape)


def with_shape(type_proto: TypeProto, shape: Shape | None) -> TypeProto:
    """Return a copy of a tensor type with another shape, None for none; other types are copied as is.

    A number that a file cannot hold becomes an unknown dim. A negative one, which is invalid, is kept:
    callers check for it.
    """
    changed = deepcopy(type_proto)
    tensor = _tensor(changed)
    if tensor is None:
        return changed
    tensor.ClearField("shape")
    if shape is None:
        return changed
    tensor.shape.SetInParent()
    for dim in shape:
        stored_dim = tensor.shape.dim.add()
        if isinstance(dim, int) and -_MAX_DIM <= dim <= _MAX_DIM:
            stored_dim.dim_value = dim
        elif isinstance(dim, str):
            stored_dim.dim_param = dim
    return changed


def is_complete(type_proto: TypeProto) -> bool:
    """Whether a type is fully known: element type, rank, and a number or name for each dim.

    The type of a value that is no tensor (a sequence, a map) counts as fully known.
    """
    if type_proto.WhichOneof("value") != "tensor_type":
        return type_proto.WhichOneof("value") is not None
    shape = shape_in(type_proto)
    return bool(type_proto.tensor_type.elem_type) and shape is not None and None not in shape


def has_holes(graph: GraphProto) -> bool:
    """Whether the type of any node output of a graph is not fully known."""
    values = (*graph.output, *graph.value_info, *graph.input)
    complete = {value.name for value in values if is_complete(value.type)}
    return any(name not in complete for node in graph.node for name in node.output if name)


def merged(first: TypeProto, second: TypeProto) -> TypeProto:
    """Return the first type with its unknown parts filled in from the second.

    Where both know a part, the first counts. If one of them is no tensor, the first is the result, or the
    second if the first is empty. Neither is changed, but the result may be one of them instead of a copy.
    """
    if first.WhichOneof("value") is None:
        return second
    tensor, other = _tensor(first), _tensor(second)
    if tensor is None or other is None:
        return first
    shape, other_shape = shape_in(first), shape_in(second)
    if shape is None:
        shape = other_shape
    elif other_shape is not None and len(shape) == len(other_shape):
        pairs = zip(shape, other_shape, strict=True)
        shape = tuple(b if a is None else a for a, b in pairs)
    result = with_shape(first, shape)
    result.tensor_type.elem_type = tensor.elem_type or other.elem_type
    return result


def agrees(inferred: TypeProto, declared: TypeProto) -> bool:
    """Whether one value can have both the inferred and the declared type.

    False if element types or ranks differ, or if a dim is declared as a number, and inferred as another number
    or a name. A declared name may stand for any dim.
    """
    tensor, declared_tensor = _tensor(inferred), _tensor(declared)
    if tensor is None or declared_tensor is None:
        kinds = inferred.WhichOneof("value"), declared.WhichOneof("value")
        return None in kinds or kinds[0] == kinds[1]
    elem_types = {tensor.elem_type, declared_tensor.elem_type} - {0}  # 0: unknown
    shape, declared_shape = shape_in(inferred), shape_in(declared)
    if len(elem_types) > 1:
        return False
    if shape is None or declared_shape is None:
        return True
    return len(shape) == len(declared_shape) and all(
        dim is None or declared_dim in (None, dim) or isinstance(declared_dim, str)
        for dim, declared_dim in zip(shape, declared_shape, strict=True)
    )


def widened(first: TypeProto, second: TypeProto) -> TypeProto:
    """Return the type of a value that has the first or the second type: dims that differ are unknown.

    Both have the same element type and the same container. They are taken from the type that is known. If
    only one is known, the shape is unknown.
    """
    known = first if first.WhichOneof("value") else second
    return with_shape(known, common_shape(shape_in(first), shape_in(second)))


def common_shape(first: Shape | None, second: Shape | None) -> Shape | None:
    """Return the dims that two shapes have in common, None where they differ; None if ranks differ."""
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple(a if a == b else None for a, b in zip(first, second, strict=True))


def slice_of(type_proto: TypeProto, axis: int) -> TypeProto:
    """Return the type of a tensor's slices along an axis: without that dim.

    The shape is unknown if the axis is out of range.
    """
    shape = shape_in(type_proto)
    if not shape or not -len(shape) <= axis < len(shape):
        return with_shape(type_proto, None)
    axis %= len(shape)
    return with_shape(type_proto, (*shape[:axis], *shape[axis + 1 :]))


def stack_of(type_proto: TypeProto, axis: int, length: Dim) -> TypeProto:
    """Return the type of ``length`` tensors of this type, stacked along a new axis."""
    return with_shape(type_proto, stacked_shape(shape_in(type_proto), axis, length))


def stacked_shape(shape: Shape | None, axis: int, length: Dim) -> Shape | None:
    """Return a shape with a new dim ``length`` at ``axis``; None if the axis is out of range."""
    if shape is None or not -len(shape) - 1 <= axis <= len(shape):
        return None
    axis %= len(shape) + 1
    return (*shape[:axis], length, *shape[axis:])
