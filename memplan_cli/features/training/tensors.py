"""Element types, shapes and constant values of a model's tensors, as far as they can be known."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from memplan_cli.core.operators import CONTROL_FLOW
from memplan_cli.onnx_io.graph_editor import replace_nodes
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.infer import infer
from memplan_cli.onnx_io.shapes.interpret import interpret
from memplan_cli.onnx_io.shapes.lattice import shape_in
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

_MAX_CONSTANT_ELEMENTS = 4096
"""Larger constants are weights; no shape and no rule depends on their values."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What is known of a tensor.

    Attributes:
        dtype: element type as a number of `TensorProto.DataType`; 0: unknown.
        shape: dims, each a number, a symbol or None; None: unknown rank.
    """

    dtype: int
    shape: Shape | None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape if all its dims are numbers, else None."""
        if self.shape is None:
            return None
        numbers = tuple(dim for dim in self.shape if isinstance(dim, int))
        return numbers if len(numbers) == len(self.shape) else None


UNKNOWN = Tensor(TensorProto.UNDEFINED, None)


def tensor_of(value_type: TypeProto) -> Tensor:
    """Return dtype and shape of a tensor type; `UNKNOWN` for sequences, maps and optionals."""
    if not value_type.HasField("tensor_type"):
        return UNKNOWN
    return Tensor(value_type.tensor_type.elem_type, shape_in(value_type))


def infer_tensors(model: ModelProto) -> dict[str, Tensor]:
    """Return the inferred types of all tensors of a model and its subgraphs, by name."""
    inferred, _ = infer(model, Bindings())
    return _tensors_of(inferred)


def _tensors_of(model: ModelProto) -> dict[str, Tensor]:
    """Return the declared types of all tensors of a model and its subgraphs, by name."""
    tensors: dict[str, Tensor] = {}
    for graph in graphs(model.graph):
        for weight in graph.initializer:
            tensors[weight.name] = Tensor(weight.data_type, tuple(weight.dims))
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = tensor_of(value.type)
            # A tensor may be listed twice; an entry without a shape replaces none that has one.
            if value.name not in tensors or tensor.shape is not None:
                tensors[value.name] = tensor
    return tensors


def constant_values(graph: GraphProto) -> dict[str, Array]:
    """Return the values of a graph's small initializers, by name."""
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if prod(tensor.dims) <= _MAX_CONSTANT_ELEMENTS and is_stored_in_model(tensor)
    }


def is_stored_in_model(tensor: TensorProto) -> bool:
    """Whether a tensor's data is in the model itself, not in an external file."""
    return bool(tensor.data_location != TensorProto.EXTERNAL)


_FOLDED_TYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})


def fold_shapes(model: ModelProto) -> dict[str, Tensor]:
    """Replace nodes that compute integers from known values by initializers, in place.

    Exported models and function bodies compute the target of a Reshape by Shape, Gather and Concat. Gradient
    rules need such operands as constants. Returns the types of all tensors after that, by name.
    """
    inferred, _ = infer(model, Bindings())
    tensors = _tensors_of(inferred)
    candidates = [
        node.output[0]
        for node in model.graph.node
        if len(node.output) == 1
        and node.op_type not in CONTROL_FLOW
        and tensors.get(node.output[0], UNKNOWN).dtype in _FOLDED_TYPES
    ]
    values = interpret(inferred, candidates).values if candidates else {}  # of small tensors
    constants = {
        name: values[name].array
        for name in candidates
        if name in values and values[name].is_known
    }
    if not constants:
        return tensors
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    nodes = [node for node in model.graph.node if node.output[0] not in constants]
    replace_nodes(model.graph, nodes)
    # Inferred again: where the target of a Reshape is constant now, the shape of its result is known.
    return infer_tensors(model)
