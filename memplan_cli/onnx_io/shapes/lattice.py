"""Partly known types merged and compared: types with holes, as protobufs.

`merged` adds what one knows to what the other knows; `widened` keeps only what both say, as
for a value that comes from two places.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import GraphProto, TensorShapeProto, TypeProto

    from memplan_cli.core.program import Dim, Shape


_MOST = 2**63 - 1
"""The largest dim that a file can say; a larger one is a hole."""


def shape_in(kind: TypeProto) -> Shape | None:
    """Return a tensor type's dims as they stand in the file, None where unknown."""
    tensor = _tensor(kind)
    if tensor is None or not tensor.HasField("shape"):
        return None
    return tuple(_dim(dim) for dim in tensor.shape.dim)


def _tensor(kind: TypeProto) -> TypeProto.Tensor | None:
    return kind.tensor_type if kind.WhichOneof("value") == "tensor_type" else None


def _dim(dim: TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None


def with_shape(kind: TypeProto, shape: Shape | None) -> TypeProto:
    """Return a tensor type with other dims; what is no tensor comes back as it is."""
    changed = deepcopy(kind)
    tensor = _tensor(changed)
    if tensor is None:
        return changed
    tensor.ClearField("shape")
    if shape is None:
        return changed
    tensor.shape.SetInParent()
    for dim in shape:
        target = tensor.shape.dim.add()
        if isinstance(dim, int) and -_MOST <= dim <= _MOST:
            target.dim_value = dim
        elif isinstance(dim, str):
            target.dim_param = dim
    return changed


def is_complete(kind: TypeProto) -> bool:
    """Whether a type says all that can be said: every dim has a number or a name."""
    if kind.WhichOneof("value") != "tensor_type":
        return kind.WhichOneof("value") is not None
    shape = shape_in(kind)
    return bool(kind.tensor_type.elem_type) and shape is not None and None not in shape


def has_holes(graph: GraphProto) -> bool:
    """Whether a node of a graph gives something whose type is not all known."""
    values = (*graph.output, *graph.value_info, *graph.input)
    known = {value.name for value in values if is_complete(value.type)}
    return any(name not in known for node in graph.node for name in node.output if name)


def merged(first: TypeProto, second: TypeProto) -> TypeProto:
    """Return what the first says, holes filled with what the second says."""
    if first.WhichOneof("value") is None:
        return second
    one, two = _tensor(first), _tensor(second)
    if one is None or two is None:
        return first
    here, there = shape_in(first), shape_in(second)
    if here is None:
        here = there
    elif there is not None and len(here) == len(there):
        here = tuple(b if a is None else a for a, b in zip(here, there, strict=True))
    both = with_shape(first, here)
    both.tensor_type.elem_type = one.elem_type or two.elem_type
    return both


def agrees(first: TypeProto, second: TypeProto) -> bool:
    """Whether one type may be both: no dtype, rank or number of theirs differs."""
    one, two = _tensor(first), _tensor(second)
    if one is None or two is None:
        kinds = first.WhichOneof("value"), second.WhichOneof("value")
        return None in kinds or kinds[0] == kinds[1]
    if one.elem_type and two.elem_type and one.elem_type != two.elem_type:
        return False
    here, there = shape_in(first), shape_in(second)
    if here is None or there is None:
        return True
    return len(here) == len(there) and all(
        a is None or b is None or isinstance(b, str) or a == b
        for a, b in zip(here, there, strict=True)
    )


def widened(first: TypeProto, second: TypeProto) -> TypeProto:
    """Return what both say; a dim that differs is a hole."""
    if first.WhichOneof("value") is None or _tensor(first) is None:
        return first if first.WhichOneof("value") else second
    here, there = shape_in(first), shape_in(second)
    if here is None or there is None or len(here) != len(there):
        return with_shape(first, None)
    return with_shape(
        first, tuple(a if a == b else None for a, b in zip(here, there, strict=True))
    )


def widest(kinds: Iterable[TypeProto]) -> TypeProto | None:
    """Return what all of them say, or None of none."""
    found: TypeProto | None = None
    for kind in kinds:
        found = kind if found is None else widened(found, kind)
    return found


def slice_of(kind: TypeProto, axis: int) -> TypeProto:
    """Return the type of one slice: a dim less."""
    shape = shape_in(kind)
    if not shape or not -len(shape) <= axis < len(shape):
        return with_shape(kind, None)
    axis %= len(shape)
    return with_shape(kind, (*shape[:axis], *shape[axis + 1 :]))


def stack_of(kind: TypeProto, axis: int, length: Dim) -> TypeProto:
    """Return the type of several of these, one after the other: a dim more."""
    shape = shape_in(kind)
    if shape is None or not -len(shape) - 1 <= axis <= len(shape):
        return with_shape(kind, None)
    axis %= len(shape) + 1
    return with_shape(kind, (*shape[:axis], length, *shape[axis:]))
