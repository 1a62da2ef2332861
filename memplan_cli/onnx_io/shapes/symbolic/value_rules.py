"""The values that nodes give, by families of operators.

What is wholly known is evaluated by ONNX's reference evaluator; elements that are moved keep
what they are; arithmetic on expressions is that of `elements`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.operators import CONTROL_FLOW, Family, operator
from memplan_cli.onnx_io.constants import constant_tensor
from memplan_cli.onnx_io.reference import try_evaluate_node
from memplan_cli.onnx_io.shapes.symbolic.elements import (
    chosen,
    divide,
    divide_whole,
    is_true,
    modulo,
    truncated,
)
from memplan_cli.onnx_io.shapes.symbolic.evaluate import moved
from memplan_cli.onnx_io.shapes.symbolic.families import (
    BINARY,
    BY_DATA,
    MOVES,
    REDUCED,
    UNARY,
)
from memplan_cli.onnx_io.shapes.symbolic.values import (
    BOOL,
    EXPRESSED,
    INT64,
    KINDS,
    MOST,
    WHOLE,
    Value,
    int_attribute,
    ints_attribute,
    product,
    value_of_tensor,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from memplan_cli.core.program import Dim
    from memplan_cli.onnx_io.shapes.symbolic.elements import Element
    from memplan_cli.onnx_io.shapes.symbolic.values import Array, Values


def follow(values: Values, node: NodeProto) -> None:
    """Add the small values that a node gives to those that are known."""
    try:
        results = _results(values, node)
    except (ValueError, IndexError, OverflowError, ZeroDivisionError):
        return  # a node that is wrong, or an expression longer than anybody would write
    for name, value in zip(node.output, results, strict=False):
        if name and value is not None and value.array.size <= MOST:
            values.found[name] = value.settled()


Results = Sequence["Value | None"]


def _results(values: Values, node: NodeProto) -> Results:
    rule = _SOURCES.get(node.op_type)
    if rule is not None:
        return (rule(values, node),)
    given = [values.of(name) if name else None for name in node.input]
    wanted = [value for name, value in zip(node.input, given, strict=True) if name]
    if node.op_type in CONTROL_FLOW or operator(node).is_random:
        return ()
    if all(value is not None and value.is_known for value in wanted):
        return _evaluated(values, node, given)
    if node.op_type in _ON_ELEMENTS:
        return (_ON_ELEMENTS[node.op_type](values, node),)
    if node.op_type in MOVES:
        return _moved(values, node)
    return ()


def _evaluated(values: Values, node: NodeProto, given: Sequence[Value | None]) -> Results:
    """Evaluate a node on numbers, where its result is known to be small."""
    shape = values.shape(node.output[0]) if node.output else None
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    small = shape is not None and len(sizes) == len(shape) and math.prod(sizes) <= MOST
    if not small and node.op_type not in BY_DATA:
        return ()
    arrays = [None if value is None else value.array for value in given]
    results = try_evaluate_node(node, arrays, {"": values.opset}) or ()
    return [
        Value(array, KINDS.get(array.dtype, values.kind(name)))
        for name, array in zip(node.output, results, strict=False)
    ]


def _moved(values: Values, node: NodeProto) -> Results:
    places = operator(node).moves
    arrays: list[Array | None] = []
    kind = 0
    for at, name in enumerate(node.input):
        data = at in places
        value = None if not name else values.operand(name) if data else values.of(name)
        if name and (value is None or not (data or value.is_known)):
            return ()
        if value is None:
            arrays.append(None)
            continue
        kind = kind or value.kind
        arrays.append(value.objects() if data else value.array)
    results = moved(node, arrays, values.opset) or ()
    return [Value(array, kind) for array in results]


def _operands(values: Values, node: NodeProto) -> list[Value] | None:
    found = [values.operand(name) for name in node.input]
    known = [value for value in found if value is not None and value.kind in EXPRESSED]
    return known if known and len(known) == len(found) else None


def _mapped(function: Callable[..., Element], *values: Value) -> Array:
    """Apply a function to elements.

    Raises:
        ValueError: the values do not fit together, or have more elements than shapes have.
    """
    arrays = [value.objects() for value in values]
    made = np.empty(np.broadcast_shapes(*(array.shape for array in arrays)), dtype=object)
    if made.size > MOST:
        raise ValueError("more elements than a shape has")
    made[...] = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return made


def _unary(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    if operands is None:
        return None
    return Value(_mapped(UNARY[node.op_type], operands[0]), operands[0].kind)


def _binary(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    if operands is None:
        return None
    function = BINARY[node.op_type]
    is_truth = operator(node).family in (Family.COMPARISON, Family.LOGIC)
    kind = BOOL if is_truth else operands[0].kind
    found = reduce(
        lambda a, b: Value(_mapped(function, a, b), kind), operands[1:], operands[0]
    )
    return Value(found.array, kind)


def _divided(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    if operands is None:
        return None
    kind = operands[0].kind
    return Value(_mapped(divide_whole if kind in WHOLE else divide, *operands), kind)


def _remainder(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    if operands is None or operands[0].kind not in WHOLE:
        return None
    return Value(_mapped(modulo, *operands), operands[0].kind)


def _where(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    return None if operands is None else Value(_mapped(chosen, *operands), operands[1].kind)


def _cast(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    to = int_attribute(node, "to", 0)
    if operands is None or to not in EXPRESSED:
        return None
    value = operands[0]
    if to == BOOL:
        return Value(_mapped(is_true, value), to)
    return Value(_mapped(truncated, value) if to in WHOLE else value.objects(), to)


def _reduced(values: Values, node: NodeProto) -> Value | None:
    value = values.operand(node.input[0])
    axes = values.numbers(node, 1, ints_attribute(node, "axes", ()))
    if value is None or axes is None or value.kind not in WHOLE:
        return None
    if not axes and int_attribute(node, "noop_with_empty_axes", 0):
        return value
    function, array = REDUCED[node.op_type], value.objects()
    places = {axis % array.ndim for axis in axes} if axes else set(range(array.ndim))
    keeps = int_attribute(node, "keepdims", 1)
    for axis in sorted(places, reverse=True):
        if not array.shape[axis]:
            return None
        slices = [Value(part, value.kind) for part in np.split(array, array.shape[axis], axis)]
        whole = reduce(lambda a, b: Value(_mapped(function, a, b), value.kind), slices)
        array = whole.array if keeps else whole.array.squeeze(axis)
    return Value(array, value.kind)


def _constant(_: Values, node: NodeProto) -> Value | None:
    tensor = constant_tensor(node)
    return None if tensor is None else value_of_tensor(tensor)


def _shape(values: Values, node: NodeProto) -> Value | None:
    shape = values.shape(node.input[0])
    if shape is None:
        return None
    start, end = int_attribute(node, "start", 0), int_attribute(node, "end", len(shape))
    return _vector(shape[slice(start, end)])


def _vector(dims: Sequence[Dim]) -> Value:
    array = np.empty(len(dims), dtype=object)
    array[:] = dims
    return Value(array, INT64)


def _size(values: Values, node: NodeProto) -> Value | None:
    shape = values.shape(node.input[0])
    if shape is None:
        return None
    return Value(_vector([product(shape)]).array.reshape(()), INT64)


_SOURCES: Mapping[str, Callable[[Values, NodeProto], Value | None]] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
}
"""Values that come from no values: of constants and of shapes."""

_ON_ELEMENTS: Mapping[str, Callable[[Values, NodeProto], Value | None]] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(REDUCED, _reduced),
    "Cast": _cast,
    "Div": _divided,
    "Mod": _remainder,
    "Where": _where,
}
"""Rules for elements that are expressions; what is known of all is evaluated before."""
