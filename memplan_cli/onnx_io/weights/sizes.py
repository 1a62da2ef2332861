"""Checks that a tensor has as much data as its dims say: what is counted must be loaded.

The data of a weight above a megabyte is not looked at, a look being a copy: all of those
together cannot take more than the file does.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.types import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

    from onnx import GraphProto, TensorProto

_MOST = 2**63 - 1
"""What fits 64 bits: no tensor has more bytes."""

_LOOKED_AT = 1 << 20
"""Bytes up to which data in the file is counted."""


def check_tensor(tensor: TensorProto) -> None:
    """Refuse a tensor whose dims are none, or whose data is not of their size.

    A tensor without any data is a weight that was taken out: planning does without it.

    Raises:
        ModelError: naming the tensor.
    """
    bits, dims = BITS.get(dtype_name(tensor.data_type)), tuple(tensor.dims)
    if any(dim < 0 for dim in dims):
        raise ModelError(f"{_name(tensor)} has a negative dim: {list(dims)}")
    needed = bytes_of(tensor)
    if needed > _MOST:
        raise ModelError(f"{_name(tensor)} takes {needed} bytes: no machine has that much")
    if tensor.data_location == tensor.EXTERNAL:
        said = next((e.value for e in tensor.external_data if e.key == "length"), "")
        if bits and said.isdecimal() and len(said) < 20 and int(said) != needed:
            raise _mismatch(tensor, f"{int(said)} bytes")
        return
    if needed <= _LOOKED_AT:
        _look(tensor)


def check_sums(graph: GraphProto, size: int) -> None:
    """Refuse weights that take more than the file of so many bytes, are of no type, or twice.

    Raises:
        ModelError: naming the weight.
    """
    inside, names = [], set()
    for tensor in graph.initializer:
        if tensor.name in names:
            raise ModelError(f"{_name(tensor)} is defined twice")
        names.add(tensor.name)
        if dtype_name(tensor.data_type) == "unknown":
            raise ModelError(f"{_name(tensor)} is of type {tensor.data_type}, which is none")
        if tensor.data_location != tensor.EXTERNAL and bytes_of(tensor) > _LOOKED_AT:
            inside.append(tensor)
    if sum(map(bytes_of, inside)) <= size:
        return
    # Now a look is worth its copy: those without data are none of the file's.
    for tensor in inside:
        _look(tensor)


def _look(tensor: TensorProto) -> None:
    bits = BITS.get(dtype_name(tensor.data_type))
    if bits is None:  # strings, and what is no dense tensor
        return
    if tensor.HasField("raw_data"):
        given = len(tensor.raw_data)
        if given not in (bytes_of(tensor), 0):
            raise _mismatch(tensor, f"{given} bytes")
        return
    values = sum(map(len, _fields(tensor)))
    if values not in (_values(tensor, bits), 0):
        raise _mismatch(tensor, f"{values} values")


def _fields(tensor: TensorProto) -> Iterator[Sized]:
    yield from (tensor.float_data, tensor.int32_data, tensor.int64_data)
    yield from (tensor.double_data, tensor.uint64_data)


def _values(tensor: TensorProto, bits: int) -> int:
    """Return how many numbers say its elements: a complex one is two, small ones share."""
    count = _count(tensor)
    if dtype_name(tensor.data_type).startswith("complex"):
        return 2 * count
    return -(-count * bits // 8) if bits < 8 else count


def bytes_of(tensor: TensorProto) -> int:
    """Return how many bytes its dims and its type take."""
    bits = BITS.get(dtype_name(tensor.data_type), 0)
    return -(-_count(tensor) * bits // 8)


def _count(tensor: TensorProto) -> int:
    return prod(int(dim) for dim in tensor.dims)


def _mismatch(tensor: TensorProto, data: str) -> ModelError:
    kind = f"{dtype_name(tensor.data_type)}{list(tensor.dims)}"
    return ModelError(
        f"{_name(tensor)} is {kind}, {bytes_of(tensor)} bytes, and its data has {data}"
    )


def _name(tensor: TensorProto) -> str:
    return f"tensor {tensor.name[:120]!r}"
