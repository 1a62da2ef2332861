"""Values of small constants of a model's top graph: axes, sizes, factors."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.program import VarId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import GraphProto, ModelProto, TensorProto

_MOST = 64
"""Elements up to which numbers say how an operator works; more is data."""


def small_constants(model: ModelProto) -> Mapping[VarId, tuple[int | float, ...]]:
    """Return the values of the small initializers and constants of the top graph.

    What a caller may replace, or what is kept in another file, is left out.
    """
    from onnx import numpy_helper

    found: dict[VarId, tuple[int | float, ...]] = {}
    given = {value.name for value in model.graph.input}
    for name, tensor in _tensors(model.graph):
        is_plain = tensor.data_type in _TYPES and tensor.data_location != tensor.EXTERNAL
        if name not in given and is_plain and prod(tensor.dims) <= _MOST:
            found[VarId(name)] = tuple(numpy_helper.to_array(tensor).ravel().tolist())
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS:
            for attribute in node.attribute:
                if attribute.name in ("value_int", "value_float"):
                    found[VarId(node.output[0])] = (attribute.i or attribute.f,)
                elif attribute.name in ("value_ints", "value_floats"):
                    found[VarId(node.output[0])] = (*attribute.ints, *attribute.floats)
    return found


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield node.output[0], attribute.t


_TYPES = frozenset({1, 6, 7, 11})
"""ONNX's numbers of float32, int32, int64 and float64."""
