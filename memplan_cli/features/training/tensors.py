"""Element types, shapes and constant values of a model's tensors, as far as they can be known."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from memplan_cli.core.operators import (
    CONTROL_FLOW,
    STANDARD_DOMAINS,
    Family,
    is_random,
    operator,
)
from memplan_cli.onnx_io.graph_editor import replace_nodes
from memplan_cli.onnx_io.interface import opset_versions
from memplan_cli.onnx_io.reference import try_evaluate_node
from memplan_cli.onnx_io.shapes.lattice import shape_in
from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from onnx import NodeProto, TypeProto

    from memplan_cli.core.program import Shape

    Array = NDArray[Any]

FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
)
"""Element types that a gradient can have."""

_MAX_CONSTANT_ELEMENTS = 4096
"""Larger constants are weights; no shape and no rule depends on their values."""

_LIKE_THEIR_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators with one output, of the shape of their first input, which onnx 1.23 does not infer."""


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
    light = _without_large_weights(model)  # shapes do not depend on their values
    for node in (node for graph in graphs(light.graph) for node in graph.node):
        # In this copy, an Identity stands for each standard operator that inference does not know.
        if node.op_type in _LIKE_THEIR_INPUT and node.domain in STANDARD_DOMAINS:
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    inferred = infer_shapes(light.SerializeToString())
    tensors: dict[str, Tensor] = {}
    for graph in graphs(inferred.graph):
        for weight in graph.initializer:
            tensors[weight.name] = Tensor(weight.data_type, tuple(weight.dims))
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = tensor_of(value.type)
            # A tensor may be listed twice; an entry without a shape replaces none that has one.
            if value.name not in tensors or tensor.shape is not None:
                tensors[value.name] = tensor
    return tensors


def _without_large_weights(model: ModelProto) -> ModelProto:
    """Return a copy of a model in which large weights are graph inputs.

    A large weight that is a graph input already only loses its values: the shape of the input stays,
    which may have symbols because a caller may feed another tensor.
    """
    light = deepcopy(model)
    inputs = {value.name for value in light.graph.input}
    small_weights = []
    for weight in light.graph.initializer:
        if prod(weight.dims) <= _MAX_CONSTANT_ELEMENTS:
            small_weights.append(weight)
        elif weight.name not in inputs:
            light.graph.input.append(
                helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
            )
    del light.graph.initializer[:]
    light.graph.initializer.extend(small_weights)
    return light


def constant_values(graph: GraphProto) -> dict[str, Array]:
    """Return the values of small initializers of a graph and its subgraphs, by name."""
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for inner in graphs(graph)
        for tensor in inner.initializer
        if prod(tensor.dims) <= _MAX_CONSTANT_ELEMENTS and is_stored_in_model(tensor)
    }


def is_stored_in_model(tensor: TensorProto) -> bool:
    """Whether a tensor's data is in the model itself, not in an external file."""
    return bool(tensor.data_location != TensorProto.EXTERNAL)


_FOLDED_TYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})

_MAX_FOLDING_ROUNDS = 8
"""Each round may make more shapes known, which the next one folds."""

_LARGER_THAN_INPUT = frozenset(
    {Family.GENERATOR, Family.PADDING, Family.REPETITION, Family.RESIZING}
)
"""Operators whose output may be huge for a few input bytes; folded only if its size is inferred."""


def fold_shapes(model: ModelProto) -> None:
    """Replace nodes that compute small integer tensors from known inputs by initializers, in place.

    Exported models and function bodies compute the target of a Reshape by Shape, Gather and
    Concat. Shape inference knows the result's shape only after these are folded.
    """
    for _ in range(_MAX_FOLDING_ROUNDS):
        tensors, values = infer_tensors(model), constant_values(model.graph)
        remaining = []
        for node in model.graph.node:
            value = _folded_value(node, tensors, values, model)
            if value is None:
                remaining.append(node)
                continue
            values[node.output[0]] = value
            model.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
        if len(remaining) == len(model.graph.node):
            return
        replace_nodes(model.graph, remaining)


def _folded_value(
    node: NodeProto,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Array],
    model: ModelProto,
) -> Array | None:
    """Return the value of a node's only output, None if it cannot or should not be folded."""
    if len(node.output) != 1 or node.domain:
        return None
    if is_random(node) or node.op_type in CONTROL_FLOW:
        return None
    if node.op_type == "Shape":  # needs the shape of its input, not the values
        sizes = tensors.get(node.input[0], UNKNOWN).sizes
        if sizes is None:
            return None
        bounds = {a.name: a.i for a in node.attribute}
        return np.array(sizes[slice(bounds.get("start"), bounds.get("end"))], np.int64)
    if not _is_foldable(node, tensors, values):
        return None
    inputs = [values.get(name) for name in node.input]
    results = try_evaluate_node(node, inputs, opset_versions(model))
    return results[0] if results and results[0].size <= _MAX_CONSTANT_ELEMENTS else None


def _is_foldable(
    node: NodeProto, tensors: Mapping[str, Tensor], values: Mapping[str, Array]
) -> bool:
    """Whether a node has known inputs only, and its output is a small tensor of integers."""
    output = tensors.get(node.output[0], UNKNOWN)
    if output.dtype not in _FOLDED_TYPES:
        return False
    if not all(name in values for name in node.input if name):
        return False
    if output.sizes is None:
        # The output is about as small as the inputs, which are constants of limited size.
        return operator(node).family not in _LARGER_THAN_INPUT
    return prod(output.sizes) <= _MAX_CONSTANT_ELEMENTS
