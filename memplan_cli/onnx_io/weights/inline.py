"""Weights inside the model file: their bytes, and a copy of the model with them outside."""

from __future__ import annotations

import hashlib
import math
from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.types import dtype_name

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from onnx import ModelProto, TensorProto

WORTH = 1 << 20
"""Bytes of weights in the model file from which it is worth knowing, and saving, their cost."""

_LEAST = 1024
"""Bytes from which a tensor is worth a place in another file, as the runtime's own dump."""

_PAGE = 4096
"""Data is mapped where it begins on a page."""

_TYPED = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data")


def inline_bytes(model: ModelProto) -> int:
    """Return the bytes of the large weights whose data is part of the model file."""
    return sum(map(len, map(_raw, _inline(model))))


def _inline(model: ModelProto) -> list[TensorProto]:
    return [
        tensor
        for graph in graphs(model.graph)
        for tensor in graph.initializer
        if tensor.data_location != tensor.EXTERNAL and _is_large(tensor)
    ]


def _is_large(tensor: TensorProto) -> bool:
    """Whether a tensor's bytes are worth a place of their own, and are what its type takes.

    Text has no raw bytes, and numbers of four bits are two to a byte only where they are raw.
    """
    bits = BITS.get(dtype_name(tensor.data_type), 0)
    expected: int = (math.prod(tensor.dims) * bits + 7) // 8
    return expected >= _LEAST and len(_raw(tensor)) == expected


def _raw(tensor: TensorProto) -> bytes:
    """Return a tensor's data where it is raw, or typed numbers that can be made raw."""
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    if any(len(getattr(tensor, part)) for part in _TYPED):
        from onnx import numpy_helper

        return bytes(numpy_helper.to_array(tensor).tobytes())
    return b""


def with_external_data(model: ModelProto, out: Path) -> None:
    """Write a copy of a model whose large weights lie beside it, in ``<name>.data``.

    Other data of the model that is external already must be brought along by the caller.
    """
    name = f"{out.name}.data"
    with out.with_name(name).open("wb") as file:
        copy = moved_outside(model, name, file)
    out.write_bytes(copy.SerializeToString())


def moved_outside(model: ModelProto, name: str, file: BinaryIO) -> ModelProto:
    """Return a copy of a model whose large weights are in a data file, equal ones once.

    Args:
        model: stays as it is; what is external already is external in the copy too.
        name: of the data file, as the copy shall refer to it.
        file: written from its beginning; each weight begins on a page.
    """
    copy = deepcopy(model)
    places: dict[bytes, int] = {}
    for tensor in _inline(copy):
        data = _raw(tensor)
        digest = hashlib.blake2b(data, digest_size=32).digest()
        if digest not in places:
            file.write(b"\0" * (-file.tell() % _PAGE))
            places[digest] = file.tell()
            file.write(data)
        for part in ("raw_data", *_TYPED):
            tensor.ClearField(part)
        tensor.data_location = tensor.EXTERNAL
        entries = {"location": name, "offset": places[digest], "length": len(data)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
    # A message keeps the memory of what was in it as long as it is there itself.
    return type(model).FromString(copy.SerializeToString())
