"""Small tensor values of a graph, with each element a number, an expression of dims, or unknown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import multiply_polynomials
from memplan_cli.onnx_io.shapes.lattice import shape_in
from memplan_cli.onnx_io.shapes.symbolic.elements import polynomial_of

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray
    from onnx import GraphProto, NodeProto, TensorProto, TypeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.elements import Element

    Array = NDArray[Any]

MAX_ELEMENTS = 4096
"""Elements above which a tensor is taken for data: its value cannot decide a shape."""

FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11
"""``TensorProto.DataType`` numbers."""

INTEGERS = (INT32, INT64)
EXPRESSED = (FLOAT, INT32, INT64, BOOL, DOUBLE)
"""Element types whose elements may be expressions; others would round or overflow."""


class Value(NamedTuple):
    """A small tensor whose elements are known in part.

    Attributes:
        array: an array of numbers, or of dtype ``object`` with an `Element` for each element.
        elem_type: ``TensorProto.DataType`` number of the elements.
    """

    array: Array
    elem_type: int

    @property
    def is_known(self) -> bool:
        """Whether all elements are numbers."""
        return self.array.dtype != object

    @property
    def elements(self) -> list[Element]:
        """The elements in row-major order."""
        return list(self.element_array().reshape(-1).tolist())

    def normalized(self) -> Value:
        """Return the value as an array of numbers if every element is a number, else itself."""
        if self.is_known or self.elem_type not in EXPRESSED:
            return self
        if any(e is None or isinstance(e, str) for e in self.array.reshape(-1)):
            return self
        return Value(self.array.astype(NUMPY[self.elem_type]), self.elem_type)

    def element_array(self) -> Array:
        """Return the value as an array of `Element`; bools become 1 and 0."""
        if not self.is_known:
            return self.array
        numbers = self.array.astype(np.int64) if self.elem_type == BOOL else self.array
        return numbers.astype(object)


@dataclass(slots=True)
class Values:
    """Types and small values of one graph, filled in by a walk over its nodes in order.

    Attributes:
        types: types of values by name, those of outer graphs included; the walk adds to it.
        opsets: the version of each domain; ``""`` is the standard one.
        known: small values by name; the walk adds to it.
        constants: initializers by name; `value_of` decodes them when they are first read.
    """

    types: MutableMapping[str, TypeProto]
    opsets: Mapping[str, int]
    known: dict[str, Value] = field(default_factory=dict)
    constants: Mapping[str, TensorProto] = field(default_factory=dict)

    @classmethod
    def of_graph(
        cls,
        graph: GraphProto,
        types: MutableMapping[str, TypeProto],
        opsets: Mapping[str, int],
    ) -> Values:
        """Return the values before the first node of a main graph: its initializers."""
        constants = {tensor.name: tensor for tensor in graph.initializer}
        return cls(types, opsets, constants=constants)

    def of_subgraph(self, graph: GraphProto, types: MutableMapping[str, TypeProto]) -> Values:
        """Return the values before the first node of a subgraph: what is known outside of it, and its initializers."""
        constants = {tensor.name: tensor for tensor in graph.initializer}
        return Values(types, self.opsets, dict(self.known), {**self.constants, **constants})

    def shape(self, name: str) -> Shape | None:
        """Return the dims of a value; None if its rank is unknown."""
        return shape_in(self.types[name]) if name in self.types else None

    def elem_type(self, name: str) -> int:
        """Return the ``TensorProto.DataType`` number of a value; 0 if unknown."""
        return self.types[name].tensor_type.elem_type if name in self.types else 0

    def value_of(self, name: str) -> Value | None:
        """Return a small value by name, None if none of its elements is known.

        A constant that is read for the first time is added to ``known``.
        """
        if name not in self.known and name in self.constants:
            value = value_of_tensor(self.constants[name])
            if value is not None:
                self.known[name] = value
        return self.known.get(name)

    def input_value(self, node: NodeProto, index: int) -> Value | None:
        """Return the value of a node's input; None if it is left out or unknown."""
        return self.value_of(node.input[index]) if index < len(node.input) else None

    def operand(self, name: str) -> Value | None:
        """Return a value, with all elements unknown if only its type and fixed shape are known.

        None if not even these are known, or if the value is too large.
        """
        value = self.value_of(name)
        shape = self.shape(name)
        if value is not None or shape is None or self.elem_type(name) not in EXPRESSED:
            return value
        sizes = [dim for dim in shape if isinstance(dim, int)]
        is_fixed = len(sizes) == len(shape) and min(sizes, default=0) >= 0
        if not is_fixed or math.prod(sizes) > MAX_ELEMENTS:
            return None
        return Value(np.full(sizes, None, dtype=object), self.elem_type(name))

    def input_dims(self, node: NodeProto, index: int) -> tuple[Dim, ...] | None:
        """Return the elements of a node's input as dims; None if nothing is known of its value.

        A float is truncated. An element that is no finite number and no expression is None.
        """
        value = self.input_value(node, index)
        if value is None:
            return None
        return tuple(map(_as_dim, value.elements))

    def input_ints(
        self, node: NodeProto, index: int, default: Sequence[int]
    ) -> list[int] | None:
        """Return an input such as axes or steps as numbers: the default if it is left out.

        None if one of its elements is not known as a number.
        """
        if index >= len(node.input) or not node.input[index]:
            return list(default)
        value = self.input_value(node, index)
        if value is None or not value.is_known:
            return None
        return [int(e) for e in value.array.reshape(-1)]


Rule = Callable[[Values, "NodeProto"], "Shape | None"]
"""From the values before a node, and the node, to the shape of its first output.

For an invalid node a rule may raise ValueError, IndexError, ZeroDivisionError or OverflowError.
"""


def _as_dim(element: Element) -> Dim:
    """Return an element of a value as a dim; None if it is no finite number and no expression."""
    if isinstance(element, float):
        return int(element) if math.isfinite(element) else None
    return element if isinstance(element, int | str) else None


def int_attribute(node: NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of a node, or the default if it is left out."""
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def ints_attribute(node: NodeProto, name: str, default: Sequence[int]) -> list[int]:
    """Return an attribute that is a list of integers, or the default if it is left out."""
    return next((list(a.ints) for a in node.attribute if a.name == name), list(default))


def product(dims: Sequence[Dim]) -> Dim:
    """Return the product of dims; None if one is unknown, or if the product is too long to write."""
    if None in dims:
        return None
    try:
        return as_dim(multiply_polynomials([polynomial_of(dim) for dim in dims]))
    except ValueError:
        return None


def value_of_tensor(tensor: TensorProto) -> Value | None:
    """Return the value of a constant; None if it is too large or stored in another file."""
    if tensor.data_location == tensor.EXTERNAL or math.prod(tensor.dims) > MAX_ELEMENTS:
        return None
    from onnx import numpy_helper

    return Value(np.asarray(numpy_helper.to_array(tensor)), tensor.data_type)


NUMPY: Mapping[int, type[np.generic]] = {
    FLOAT: np.float32,
    INT32: np.int32,
    INT64: np.int64,
    BOOL: np.bool_,
    DOUBLE: np.float64,
}
"""The numpy type of each element type that may be expressed."""

ELEM_TYPES: Mapping[np.dtype[Any], int] = {np.dtype(t): number for number, t in NUMPY.items()}
"""The inverse of `NUMPY`."""
