"""Constants of one value, made where they are read instead of being kept in the file.

The runtime computes beforehand what constants decide, so a training step that adds rows to a field
of zeros gets the field as a weight: mapped by each run, and as large on disk. Made by the run,
it lies in the arena for one step, where others have made room:

    ScatterElements(zeros, ...)  ->  ScatterElements(ConstantOfShape(shape), ...)
"""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.operators import operator
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.onnx_io.graph_editor import FreshNames, replace_nodes
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import captures
from memplan_cli.onnx_io.types import dtype_name
from memplan_cli.onnx_io.weights.tensor_data import read_tensor
from memplan_cli.onnx_io.writing.columns import widest_of, width

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

LEAST = 1 << 16
"""Bytes of a constant that is worth a node."""

_OPSET = 9
"""The first with ``ConstantOfShape``."""

_KINDS = frozenset(
    {"float16", "float32", "float64", "bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Element types that the operator has had from the first."""

_AT_A_TIME = 1 << 18
"""Elements that are looked at before the next ones are read."""


def make_fills(
    model: ModelProto, folder: Path, made: Mapping[str, int]
) -> dict[str, TensorProto]:
    """Replace large constants of one value by nodes that make them, in a model in place.

    One is replaced where its readers, at the top of the model, only write over copies of it,
    and where none of these steps gets wider than the widest of all is.

    Args:
        model: its large weights lie in a folder.
        folder: that one.
        made: bytes of values, as far as they are known.

    Returns:
        The new values, and the constants that they are.
    """
    graph = model.graph
    if standard_opset(model) < _OPSET:
        return {}
    large = {tensor.name: tensor for tensor in graph.initializer if _size(tensor) >= LEAST}
    readers = _overwriting(graph, large)
    widest = widest_of(model, made)
    room = {
        id(node): widest - width(node, made) if node.output[0] in made else 0
        for found in readers.values()
        for node in found
    }
    values: dict[str, NDArray[Any]] = {}
    for name, found in readers.items():
        # A step may read it twice, and others besides.
        needed = {key: n * _size(large[name]) for key, n in Counter(map(id, found)).items()}
        if all(size <= room[key] for key, size in needed.items()):
            value = _only_value(read_tensor(large[name], folder))
            if value is not None:
                values[name] = value
                room |= {key: room[key] - size for key, size in needed.items()}
    return _replaced(model, large, values) if values else {}


def _overwriting(
    graph: GraphProto, large: Mapping[str, TensorProto]
) -> dict[str, list[NodeProto]]:
    """Return the readers of constants that all of their readers only write over copies of."""
    found: dict[str, list[NodeProto]] = {}
    others = {value.name for value in chain(graph.input, graph.output)}
    for node in graph.node:
        others.update(captures(node))
        taken = operator(node).in_place
        for position, name in enumerate(node.input):
            if name in large and position in taken:
                found.setdefault(name, []).append(node)
            else:
                others.add(name)
    return {name: nodes for name, nodes in found.items() if name not in others}


def _size(tensor: TensorProto) -> int:
    kind = dtype_name(tensor.data_type)
    return math.prod(tensor.dims) * BITS[kind] // 8 if kind in _KINDS else 0


def _only_value(values: NDArray[Any]) -> NDArray[Any] | None:
    """Return the value that all elements are to the bit, as one element; None where they differ."""
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(f"u{flat.dtype.itemsize}")
    for start in range(0, bits.size, _AT_A_TIME):
        if (bits[start : start + _AT_A_TIME] != bits[0]).any():
            return None
    return np.array(flat[:1])


def _replaced(
    model: ModelProto, large: Mapping[str, TensorProto], values: Mapping[str, NDArray[Any]]
) -> dict[str, TensorProto]:
    """Put a node that makes each constant before each of its readers."""
    from onnx import numpy_helper

    graph, fresh, made = model.graph, FreshNames.of(model).fresh, {}
    shapes = {name: fresh(f"{name}/shape") for name in values}
    nodes: list[NodeProto] = []
    for node in graph.node:
        copy = deepcopy(node)
        for position, name in enumerate(node.input):
            if name in values:
                filled = copy.input[position] = fresh(f"{name}/filled")
                nodes.append(_fill(shapes[name], filled, values[name]))
                made[filled] = large[name]
        nodes.append(copy)
    constants = [
        numpy_helper.from_array(np.array(large[name].dims, np.int64), shape)
        for name, shape in shapes.items()
    ]
    constants += [tensor for tensor in graph.initializer if tensor.name not in values]
    constants = list(map(deepcopy, constants))
    made = {name: deepcopy(tensor) for name, tensor in made.items()}
    replace_nodes(graph, nodes)
    del graph.initializer[:]
    graph.initializer.extend(constants)
    return made


def _fill(shape: str, filled: str, value: NDArray[Any]) -> NodeProto:
    from onnx import helper, numpy_helper

    one = numpy_helper.from_array(value)
    return helper.make_node("ConstantOfShape", [shape], [filled], name=filled, value=one)
