"""What a shape rule of an operator outside the standard domain reads and returns, and common rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.onnx_io.shapes.symbolic.target_rules import broadcast_shapes, divide_dims
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute, ints_attribute

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Values

UINT8, STRING = 2, 8
"""``TensorProto.DataType`` numbers that `symbolic.values` has no names for."""


class OutputType(NamedTuple):
    """The type of one output that a rule returns.

    Attributes:
        elem_type: ``TensorProto.DataType`` number; 0 if unknown.
        shape: dims, each a number, an expression or None; None if the rank is unknown.
    """

    elem_type: int
    shape: Shape | None


Rule = Callable[["RuleNode"], Sequence[OutputType]]
"""From a node to the types of its outputs, in order; outputs left out are unknown."""


@dataclass(frozen=True, slots=True)
class RuleNode:
    """A node as a rule reads it: shapes and small values of its inputs, and its attributes.

    Every method accepts the index of an input that the node leaves out.
    """

    values: Values
    proto: NodeProto

    def has_input(self, index: int) -> bool:
        """Whether the node has this input; optional inputs may be left out."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def input_shape(self, index: int) -> Shape | None:
        """Return the dims of an input; None if its rank is unknown."""
        return self.values.shape(self.proto.input[index]) if self.has_input(index) else None

    def shape_of_rank(self, index: int, *ranks: int) -> Shape | None:
        """Return the dims of an input if its rank is one of ``ranks``, else None."""
        shape = self.input_shape(index)
        return shape if shape is not None and len(shape) in ranks else None

    def elem_type(self, index: int) -> int:
        """Return the ``TensorProto.DataType`` number of an input; 0 if unknown."""
        return self.values.elem_type(self.proto.input[index]) if self.has_input(index) else 0

    def input_dims(self, index: int) -> tuple[Dim, ...] | None:
        """Return the elements of an integer input as dims; None if its value is unknown."""
        return self.values.input_dims(self.proto, index) if self.has_input(index) else None

    def scalar_dim(self, index: int) -> Dim:
        """Return the only element of an input as a dim; None if unknown or not one element."""
        dims = self.input_dims(index)
        return dims[0] if dims is not None and len(dims) == 1 else None

    def attribute(self, name: str) -> AttributeProto | None:
        """Return an attribute of the node, None if it is left out."""
        return next((a for a in self.proto.attribute if a.name == name), None)

    def int_attribute(self, name: str, default: int = 0) -> int:
        """Return an integer attribute, or the default if it is left out."""
        return int_attribute(self.proto, name, default)

    def ints_attribute(self, name: str) -> list[int]:
        """Return an attribute that is a list of integers; empty if it is left out."""
        return ints_attribute(self.proto, name, ())

    def attribute_length(self, *names: str) -> int:
        """Return the number of entries of the first of these list attributes that the node has, else 0."""
        for name in names:
            attribute = self.attribute(name)
            if attribute is not None:
                return len(attribute.ints) + len(attribute.floats) + len(attribute.strings)
        return 0


def like(*inputs: int) -> Rule:
    """Return a rule: output ``i`` has the element type and shape of input ``inputs[i]``."""
    return lambda node: [
        OutputType(node.elem_type(index), node.input_shape(index)) for index in inputs
    ]


def typed(elem_type: int) -> Rule:
    """Return a rule: the output has the shape of the first input and a fixed element type."""
    return lambda node: [OutputType(elem_type, node.input_shape(0))]


def broadcasting(*inputs: int) -> Rule:
    """Return a rule: the output has the broadcast shape of these inputs, and the first one's element type."""

    def rule(node: RuleNode) -> Sequence[OutputType]:
        """Broadcast these inputs; the shape is unknown if one of theirs is."""
        shapes = [shape for shape in map(node.input_shape, inputs) if shape is not None]
        shape = broadcast_shapes(shapes) if len(shapes) == len(inputs) else None
        return [OutputType(node.elem_type(inputs[0]), shape)]

    return rule


def quotient(dim: Dim, count: Dim) -> Dim:
    """Return ``dim / count`` if the division leaves no remainder for any value of the dims, else None."""
    return None if dim is None or count in (None, 0) else divide_dims((dim,), [count])


def last_as(shape: Shape | None, dim: Dim) -> Shape | None:
    """Return a shape with its last dim replaced; None if the shape is unknown or has no dims."""
    return (*shape[:-1], dim) if shape else None
