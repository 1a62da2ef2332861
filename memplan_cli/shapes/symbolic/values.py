"""Small values of a graph: their elements as numbers where they are known, else as expressions.

What is wholly known is evaluated by ONNX's reference evaluator; elements that are moved keep
what they are; arithmetic on expressions is that of `elements`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import multiplied
from memplan_cli.shapes.lattice import shape_in
from memplan_cli.shapes.symbolic.elements import (
    BINARY,
    REDUCED,
    UNARY,
    Ratio,
    chosen,
    divide,
    divide_whole,
    is_true,
    modulo,
    terms_of,
    truncated,
)
from memplan_cli.shapes.symbolic.evaluate import evaluated, moved
from memplan_cli.shapes.symbolic.families import BY_DATA, MOVES, TRUTH, UNPREDICTABLE

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import GraphProto, NodeProto, TensorProto, TypeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.shapes.symbolic.elements import Element

    Array = NDArray[Any]

MOST = 4096
"""Elements above which a value is data and no shape."""

FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11
"""TensorProto's numbers of types."""

_WHOLE = (INT32, INT64)
_EXPRESSED = (FLOAT, INT32, INT64, BOOL, DOUBLE)
"""Types whose elements may be expressions; the others would round or overflow."""


class Value(NamedTuple):
    """A small tensor: an array of numbers, or of elements, and the type of these."""

    array: Array
    kind: int

    @property
    def is_known(self) -> bool:
        """Whether all elements are numbers."""
        return self.array.dtype != object

    @property
    def elements(self) -> list[Element]:
        """The elements in order."""
        found = self.objects().reshape(-1).tolist()
        return list(found)

    def objects(self) -> Array:
        """Return the elements as an array of them; truth values are 1 and 0."""
        if not self.is_known:
            return self.array
        plain = self.array.astype(np.int64) if self.kind == BOOL else self.array
        return plain.astype(object)


@dataclass(slots=True)
class Values:
    """What is known above a node: types, and the small values that are needed."""

    types: Mapping[str, TypeProto]
    opset: int
    found: dict[str, Value] = field(default_factory=dict)
    constants: Mapping[str, TensorProto] = field(default_factory=dict)

    @classmethod
    def over(cls, graph: GraphProto, types: Mapping[str, TypeProto], opset: int) -> Values:
        """Begin a walk over a graph's nodes, in order, with its weights."""
        return cls(
            types, opset, constants={tensor.name: tensor for tensor in graph.initializer}
        )

    def follow(self, node: NodeProto) -> None:
        """Work out the values that a node gives."""
        try:
            results = _results(self, node)
        except (ValueError, OverflowError, ZeroDivisionError):
            return
        for name, value in zip(node.output, results, strict=False):
            if name and value is not None and value.array.size <= MOST:
                self.found[name] = _settled(value)

    def shape(self, name: str) -> Shape | None:
        """Return a value's dims."""
        return shape_in(self.types[name]) if name in self.types else None

    def kind(self, name: str) -> int:
        """Return the number of a value's type, 0 where it is not known."""
        return self.types[name].tensor_type.elem_type if name in self.types else 0

    def of(self, name: str) -> Value | None:
        """Return a value by its name."""
        if name not in self.found and name in self.constants:
            value = _of_tensor(self.constants[name])
            if value is not None:
                self.found[name] = value
        return self.found.get(name)

    def value(self, node: NodeProto, at: int) -> Value | None:
        """Return what is known of an input."""
        return self.of(node.input[at]) if at < len(node.input) else None

    def operand(self, name: str) -> Value | None:
        """Return a value, or one without a known element where only its size is known."""
        value = self.of(name)
        shape = self.shape(name)
        if value is not None or shape is None or self.kind(name) not in _EXPRESSED:
            return value
        sizes = [dim for dim in shape if isinstance(dim, int)]
        if len(sizes) < len(shape) or math.prod(sizes) > MOST or min(sizes, default=0) < 0:
            return None
        return Value(np.full(sizes, None, dtype=object), self.kind(name))

    def dims(self, node: NodeProto, at: int) -> tuple[Dim, ...] | None:
        """Return an input as dims; None for one that is not known."""
        value = self.value(node, at)
        if value is None:
            return None
        return tuple(
            e if isinstance(e, int | str) else int(e) if isinstance(e, float) else None
            for e in value.elements
        )

    def numbers(self, node: NodeProto, at: int, default: Sequence[int]) -> list[int] | None:
        """Return an input that must be numbers: axes, starts; a default where it is left out."""
        if at >= len(node.input) or not node.input[at]:
            return list(default)
        value = self.value(node, at)
        if value is None or not value.is_known:
            return None
        return [int(e) for e in value.array.reshape(-1)]


def int_attribute(node: NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of a node."""
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def ints_attribute(node: NodeProto, name: str, default: Sequence[int]) -> list[int]:
    """Return an attribute of several integers."""
    return next((list(a.ints) for a in node.attribute if a.name == name), list(default))


def product(dims: Sequence[Dim]) -> Dim:
    """Multiply dims; None where one is not known, or where that is more than one can write."""
    if None in dims:
        return None
    try:
        return as_dim(multiplied([terms_of(dim) for dim in dims]))
    except ValueError:
        return None


def _of_tensor(tensor: TensorProto) -> Value | None:
    """Return a constant's elements; None where it is data and no shape."""
    if tensor.data_location == tensor.EXTERNAL or math.prod(tensor.dims) > MOST:
        return None
    from onnx import numpy_helper

    return Value(np.asarray(numpy_helper.to_array(tensor)), tensor.data_type)


def _settled(value: Value) -> Value:
    """Return numbers as an array of numbers."""
    if value.is_known or value.kind not in _EXPRESSED:
        return value
    if any(e is None or isinstance(e, str | Ratio) for e in value.array.reshape(-1)):
        return value
    return Value(value.array.astype(_NUMPY[value.kind]), value.kind)


_NUMPY: Mapping[int, type[np.generic]] = {
    FLOAT: np.float32,
    INT32: np.int32,
    INT64: np.int64,
    BOOL: np.bool_,
    DOUBLE: np.float64,
}
_KINDS: Mapping[np.dtype[Any], int] = {np.dtype(t): kind for kind, t in _NUMPY.items()}


Results = Sequence["Value | None"]


def _results(values: Values, node: NodeProto) -> Results:
    rule = RULES.get(node.op_type)
    if rule is not None:
        return (rule(values, node),)
    given = [values.of(name) if name else None for name in node.input]
    wanted = [value for name, value in zip(node.input, given, strict=True) if name]
    if node.op_type in UNPREDICTABLE:
        return ()
    if all(value is not None and value.is_known for value in wanted):
        return _evaluated(values, node, given)
    if node.op_type in MOVES:
        return _moved(values, node)
    if node.op_type in _ON_ELEMENTS:
        return (_ON_ELEMENTS[node.op_type](values, node),)
    return ()


def _evaluated(values: Values, node: NodeProto, given: Sequence[Value | None]) -> Results:
    """Evaluate a node on numbers, where its result is known to be small."""
    shape = values.shape(node.output[0]) if node.output else None
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    small = shape is not None and len(sizes) == len(shape) and math.prod(sizes) <= MOST
    if not small and node.op_type not in BY_DATA:
        return ()
    arrays = [None if value is None else value.array for value in given]
    results = evaluated(node, arrays, values.opset) or ()
    return [
        Value(array, _KINDS.get(array.dtype, values.kind(name)))
        for name, array in zip(node.output, results, strict=False)
    ]


def _moved(values: Values, node: NodeProto) -> Results:
    places = MOVES[node.op_type]
    arrays: list[Array | None] = []
    kind = 0
    for at, name in enumerate(node.input):
        data = places is None or at in places
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
    known = [value for value in found if value is not None and value.kind in _EXPRESSED]
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
    kind = BOOL if node.op_type in TRUTH else operands[0].kind
    found = reduce(
        lambda a, b: Value(_mapped(function, a, b), kind), operands[1:], operands[0]
    )
    return Value(found.array, kind)


def _divided(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    if operands is None:
        return None
    kind = operands[0].kind
    return Value(_mapped(divide_whole if kind in _WHOLE else divide, *operands), kind)


def _remainder(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    if operands is None or operands[0].kind not in _WHOLE:
        return None
    return Value(_mapped(modulo, *operands), operands[0].kind)


def _where(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    return None if operands is None else Value(_mapped(chosen, *operands), operands[1].kind)


def _cast(values: Values, node: NodeProto) -> Value | None:
    operands = _operands(values, node)
    to = int_attribute(node, "to", 0)
    if operands is None or to not in _EXPRESSED:
        return None
    value = operands[0]
    if to == BOOL:
        return Value(_mapped(is_true, value), to)
    return Value(_mapped(truncated, value) if to in _WHOLE else value.objects(), to)


def _reduced(values: Values, node: NodeProto) -> Value | None:
    value = values.operand(node.input[0])
    axes = values.numbers(node, 1, ints_attribute(node, "axes", ()))
    if value is None or axes is None or value.kind not in _WHOLE:
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
    for attribute in node.attribute:
        match attribute.name:
            case "value":
                return _of_tensor(attribute.t)
            case "value_int":
                return Value(np.array(attribute.i, np.int64), INT64)
            case "value_ints":
                return Value(np.array(attribute.ints, np.int64), INT64)
            case "value_float":
                return Value(np.array(attribute.f, np.float32), FLOAT)
            case "value_floats":
                return Value(np.array(attribute.floats, np.float32), FLOAT)
    return None


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


RULES: Mapping[str, Callable[[Values, NodeProto], Value | None]] = {
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
