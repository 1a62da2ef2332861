"""What is known of a model's tensors: element type, shape, constant values."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from memplan_cli.onnx_io.shapes.lattice import shape_in
from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import TypeProto

    from memplan_cli.core.program import Shape

    Array = NDArray[Any]

FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
)
"""Element types that a gradient can have."""

_MANY = 4096
"""Elements; larger constants are weights, whose values shape inference never needs."""


_LIKE_THEIR_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators whose result is shaped as their input, which onnx 1.23 does not infer."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An element type as ONNX numbers them (0: unknown), and a shape (None: unknown rank)."""

    dtype: int
    shape: Shape | None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape where it is all numbers, else None."""
        if self.shape is None:
            return None
        numbers = tuple(dim for dim in self.shape if isinstance(dim, int))
        return numbers if len(numbers) == len(self.shape) else None


UNKNOWN = Tensor(TensorProto.UNDEFINED, None)


def tensor_of(kind: TypeProto) -> Tensor:
    """Read a value's type; anything but a dense tensor is unknown."""
    if not kind.HasField("tensor_type"):
        return UNKNOWN
    return Tensor(kind.tensor_type.elem_type, shape_in(kind))


def infer_tensors(model: ModelProto) -> dict[str, Tensor]:
    """Return the type of every tensor of a model and of its subgraphs, weights unread.

    Unlike in `light_copy`, an input that has a weight's name keeps its own shape.
    """
    bare = deepcopy(model)
    inputs = {value.name for value in bare.graph.input}
    for weight in bare.graph.initializer:
        if prod(weight.dims) > _MANY and weight.name not in inputs:
            value = bare.graph.input.add(name=weight.name)
            value.type.tensor_type.elem_type = weight.data_type
            for dim in weight.dims:
                value.type.tensor_type.shape.dim.add(dim_value=dim)
    for node in (node for graph in graphs(bare.graph) for node in graph.node):
        if node.op_type in _LIKE_THEIR_INPUT:  # in another domain no Identity is known
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    kept = [w for w in bare.graph.initializer if prod(w.dims) <= _MANY]
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(kept)
    inferred = infer_shapes(bare.SerializeToString())
    found: dict[str, Tensor] = {}
    for graph in graphs(inferred.graph):
        for tensor in graph.initializer:
            found[tensor.name] = Tensor(tensor.data_type, tuple(tensor.dims))
        for value in (*graph.input, *graph.value_info, *graph.output):
            known = tensor_of(value.type)
            if value.name not in found or known.shape is not None:
                found[value.name] = known
    return found


def constant_values(graph: GraphProto) -> dict[str, Array]:
    """Return the small constants whose data is in the model, by name."""
    found: dict[str, Array] = {}
    for inner in graphs(graph):
        for tensor in inner.initializer:
            if prod(tensor.dims) <= _MANY and is_inside(tensor):
                found[tensor.name] = numpy_helper.to_array(tensor)
    return found


def is_inside(tensor: TensorProto) -> bool:
    """Whether a tensor's data is in the model, not in a file beside it."""
    return bool(tensor.data_location != TensorProto.EXTERNAL)
