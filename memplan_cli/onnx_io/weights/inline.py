"""Weights inside the model file: their bytes, and a copy of the model with them outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import graphs

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto, TensorProto

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
        if tensor.data_location != tensor.EXTERNAL and len(_raw(tensor)) >= _LEAST
    ]


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
    copy = type(model)()
    copy.CopyFrom(model)
    name = f"{out.name}.data"
    with out.with_name(name).open("wb") as file:
        for tensor in _inline(copy):
            data = _raw(tensor)
            file.write(b"\0" * (-file.tell() % _PAGE))
            entries = {"location": name, "offset": file.tell(), "length": len(data)}
            file.write(data)
            for part in ("raw_data", *_TYPED):
                tensor.ClearField(part)
            tensor.data_location = tensor.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
    out.write_bytes(copy.SerializeToString())
