"""Small integers that a model computes from shapes, computed beforehand.

A definition by a function, or an export without shapes, reshapes to what Shape, Gather and
Concat nodes give. Evaluated here, they let shape inference see through.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, numpy_helper

from memplan_cli.core.operators import CONTROL_FLOW, Family, is_random, operator
from memplan_cli.features.training.forward.tensors import (
    UNKNOWN,
    constant_values,
    infer_tensors,
)
from memplan_cli.onnx_io.graph_editor import replace_nodes
from memplan_cli.onnx_io.interface import opset_versions
from memplan_cli.onnx_io.reference import try_evaluate_node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto, NodeProto

    from memplan_cli.features.training.forward.tensors import Array, Tensor

_WHOLE = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})

_ROUNDS = 8
"""A round makes shapes known, from which the next computes others."""

_MANY = 4096
"""Elements; what is larger stays as it is."""

_GROWING = frozenset({Family.GENERATOR, Family.PADDING, Family.REPETITION, Family.RESIZING})
"""A few bytes in, any number of bytes out: computed only if inference knows how many."""


def fold_shapes(model: ModelProto) -> None:
    """Replace, in place, integer nodes whose inputs are known by their results."""
    for _ in range(_ROUNDS):
        tensors, values = infer_tensors(model), constant_values(model.graph)
        kept = []
        for node in model.graph.node:
            value = _value(node, tensors, values, model)
            if value is None:
                kept.append(node)
                continue
            values[node.output[0]] = value
            tensor = numpy_helper.from_array(value, node.output[0])
            model.graph.initializer.append(tensor)
        if len(kept) == len(model.graph.node):
            return
        replace_nodes(model.graph, kept)


def _value(
    node: NodeProto,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Array],
    model: ModelProto,
) -> Array | None:
    is_computed = not is_random(node) and node.op_type not in CONTROL_FLOW
    if len(node.output) != 1 or node.domain or not is_computed:
        return None
    if node.op_type == "Shape":
        sizes = tensors.get(node.input[0], UNKNOWN).sizes
        ends = {a.name: a.i for a in node.attribute}
        if sizes is None:
            return None
        return np.array(sizes[slice(ends.get("start"), ends.get("end"))], np.int64)
    if not _is_small_and_whole(node, tensors, values):
        return None
    inputs = [values.get(name) for name in node.input]
    results = try_evaluate_node(node, inputs, opset_versions(model))
    return results[0] if results and results[0].size <= _MANY else None


def _is_small_and_whole(
    node: NodeProto, tensors: Mapping[str, Tensor], values: Mapping[str, Array]
) -> bool:
    """Whether a node makes a few whole numbers of known ones."""
    made = tensors.get(node.output[0], UNKNOWN)
    if made.dtype not in _WHOLE or not all(name in values for name in node.input if name):
        return False
    if made.sizes is None:
        return operator(node).family not in _GROWING
    return prod(made.sizes) <= _MANY
