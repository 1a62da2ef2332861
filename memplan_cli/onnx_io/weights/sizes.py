"""Checks that a tensor has as much data as its dims and dtype need.

Counting the values of a weight copies them. So initializers above a megabyte are only checked if, by
their dims, all of them together exceed the size of the file (`check_initializers`). Smaller ones, and
external ones, whose length is stated, are always checked (`check_tensor`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.types import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import GraphProto, TensorProto

TYPED_FIELDS: Mapping[str, int] = {
    "float_data": 4,
    "int32_data": 4,
    "int64_data": 8,
    "double_data": 8,
    "uint64_data": 8,
}
"""Typed data field of a tensor -> bytes of one value in memory after parsing."""

_MAX_TENSOR_BYTES = 2**63 - 1
"""Sizes are 64-bit ints."""

_LARGEST_COUNTED_BYTES = 1 << 20
"""The values of tensors up to this size, by their dims, are always counted."""


def check_tensor(tensor: TensorProto) -> None:
    """Refuse a tensor with negative dims, or with data of another size than its dims and dtype.

    The data of large tensors in the model file is left to `check_initializers`. A tensor without any data
    passes: its weights were taken out, and planning does not need them. Strings have no size to check.

    Raises:
        ModelError: naming the tensor.
    """
    dims = list(tensor.dims)
    if any(dim < 0 for dim in dims):
        raise ModelError(f"{_label(tensor)} has a negative dim: {dims}")
    if _bits(tensor) is None:
        return
    needed = tensor_bytes(tensor)
    if needed > _MAX_TENSOR_BYTES:
        raise ModelError(f"{_label(tensor)} takes {needed} bytes: no machine has that much")
    if tensor.data_location == tensor.EXTERNAL:
        length = next((e.value for e in tensor.external_data if e.key == "length"), "")
        # Another text is refused by `parse_number`.
        is_number = length.isdecimal() and len(length) < 20
        if is_number and int(length) != needed:
            raise _mismatch(tensor, f"{int(length)} bytes")
    elif needed <= _LARGEST_COUNTED_BYTES:
        _check_data(tensor)


def check_initializers(graph: GraphProto, file_bytes: int) -> None:
    """Refuse initializers that are defined twice or have no dtype, and large ones that lack data.

    `check_tensor` counts the data of tensors up to `_LARGEST_COUNTED_BYTES`. That of the larger ones takes long to count.
    It is counted here if all of them, by their dims, do not fit into the file: so some lack data.

    Args:
        graph: The main graph.
        file_bytes: The size of the model file.

    Raises:
        ModelError: naming the weight.
    """
    large_inside, names = [], set()
    for tensor in graph.initializer:
        if tensor.name in names:
            raise ModelError(f"{_label(tensor)} is defined twice")
        names.add(tensor.name)
        if dtype_name(tensor.data_type) == "unknown":
            raise ModelError(f"{_label(tensor)} is of type {tensor.data_type}, which is none")
        is_inside = tensor.data_location != tensor.EXTERNAL
        if is_inside and tensor_bytes(tensor) > _LARGEST_COUNTED_BYTES:
            large_inside.append(tensor)
    fits_into_file = sum(map(tensor_bytes, large_inside)) <= file_bytes
    if not fits_into_file:
        for tensor in large_inside:
            _check_data(tensor)


def tensor_bytes(tensor: TensorProto) -> int:
    """Return the bytes that a tensor's dims and dtype take, rounded up; 0 for strings."""
    return -(-_element_count(tensor) * (_bits(tensor) or 0) // 8)


def _bits(tensor: TensorProto) -> int | None:
    """Return the bits of an element; None for strings and undefined types."""
    return BITS.get(dtype_name(tensor.data_type))


def _element_count(tensor: TensorProto) -> int:
    return prod(int(dim) for dim in tensor.dims)


def _check_data(tensor: TensorProto) -> None:
    """Refuse a tensor whose raw or typed data has another size than its dims say.

    Tensors without data, and strings, pass. In the typed fields a complex number is two values, and
    elements of less than 8 bits share one.
    """
    bits = _bits(tensor)
    if bits is None:
        return
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) not in (tensor_bytes(tensor), 0):
            raise _mismatch(tensor, f"{len(tensor.raw_data)} bytes")
        return
    expected = _element_count(tensor)
    if dtype_name(tensor.data_type).startswith("complex"):
        expected *= 2
    elif bits < 8:
        expected = -(-expected * bits // 8)
    count = sum(len(getattr(tensor, field)) for field in TYPED_FIELDS)
    if count not in (expected, 0):
        raise _mismatch(tensor, f"{count} values")


def _mismatch(tensor: TensorProto, data: str) -> ModelError:
    tensor_type = f"{dtype_name(tensor.data_type)}{list(tensor.dims)}"
    return ModelError(
        f"{_label(tensor)} is {tensor_type}, {tensor_bytes(tensor)} bytes, "
        f"and its data has {data}"
    )


def _label(tensor: TensorProto) -> str:
    return f"tensor {tensor.name[:120]!r}"
