"""The weights inside a model file: their bytes, and a copy of the model with them outside."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.sizes import TYPED_FIELDS, tensor_bytes
from memplan_cli.onnx_io.weights.tensor_data import (
    MIN_EXTERNAL_BYTES,
    fill_to_boundary,
    is_small,
    refer_to_file,
)

if TYPE_CHECKING:
    from typing import BinaryIO

    from onnx import ModelProto, TensorProto

MIN_MOVED_BYTES = 1 << 20
"""Least bytes of weights in the model file that are moved out of it."""


def inline_bytes(model: ModelProto) -> int:
    """Return the bytes of all weights in the model file that are large enough to move out of it."""
    return sum(len(_raw_bytes(tensor)) for tensor in _movable_weights(model))


def _movable_weights(model: ModelProto) -> list[TensorProto]:
    """Return the initializers whose data is in the model file and large enough to move out."""
    return [
        tensor
        for graph in graphs(model.graph)
        for tensor in graph.initializer
        if tensor.data_location != tensor.EXTERNAL and _is_movable(tensor)
    ]


def _is_movable(tensor: TensorProto) -> bool:
    """Return whether a tensor is large enough for a data file, and its data can be written there as raw bytes.

    Raw bytes are as many as the dtype and dims ask for. Not so for strings, which have no raw form, for
    4-bit ints in typed fields, which `_raw_bytes` gives a byte each, and for weights whose data was taken
    out.
    """
    size = tensor_bytes(tensor)
    return size >= MIN_EXTERNAL_BYTES and len(_raw_bytes(tensor)) == size


def _raw_bytes(tensor: TensorProto) -> bytes:
    """Return the data of a tensor, from ``raw_data`` or converted from typed fields; empty for strings.

    4-bit ints of a typed field get a byte each, unlike in ``raw_data``: `_is_movable` excludes such tensors.
    """
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    if any(len(getattr(tensor, field)) for field in TYPED_FIELDS):
        from onnx import numpy_helper

        return bytes(numpy_helper.to_array(tensor).tobytes())
    return b""


def moved_outside(model: ModelProto, name: str, file: BinaryIO) -> ModelProto:
    """Write the movable weights of a model to an empty file; return a copy that refers to it as ``name``.

    Equal weights are stored once. Data that is external already stays where it is.
    """
    copy = deepcopy(model)
    offsets: dict[bytes, int] = {}
    # Large weights come first. They start at wide boundaries, so that between small ones they would leave gaps.
    weights = sorted(_movable_weights(copy), key=lambda weight: is_small(tensor_bytes(weight)))
    for tensor in weights:
        data = _raw_bytes(tensor)
        digest = hashlib.blake2b(data, digest_size=32).digest()
        if digest not in offsets:
            offsets[digest] = fill_to_boundary(file, len(data))
            file.write(data)
        for field in ("raw_data", *TYPED_FIELDS):
            tensor.ClearField(field)
        refer_to_file(tensor, name, offsets[digest], len(data))
    # A message keeps the memory of cleared fields: parse it again.
    return type(model).FromString(copy.SerializeToString())
