"""ONNX's element types and ours: one table, both ways."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.protobuf import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import TypeProto, ValueInfoProto


def type_name(kind: TypeProto) -> str:
    """Return a type in words: ``float32``, ``sequence(float32)``, ``optional(..)``."""
    if kind.HasField("tensor_type"):
        return dtype_name(kind.tensor_type.elem_type)
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return f"sequence({type_name(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({type_name(kind.optional_type.elem_type)})"
    if which == "sparse_tensor_type":
        return f"sparse({dtype_name(kind.sparse_tensor_type.elem_type)})"
    return "map" if which == "map_type" else "unknown"


def tensor_type(value: ValueInfoProto) -> tuple[str, TypeProto.Tensor]:
    """Return what an input is of tensors, and the type of these; maps are of numbers.

    Raises:
        ModelError: a run cannot be fed such a type.
    """
    kind, container = value.type, "tensor"
    if kind.HasField("optional_type"):
        kind, container = kind.optional_type.elem_type, "optional"
    if kind.HasField("sequence_type"):
        kind, container = kind.sequence_type.elem_type, "sequence"
    elif container == "tensor" and kind.HasField("map_type"):
        is_text = dtype_name(kind.map_type.key_type) == "string"
        kind, container = (
            kind.map_type.value_type,
            f"map of {'text' if is_text else 'numbers'}",
        )
    if not kind.HasField("tensor_type") and kind.WhichOneof("value") is not None:
        raise ModelError(
            f"input {value.name[:100]!r} is a {type_name(value.type)}: it cannot be fed"
        )
    return container, kind.tensor_type


def dtype_name(element: int) -> str:
    """Return the numpy name of a TensorProto.DataType; ``unknown`` for what has none."""
    return _names().get(element, "unknown")


def element_type(dtype: str) -> int:
    """Return the TensorProto.DataType of a numpy name; 0, undefined, for what has none."""
    return next((number for number, name in _names().items() if name == dtype), 0)


def bytes_of(
    dtype: str, dims: Sequence[int | str | None], numbers: Mapping[str, int]
) -> int | None:
    """Return the bytes of a tensor as a runtime names its dims; None where they are not known.

    Args:
        dtype: a numpy name.
        dims: each a number, or any text; None where nothing is said.
        numbers: what texts stand for.
    """
    known = [numbers.get(dim) if isinstance(dim, str) else dim for dim in dims]
    sizes = [dim for dim in known if dim is not None]
    if len(sizes) < len(known) or dtype not in BITS:
        return None
    return math.prod(sizes) * BITS[dtype] // 8


@cache
def _names() -> dict[int, str]:
    renamed = {"float": "float32", "double": "float64", "undefined": "unknown"}
    return {
        number: renamed.get(name.lower(), name.lower())
        for name, number in messages().TensorProto.DataType.items()
    }
