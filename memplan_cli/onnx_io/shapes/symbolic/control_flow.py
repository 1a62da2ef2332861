"""Types and small values of the outputs of If, Loop and Scan, by interpreting their subgraphs.

A branch that is known to be taken is interpreted alone; of two, what they have in common is known. A
Loop or Scan with a known number of iterations is interpreted iteration by iteration, and another
Loop until an iteration changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.lattice import (
    shape_in,
    slice_of,
    stack_of,
    widened,
    with_shape,
)
from memplan_cli.onnx_io.shapes.scan_signature import ScanSignature
from memplan_cli.onnx_io.shapes.symbolic.values import BOOL, INT64, Value
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TypeProto

    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.symbolic.elements import Element
    from memplan_cli.onnx_io.shapes.symbolic.values import Values

MAX_ITERATIONS = 64
"""Iterations of a Loop or Scan that are interpreted one by one."""

_MAX_ROUNDS = 8
"""Rounds after which loop states that still change are unknown."""


class KnownTensor(NamedTuple):
    """What is known of a tensor.

    Attributes:
        type_proto: its type, which may be empty.
        value: its elements if it is small; None if unknown.
    """

    type_proto: TypeProto
    value: Value | None = None


InterpretGraph = Callable[["GraphProto", Sequence[KnownTensor]], list[KnownTensor]]
"""From a subgraph and its inputs to its outputs."""


def tensor_type(elem_type: int, shape: Shape | None) -> TypeProto:
    """Return a tensor's `TypeProto` from a ``TensorProto.DataType`` number and a shape."""
    type_proto: TypeProto = messages().TypeProto()
    type_proto.tensor_type.elem_type = elem_type
    return with_shape(type_proto, shape)


def common(one: KnownTensor, other: KnownTensor) -> KnownTensor:
    """Return what holds for both of two tensors: equal dims and equal elements are kept."""
    type_proto = widened(one.type_proto, other.type_proto)
    a, b = one.value, other.value
    if a is None or b is None or (a.elem_type, a.array.shape) != (b.elem_type, b.array.shape):
        return KnownTensor(type_proto)
    array = np.empty(a.array.shape, dtype=object)  # `frompyfunc` gives no array for rank 0
    array[...] = np.frompyfunc(_equal_or_unknown, 2, 1)(a.element_array(), b.element_array())
    return KnownTensor(type_proto, Value(array, a.elem_type).normalized())


def _equal_or_unknown(one: Element, other: Element) -> Element:
    """Return the element that both are, None (unknown) if they differ."""
    return one if one == other else None


def _known_tensor(values: Values, name: str) -> KnownTensor:
    """Return what is known of a value by name; an empty type if nothing is."""
    type_proto = values.types.get(name)
    empty: TypeProto = messages().TypeProto()
    return KnownTensor(empty if type_proto is None else type_proto, values.value_of(name))


def _known_scalar(value: Value | None) -> int | None:
    """Return a one-element value as an int; None if it is not a known number."""
    if value is None or not value.is_known or value.array.size != 1:
        return None
    return int(value.array.reshape(())[()])


def _if(values: Values, node: NodeProto, interpret_graph: InterpretGraph) -> list[KnownTensor]:
    """Interpret the branch that is taken, or both; return what their outputs have in common."""
    condition = _known_scalar(values.input_value(node, 0))
    taken = "then_branch" if condition else "else_branch"
    branches = [graph for name, graph in subgraphs(node) if condition is None or name == taken]
    results, *others = [interpret_graph(branch, ()) for branch in branches]
    for other in others:
        results = [common(a, b) for a, b in zip(results, other, strict=False)]
    return results


def _loop(
    values: Values, node: NodeProto, interpret_graph: InterpretGraph
) -> list[KnownTensor]:
    """Interpret a Loop iteration by iteration, or until nothing changes if it cannot be counted.

    A Loop can be counted if its trip count (or the lack of one) and all its conditions are known, and it
    has at most `MAX_ITERATIONS` iterations.

    Raises:
        ValueError: the node is invalid, or its subgraphs run for too long.
    """
    ((_, body),) = subgraphs(node)
    initial = [_known_tensor(values, name) for name in node.input[2:]]
    # Both inputs exist in a valid node, but their names may be empty.
    has_trip_count, has_condition = (bool(name) for name in node.input[:2])
    trip_count = _known_scalar(values.input_value(node, 0)) if has_trip_count else None
    condition = _known_scalar(values.input_value(node, 1)) if has_condition else 1
    if condition is None or (has_trip_count and trip_count is None):
        return _fixpoint(body, initial, interpret_graph)
    state, iterations = initial, 0
    stacked_rows: list[list[KnownTensor]] = []
    while condition and (trip_count is None or iterations < trip_count):
        if iterations == MAX_ITERATIONS:
            return _fixpoint(body, initial, interpret_graph)
        # The condition is true wherever the body is run.
        leading = [_scalar(iterations, INT64), _scalar(1, BOOL)]
        next_condition, *outputs = interpret_graph(body, [*leading, *state])
        condition = _known_scalar(next_condition.value)
        if condition is None:
            return _fixpoint(body, initial, interpret_graph)
        state, iterations = outputs[: len(state)], iterations + 1
        stacked_rows.append(outputs[len(state) :])
    if not stacked_rows:  # stacked outputs without iterations have no known type
        return state
    columns = zip(*stacked_rows, strict=True)
    return [*state, *(_stacked(column, 0) for column in columns)]


def _scalar(number: Element, elem_type: int) -> KnownTensor:
    """Return a tensor of rank 0 with this element; None stands for an unknown one."""
    array = np.empty((), dtype=object)
    array[()] = number
    return KnownTensor(tensor_type(elem_type, ()), Value(array, elem_type).normalized())


def _fixpoint(
    body: GraphProto, initial: list[KnownTensor], interpret_graph: InterpretGraph
) -> list[KnownTensor]:
    """Return the outputs of a Loop with any number of iterations: what no iteration changes.

    What an iteration changes in the states is unknown in the next round, until nothing changes. Empty if
    the states still change after ``_MAX_ROUNDS`` rounds.
    """
    # The iteration number is any; the condition is true wherever the body is run.
    leading = [_scalar(None, INT64), _scalar(1, BOOL)]
    state = initial
    for _ in range(_MAX_ROUNDS):
        _, *outputs = interpret_graph(body, [*leading, *state])
        next_state = [common(a, b) for a, b in zip(state, outputs, strict=False)]
        if all(map(_is_same, next_state, state)):
            rows = outputs[len(state) :]
            stacked = [KnownTensor(stack_of(row.type_proto, 0, None)) for row in rows]
            return [*state, *stacked]
        state = next_state
    return []


def _is_same(one: KnownTensor, other: KnownTensor) -> bool:
    """Whether two tensors are known to the same extent and are equal."""
    if one.type_proto != other.type_proto:
        return False
    if one.value is None or other.value is None:
        return one.value is other.value
    return one.value.elements == other.value.elements


def _stacked(rows: Sequence[KnownTensor], axis: int) -> KnownTensor:
    """Return the tensors of all iterations, stacked along a new axis.

    Its value is unknown if that of a tensor is, or if their shapes differ.
    """
    type_proto = rows[0].type_proto
    for row in rows[1:]:
        type_proto = widened(type_proto, row.type_proto)
    type_proto = stack_of(type_proto, axis, len(rows))
    row_values = [row.value for row in rows if row.value is not None]
    if len(row_values) < len(rows) or len({value.array.shape for value in row_values}) > 1:
        return KnownTensor(type_proto)
    array = np.stack([value.element_array() for value in row_values], axis)
    return KnownTensor(type_proto, Value(array, row_values[0].elem_type).normalized())


def _scan(
    values: Values, node: NodeProto, interpret_graph: InterpretGraph
) -> list[KnownTensor]:
    """Interpret a Scan iteration by iteration.

    Empty if its length is unknown, 0 or above `MAX_ITERATIONS`, or if an input or output runs backwards.
    """
    ((_, body),) = subgraphs(node)
    signature = ScanSignature.of_node(node)
    states = signature.states
    scanned = [_known_tensor(values, name) for name in node.input[states:]]
    length = signature.length(_fixed_shape(tensor) for tensor in scanned)
    if signature.is_reversed or not isinstance(length, int):
        return []
    if not 0 < length <= MAX_ITERATIONS:
        return []
    state = [_known_tensor(values, name) for name in node.input[:states]]
    rows: list[list[KnownTensor]] = []
    for iteration in range(length):
        slices = [
            _slice(tensor, axis, iteration)
            for tensor, axis in zip(scanned, signature.input_axes, strict=True)
        ]
        outputs = interpret_graph(body, [*state, *slices])
        state = outputs[:states]
        rows.append(outputs[states:])
    columns = zip(*rows, strict=True)
    stacked = [
        _stacked(column, axis)
        for column, axis in zip(columns, signature.output_axes, strict=False)
    ]
    return [*state, *stacked]


def _fixed_shape(tensor: KnownTensor) -> Shape | None:
    """Return a tensor's shape with None for dims that are not numbers."""
    if tensor.value is not None:
        return tensor.value.array.shape
    shape = shape_in(tensor.type_proto)
    return shape and tuple(dim if isinstance(dim, int) else None for dim in shape)


def _slice(tensor: KnownTensor, axis: int, index: int) -> KnownTensor:
    """Return ``tensor[index]`` along an axis."""
    type_proto = slice_of(tensor.type_proto, axis)
    if tensor.value is None:
        return KnownTensor(type_proto)
    rows = np.moveaxis(tensor.value.array, axis, 0)
    return KnownTensor(
        type_proto, Value(rows[index, ...], tensor.value.elem_type).normalized()
    )


CONTROL_FLOW_RULES: Mapping[
    str, Callable[[Values, NodeProto, InterpretGraph], list[KnownTensor]]
] = {"If": _if, "Loop": _loop, "Scan": _scan}
"""From the values before a control-flow node to its outputs; an empty list if they are unknown."""
