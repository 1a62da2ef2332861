"""Weights as a file stores them: in itself or beside it, in its order, packed or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.load import load_as_written
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.prepacked import packed_blobs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onnx import ModelProto, TensorProto

_TYPED: Mapping[str, int] = {
    "float_data": 4,
    "int32_data": 4,
    "int64_data": 8,
    "double_data": 8,
    "uint64_data": 8,
}
"""Fields of typed numbers, and the bytes of one as it is parsed."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight in a file: its bytes, whether they lie in it, and its packed copy's.

    Attributes:
        name: the initializer's, or the output's of a Constant.
        size: bytes of its data.
        inside: whether these are in the model file itself.
        packed: bytes that a kernel packed beforehand, in the file beside.
    """

    name: str
    size: int
    inside: bool
    packed: int = 0


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model file as a session finds it.

    Attributes:
        size: bytes of the file itself.
        nodes: in all of its graphs.
        weights: in the order of the file.
        operands: what the node that makes a value reads, by the value's name.
    """

    size: int
    nodes: int
    weights: tuple[StoredWeight, ...] = field(repr=False)
    operands: Mapping[str, tuple[str, ...]] = field(repr=False)


def stored_model(path: Path) -> StoredModel:
    """Return what a session reads when it loads a file; external data stays where it is.

    Raises:
        ModelError: the file cannot be read, or its external data makes no sense.
    """
    model = load_as_written(path)
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    return StoredModel(
        size=path.stat().st_size,
        nodes=len(nodes),
        weights=tuple(_weights(model)),
        operands={name: tuple(node.input) for node in nodes for name in node.output if name},
    )


def _weights(model: ModelProto) -> list[StoredWeight]:
    found = []
    for graph in graphs(model.graph):
        found += [_stored(tensor.name, tensor) for tensor in graph.initializer]
        found += [
            _stored(node.output[0], tensor)
            for node in graph.node
            if (tensor := stored_tensor(node)) is not None
        ]
    return found


def _stored(name: str, tensor: TensorProto) -> StoredWeight:
    if tensor.data_location != tensor.EXTERNAL:
        typed = sum(len(getattr(tensor, part)) * size for part, size in _TYPED.items())
        return StoredWeight(name, len(tensor.raw_data) or typed, inside=True)
    from onnx import helper

    bits = 8 * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    count = 1
    for dim in tensor.dims:
        count *= dim
    blobs = [blob for _, found in packed_blobs(tensor) for blob in found]
    packed = sum(blob.length for blob in blobs)
    return StoredWeight(name, count * bits // 8, inside=False, packed=packed)
