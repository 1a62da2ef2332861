"""Small values of a graph: their elements as numbers where they are known, else as expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import multiplied
from memplan_cli.onnx_io.shapes.lattice import shape_in
from memplan_cli.onnx_io.shapes.symbolic.elements import Ratio, terms_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from onnx import GraphProto, NodeProto, TensorProto, TypeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.elements import Element

    Array = NDArray[Any]

MOST = 4096
"""Elements above which a value is data and no shape."""

FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11
"""TensorProto's numbers of types."""

WHOLE = (INT32, INT64)
EXPRESSED = (FLOAT, INT32, INT64, BOOL, DOUBLE)
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

    def settled(self) -> Value:
        """Return numbers as an array of numbers."""
        if self.is_known or self.kind not in EXPRESSED:
            return self
        if any(e is None or isinstance(e, str | Ratio) for e in self.array.reshape(-1)):
            return self
        return Value(self.array.astype(NUMPY[self.kind]), self.kind)

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

    def inside(self, graph: GraphProto, types: Mapping[str, TypeProto]) -> Values:
        """Begin a walk over a subgraph, which sees what is known around it."""
        constants = {tensor.name: tensor for tensor in graph.initializer}
        return Values(types, self.opset, dict(self.found), {**self.constants, **constants})

    def shape(self, name: str) -> Shape | None:
        """Return a value's dims."""
        return shape_in(self.types[name]) if name in self.types else None

    def kind(self, name: str) -> int:
        """Return the number of a value's type, 0 where it is not known."""
        return self.types[name].tensor_type.elem_type if name in self.types else 0

    def of(self, name: str) -> Value | None:
        """Return a value by its name."""
        if name not in self.found and name in self.constants:
            value = value_of_tensor(self.constants[name])
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
        if value is not None or shape is None or self.kind(name) not in EXPRESSED:
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


def value_of_tensor(tensor: TensorProto) -> Value | None:
    """Return a constant's elements; None where it is data and no shape."""
    if tensor.data_location == tensor.EXTERNAL or math.prod(tensor.dims) > MOST:
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
KINDS: Mapping[np.dtype[Any], int] = {np.dtype(t): kind for kind, t in NUMPY.items()}
