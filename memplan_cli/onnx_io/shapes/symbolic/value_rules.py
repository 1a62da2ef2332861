"""The small values that nodes compute: shape arithmetic on numbers and on expressions of dims.

There are three kinds of rule. A node with known numbers is run by ONNX's reference evaluator. A node
that only moves elements (Gather, Concat, Slice) moves expressions in the same way. Arithmetic on
expressions is that of `elements`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.operators import CONTROL_FLOW, SHAPE_QUERIES, Family, names_of, operator
from memplan_cli.onnx_io.constants import constant_tensor
from memplan_cli.onnx_io.reference import try_evaluate_node
from memplan_cli.onnx_io.shapes.symbolic import elements
from memplan_cli.onnx_io.shapes.symbolic.values import (
    BOOL,
    ELEM_TYPES,
    EXPRESSED,
    INT64,
    INTEGERS,
    MAX_ELEMENTS,
    Value,
    int_attribute,
    product,
    value_of_tensor,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from memplan_cli.core.program import Dim
    from memplan_cli.onnx_io.shapes.symbolic.elements import Element
    from memplan_cli.onnx_io.shapes.symbolic.values import Array, Values

Results = Sequence["Value | None"]
"""Values of a node's outputs, in order; those left out are unknown."""

ValueRule = Callable[["Values", "NodeProto"], "Value | None"]
"""From the values before a node, and the node, to the value of its only output."""

UNARY: Mapping[str, Callable[[Element], Element]] = {
    "Ceil": elements.ceiling,
    "Floor": elements.floor,
    "Neg": elements.negative,
    "Not": elements.opposite,
}
"""The function of each operator on single elements."""

BINARY: Mapping[str, Callable[[Element, Element], Element]] = {
    "Add": elements.add,
    "Sub": elements.subtract,
    "Mul": elements.multiply,
    # Of any number of inputs.
    "Min": elements.smaller,
    "Max": elements.larger,
    "Equal": elements.equal,
}
"""The function of each operator on pairs of elements."""

MOVES = frozenset(names_of(lambda op: op.moves and op.family is not Family.SEQUENCE))
"""Operators whose outputs consist of elements of their inputs."""

SIZED_BY_DATA = frozenset(names_of(lambda op: op.size_from_data))
"""Operators whose output size depends on values: that of a NonZero is at most the input's times its rank."""

SHAPE_ARITHMETIC = frozenset(
    {
        *MOVES, *BINARY, *UNARY, *SHAPE_QUERIES,
        "Abs", "And", "Cast", "Constant", "ConstantOfShape", "Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
        "Mod", "Or", "Pow", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Sqrt", "Xor",
    }
)  # fmt: skip
"""Operators with which exporters compute shapes."""


def add_output_values(values: Values, node: NodeProto) -> None:
    """Add to ``values`` the small values that a node of the standard domain computes, as far as they are known."""
    try:
        results = _output_values(values, node)
    except (ValueError, IndexError, OverflowError, ZeroDivisionError):
        return  # an invalid node, or an expression that is too long
    for name, value in zip(node.output, results, strict=False):
        if name and value is not None and value.array.size <= MAX_ELEMENTS:
            values.known[name] = value.normalized()


def _output_values(values: Values, node: NodeProto) -> Results:
    """Return the values of the outputs of a node of the standard domain, by the first rule that applies.

    - Constant, Shape and Size make values from an attribute or a shape.
    - Control flow, which is interpreted elsewhere, and random operators have no values.
    - Nodes whose inputs are known numbers are evaluated.
    - Other elements, expressions among them, are calculated or moved.
    """
    if node.op_type in _SOURCES:
        return (_SOURCES[node.op_type](values, node),)
    if node.op_type in CONTROL_FLOW or operator(node).is_random:
        return ()
    inputs = [values.value_of(name) if name else None for name in node.input]
    present = [value for name, value in zip(node.input, inputs, strict=True) if name]
    if all(value is not None and value.is_known for value in present):
        return _evaluated(values, node, inputs)
    if node.op_type in _ON_EXPRESSIONS:
        return (_ON_EXPRESSIONS[node.op_type](values, node),)
    if node.op_type in MOVES:
        return _moved(values, node)
    return ()


def _evaluated(values: Values, node: NodeProto, inputs: Sequence[Value | None]) -> Results:
    """Return the outputs of a node whose inputs are known numbers; none if its first output may be large."""
    shape = values.shape(node.output[0]) if node.output else None
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    is_fixed = shape is not None and len(sizes) == len(shape)
    is_small = is_fixed and math.prod(sizes) <= MAX_ELEMENTS
    # An output of NonZero, Compress or Unique has an unknown size, but is at most the input, which is small, times
    # its rank. Range or Expand, which can enlarge, are not in `SIZED_BY_DATA`.
    if not is_small and node.op_type not in SIZED_BY_DATA:
        return ()
    arrays = [None if value is None else value.array for value in inputs]
    results = try_evaluate_node(node, arrays, values.opsets) or ()
    return [
        Value(array, ELEM_TYPES.get(array.dtype, values.elem_type(name)))
        for name, array in zip(node.output, results, strict=False)
    ]


def _moved(values: Values, node: NodeProto) -> Results:
    """Return the outputs of an operator that moves elements, some of which are expressions.

    The elements of all data inputs are numbered, and the node is evaluated on these numbers. In the result
    each number is replaced by its element. For example, ``Gather([n, 3], [1, 0])`` is evaluated as
    ``Gather([1, 2], [1, 0])``, which gives ``[2, 1]`` and stands for ``[3, n]``.

    Number 0 is the element 0, with which a Pad without a given value fills.
    """
    # A Scatter with a reduction calculates. A Pad before opset 11 may fill with a number that is no element.
    for attribute in node.attribute:
        is_reduction = attribute.name == "reduction" and attribute.s not in (b"", b"none")
        is_fill = node.op_type == "Pad" and attribute.name == "value" and attribute.f
        if is_reduction or is_fill:
            return ()
    data_inputs = operator(node).moves  # for Pad also the given value
    numbered: list[object] = [0]
    arrays: list[Array | None] = []
    elem_type = 0
    for index, name in enumerate(node.input):
        if not name:
            arrays.append(None)
        elif index not in data_inputs:  # axes, indices and the like
            value = values.value_of(name)
            if value is None or not value.is_known:
                return ()
            arrays.append(value.array)
        else:
            value = values.operand(name)
            if value is None:
                return ()
            elem_type = elem_type or value.elem_type  # that of the first data input
            first, size = len(numbered), value.array.size
            numbered.extend(value.elements)
            numbers = np.arange(first, first + size, dtype=np.int64)
            arrays.append(numbers.reshape(value.array.shape))
    results = try_evaluate_node(node, arrays, values.opsets) or ()
    table = np.empty(len(numbered), dtype=object)
    table[:] = numbered
    return [
        Value(np.asarray(table[result.astype(np.int64)], dtype=object), elem_type)
        for result in results
    ]


def _operands(values: Values, node: NodeProto) -> list[Value] | None:
    """Return the values of all inputs; None unless all have a size and a type for expressions."""
    operands = [values.operand(name) for name in node.input]
    usable = [value for value in operands if value and value.elem_type in EXPRESSED]
    return usable if usable and len(usable) == len(operands) else None


def _mapped(function: Callable[..., Element], *values: Value) -> Array:
    """Apply a function to the elements of values, which are broadcast.

    Raises:
        ValueError: the shapes do not broadcast, or the result has too many elements for a shape.
    """
    arrays = [value.element_array() for value in values]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    result = np.empty(shape, dtype=object)
    if result.size > MAX_ELEMENTS:
        raise ValueError("more elements than a shape has")
    with np.errstate(all="ignore"):  # numpy would warn of infinite elements and NaN
        result[...] = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return result


def _unary(values: Values, node: NodeProto) -> Value | None:
    """Apply the function in `UNARY` to each element."""
    operands = _operands(values, node)
    if operands is None:
        return None
    return Value(_mapped(UNARY[node.op_type], operands[0]), operands[0].elem_type)


def _binary(values: Values, node: NodeProto) -> Value | None:
    """Apply the function in `BINARY` to broadcast inputs from left to right; Equal gives bools.

    A Min or Max of one input is that input.
    """
    operands = _operands(values, node)
    if operands is None:
        return None
    function = BINARY[node.op_type]
    elem_type = BOOL if node.op_type == "Equal" else operands[0].elem_type
    result = operands[0]
    for operand in operands[1:]:
        result = Value(_mapped(function, result, operand), elem_type)
    return result


def _div(values: Values, node: NodeProto) -> Value | None:
    """Divide: the quotient of integers is rounded toward zero, that of floats keeps its fraction."""
    operands = _operands(values, node)
    if operands is None:
        return None
    elem_type = operands[0].elem_type
    divide = elements.divide_whole if elem_type in INTEGERS else elements.divide
    return Value(_mapped(divide, *operands), elem_type)


def _cast(values: Values, node: NodeProto) -> Value | None:
    """Convert elements, which are numbers, expressions of dims or unknown (None), to a type of `EXPRESSED`.

    A cast to bool compares with 0: an expression becomes a bool if that is decided for all dims, else
    unknown. Casts to other types leave expressions as they are, since dims are integers.
    """
    operands = _operands(values, node)
    target = int_attribute(node, "to", 0)
    if operands is None or target not in EXPRESSED:
        return None
    value = operands[0]
    if target == BOOL:
        return Value(_mapped(elements.is_true, value), target)
    if target in INTEGERS:
        return Value(_mapped(elements.truncated, value), target)
    # A float type changes no element: an int stays an exact int, as the type of the value is kept apart.
    return Value(value.element_array(), target)


def _product(values: Values, node: NodeProto) -> Value | None:
    """ReduceProd: the product of a vector of integers; None for other tensors, and if nothing is known."""
    value = values.input_value(node, 0)
    factors = values.input_dims(node, 0)  # the elements of ``value`` as dims
    if value is None or factors is None or value.array.ndim != 1:
        return None
    if value.elem_type not in INTEGERS or int_attribute(node, "noop_with_empty_axes", 0):
        return None
    # ``axes`` need not be read, as a vector has one axis.
    shape = (1,) if int_attribute(node, "keepdims", 1) else ()
    # If a factor is unknown (None), so is the one element of the result.
    return Value(np.full(shape, product(factors), dtype=object), value.elem_type)


def _constant(_: Values, node: NodeProto) -> Value | None:
    """Constant: its tensor; None if it has no tensor, or one that is too large."""
    tensor = constant_tensor(node)
    return None if tensor is None else value_of_tensor(tensor)


def _shape(values: Values, node: NodeProto) -> Value | None:
    """Shape: the dims of the input from ``start`` to ``end``, as int64."""
    shape = values.shape(node.input[0])
    if shape is None:
        return None
    start, end = int_attribute(node, "start", 0), int_attribute(node, "end", len(shape))
    return _int64_vector(shape[slice(start, end)])


def _size(values: Values, node: NodeProto) -> Value | None:
    """Size: the product of the input's dims, as int64."""
    shape = values.shape(node.input[0])
    if shape is None:
        return None
    return Value(_int64_vector([product(shape)]).array.reshape(()), INT64)


def _int64_vector(dims: Sequence[Dim]) -> Value:
    array = np.empty(len(dims), dtype=object)
    array[:] = dims
    return Value(array, INT64)


_SOURCES: Mapping[str, ValueRule] = {"Constant": _constant, "Shape": _shape, "Size": _size}
"""Rules of operators that do not read the values of their inputs."""

_ON_EXPRESSIONS: Mapping[str, ValueRule] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    "Cast": _cast,
    "Div": _div,
    "ReduceProd": _product,
}
"""Rules for inputs of which some elements are expressions or unknown."""
