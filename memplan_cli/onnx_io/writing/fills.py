"""Constants of one value, computed by the run instead of being stored in the file.

ONNX Runtime folds constants when it optimizes a graph. A training step that scatters rows into a tensor
of zeros then has that tensor as a weight: as large on disk, and mapped by each run. Computed by the run,
it lies in the arena for one step only:

    ScatterElements(zeros, ...)  ->  ScatterElements(ConstantOfShape(shape), ...)
"""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.operators import operator
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.onnx_io.graph_editor import fresh_names, replace_nodes
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
"""Bytes from which a constant is worth a node."""

_FIRST_OPSET = 9
"""The first opset with ``ConstantOfShape``."""

_DTYPES = frozenset(
    {"float16", "float32", "float64", "bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Dtypes that ``ConstantOfShape`` supports in every opset."""


def make_fills(
    model: ModelProto, folder: Path, value_bytes: Mapping[str, int]
) -> dict[str, TensorProto]:
    """Replace large constants whose elements are all equal by ConstantOfShape nodes, one for each read, in place.

    A constant is replaced if all of its consumers are nodes of the main graph whose operator can write its
    result over this operand. An operator cannot overwrite a constant, so a run copies it first. The result of
    a ConstantOfShape, called a fill, is overwritten without a copy.

    No node gets wider (`width`: the bytes of its operands and results) than the widest one is. Constants are
    chosen in the order in which they are read, as long as no consumer gets too wide.

    Args:
        model: The model.
        folder: Where its external data lies.
        value_bytes: Bytes of results of nodes, as far as they are known; constants are not among them.

    Returns:
        The name of each fill, and the constant that it replaces. A constant has a fill for each read.
    """
    graph = model.graph
    if standard_opset(model) < _FIRST_OPSET:
        return {}
    large = {tensor.name: tensor for tensor in graph.initializer if _size(tensor) >= LEAST}
    consumers = _in_place_consumers(graph, large)
    widest = widest_of(model, value_bytes)
    fill_values: dict[str, NDArray[Any]] = {}
    for name, nodes in consumers.items():
        # The operands that would be fills: this constant, and those chosen before.
        filled_bytes = {filled: _size(large[filled]) for filled in (name, *fill_values)}
        if all(_has_room(node, filled_bytes, value_bytes, widest) for node in nodes):
            value = _common_value(read_tensor(large[name], folder))
            if value is not None:
                fill_values[name] = value
    return _insert_fills(model, large, fill_values) if fill_values else {}


def _has_room(
    node: NodeProto,
    filled_bytes: Mapping[str, int],
    value_bytes: Mapping[str, int],
    widest: int,
) -> bool:
    """Return whether a node needs at most ``widest`` bytes while it runs, after some constants are replaced.

    Each read of a constant in ``filled_bytes`` is replaced by a ConstantOfShape, whose result is one more tensor
    in memory. ``value_bytes`` has the node's other operands and its results, but no constants (`width`).
    """
    added_bytes = sum(filled_bytes.get(name, 0) for name in node.input)
    is_known = node.output[0] in value_bytes  # else the result may have any size
    return is_known and width(node, value_bytes) + added_bytes <= widest


def _in_place_consumers(
    graph: GraphProto, constants: Mapping[str, TensorProto]
) -> dict[str, list[NodeProto]]:
    """Return the consumers of each constant, if the operators of all of them can overwrite the operand.

    A constant with another consumer, such as a subgraph or the graph's output, is left out. A node occurs once for
    each input at which it reads the constant.
    """
    consumers: dict[str, list[NodeProto]] = {}
    other_reads = {value.name for value in chain(graph.input, graph.output)}
    for node in graph.node:
        other_reads.update(captures(node))
        in_place_positions = operator(node).in_place
        for position, name in enumerate(node.input):
            if name in constants and position in in_place_positions:
                consumers.setdefault(name, []).append(node)
            else:
                other_reads.add(name)
    return {name: nodes for name, nodes in consumers.items() if name not in other_reads}


def _size(tensor: TensorProto) -> int:
    """Return the bytes of a tensor; 0 if ConstantOfShape does not support its dtype."""
    dtype = dtype_name(tensor.data_type)
    return math.prod(tensor.dims) * BITS[dtype] // 8 if dtype in _DTYPES else 0


def _common_value(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return the first element, if all elements have the same bits; None otherwise.

    ``array`` has elements, of one of `_DTYPES`. Bits are compared, because 0.0 equals -0.0, and NaN differs
    from itself.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(f"u{flat.dtype.itemsize}")  # as unsigned ints of 1 to 8 bytes
    return np.array(flat[:1]) if (bits == bits[0]).all() else None


def _insert_fills(
    model: ModelProto, constants: Mapping[str, TensorProto], values: Mapping[str, NDArray[Any]]
) -> dict[str, TensorProto]:
    """Insert a ConstantOfShape before each read of some constants, and remove these constants, in place.

    Each read gets a result of its own, which its node may overwrite. Only nodes of the main graph read these
    constants (`_in_place_consumers`).

    Args:
        model: The model.
        constants: Its large constants.
        values: By name, the common element of the constants to replace.

    Returns:
        The names of these results, and copies of the constants that they replace.
    """
    from onnx import numpy_helper

    graph, fresh = model.graph, fresh_names(model).fresh
    replaced: dict[str, TensorProto] = {}
    shapes = {name: fresh(f"{name}/shape") for name in values}
    nodes: list[NodeProto] = []
    for node in graph.node:
        copy = deepcopy(node)
        for position, name in enumerate(node.input):
            if name in values:
                filled = copy.input[position] = fresh(f"{name}/filled")
                nodes.append(_fill_node(shapes[name], filled, values[name]))
                replaced[filled] = deepcopy(constants[name])
        nodes.append(copy)
    shape_tensors = [
        numpy_helper.from_array(np.array(constants[name].dims, np.int64), shape)
        for name, shape in shapes.items()
    ]
    kept = [deepcopy(tensor) for tensor in graph.initializer if tensor.name not in values]
    replace_nodes(graph, nodes)
    del graph.initializer[:]
    graph.initializer.extend([*shape_tensors, *kept])
    return replaced


def _fill_node(shape: str, result: str, value: NDArray[Any]) -> NodeProto:
    """Return a ConstantOfShape that fills a shape, a value of the graph, with one element."""
    from onnx import helper, numpy_helper

    element = numpy_helper.from_array(value)
    return helper.make_node("ConstantOfShape", [shape], [result], name=result, value=element)
