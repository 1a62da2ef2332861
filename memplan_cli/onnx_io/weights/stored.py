"""The weights of a model file as ONNX Runtime reads them when it loads the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId
from memplan_cli.onnx_io.constants import small_constants, stored_tensor
from memplan_cli.onnx_io.load import load_as_written
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.prepacked import packed_blobs
from memplan_cli.onnx_io.weights.sizes import TYPED_FIELDS, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onnx import ModelProto, TensorProto


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight of a model file.

    Attributes:
        name: of the initializer, or of the output of a Constant node.
        size: bytes of its data.
        inside: whether the data is in the model file itself.
        packed_in_file: bytes of the copies in an external file that ONNX Runtime has packed for its
            kernels; 0: there are none.
    """

    name: str
    size: int
    inside: bool
    packed_in_file: int = 0


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model file as an ONNX Runtime session reads it.

    Attributes:
        size: bytes of the file, without external data.
        nodes: number of nodes in all graphs.
        weights: in the order of the file.
        operands: by name of a value, the inputs of the node that produces it.
    """

    size: int
    nodes: int
    weights: tuple[StoredWeight, ...] = field(repr=False)
    operands: Mapping[str, tuple[str, ...]] = field(repr=False)


def stored_model(path: Path) -> StoredModel:
    """Describe a model file; external data is not read.

    Raises:
        ModelError: the file cannot be read, or an entry of its external data is invalid.
    """
    model = load_as_written(path)
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    return StoredModel(
        size=path.stat().st_size,
        nodes=len(nodes),
        weights=tuple(_weights(model)),
        operands={name: tuple(node.input) for node in nodes for name in node.output if name},
    )


def filled_filter_bytes(path: Path) -> int:
    """Return the bytes of convolution filters that ConstantOfShape nodes of a model's main graph make.

    Only nodes whose shape is a constant count: ONNX Runtime computes such filters when it loads the model.
    """
    model = load_as_written(path)
    shapes = small_constants(model)
    filters = {
        node.input[1] for node in model.graph.node if node.op_type in {"Conv", "ConvTranspose"}
    }
    total = 0
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.output[0] not in filters:
            continue
        shape = shapes.get(VarId(node.input[0]))
        if shape is not None:
            # The attribute ``value`` has one element; without it, elements are float32.
            element = max((tensor_bytes(a.t) for a in node.attribute), default=4)
            total += prod(int(dim) for dim in shape) * element
    return total


def _weights(model: ModelProto) -> list[StoredWeight]:
    """Return initializers and Constant tensors of all graphs."""
    weights = []
    for graph in graphs(model.graph):
        weights += [_stored(tensor.name, tensor) for tensor in graph.initializer]
        weights += [
            _stored(node.output[0], tensor)
            for node in graph.node
            if (tensor := stored_tensor(node)) is not None
        ]
    return weights


def _stored(name: str, tensor: TensorProto) -> StoredWeight:
    """Describe a weight: the size of external data is that of its dims and dtype, of other data its bytes."""
    if tensor.data_location != tensor.EXTERNAL:
        typed = sum(len(getattr(tensor, field)) * size for field, size in TYPED_FIELDS.items())
        return StoredWeight(name, len(tensor.raw_data) or typed, inside=True)
    packed = sum(blob.length for blob in packed_blobs(tensor))
    return StoredWeight(name, tensor_bytes(tensor), inside=False, packed_in_file=packed)
