"""What a rule for an operator of another domain says, and what such rules are built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.onnx_io.shapes.symbolic.targets import broadcast, quotient

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Values

UINT8, INT8, FLOAT16, STRING, UINT32 = 2, 3, 10, 8, 12
"""TensorProto's numbers of types, beside those that elements of values have."""


class Made(NamedTuple):
    """A result: TensorProto's number of its type, 0 where that is not known, and its dims."""

    element: int
    shape: Shape | None


Rule = Callable[["Node"], Sequence[Made]]
"""From a node, and what is known above it, to its results; none where nothing is known."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with what is known of its inputs, which it may leave out, and its attributes."""

    values: Values
    proto: NodeProto

    def has(self, at: int) -> bool:
        """Whether an input is there."""
        return at < len(self.proto.input) and bool(self.proto.input[at])

    def shape(self, at: int) -> Shape | None:
        """Return the dims of an input."""
        return self.values.shape(self.proto.input[at]) if self.has(at) else None

    def ranked(self, at: int, *ranks: int) -> Shape | None:
        """Return the dims of an input that has one of these ranks."""
        shape = self.shape(at)
        return shape if shape is not None and len(shape) in ranks else None

    def element(self, at: int) -> int:
        """Return the number of an input's type."""
        return self.values.kind(self.proto.input[at]) if self.has(at) else 0

    def dims(self, at: int) -> tuple[Dim, ...] | None:
        """Return an input's elements as dims."""
        return self.values.dims(self.proto, at) if self.has(at) else None

    def scalar(self, at: int) -> Dim:
        """Return the one element of an input as a dim."""
        dims = self.dims(at)
        return dims[0] if dims is not None and len(dims) == 1 else None

    def attribute(self, name: str) -> AttributeProto | None:
        """Return an attribute."""
        return next((a for a in self.proto.attribute if a.name == name), None)

    def number(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        found = self.attribute(name)
        return default if found is None else int(found.i)

    def numbers(self, name: str) -> list[int]:
        """Return an attribute of several integers; none of them where it is left out."""
        found = self.attribute(name)
        return [] if found is None else list(found.ints)

    def length(self, *names: str) -> int:
        """Return how many entries an attribute has, the first of these that is there."""
        for name in names:
            found = self.attribute(name)
            if found is not None:
                return len(found.ints) + len(found.floats) + len(found.strings)
        return 0


def like(*places: int) -> Rule:
    """Return the rule of an operator whose results are each like an input."""
    return lambda node: [Made(node.element(at), node.shape(at)) for at in places]


def typed(element: int, at: int = 0) -> Rule:
    """Return the rule of an operator whose result has an input's dims and a type of its own."""
    return lambda node: [Made(element, node.shape(at))]


def broadcasting(*places: int, element: int = 0) -> Rule:
    """Return the rule of an operator on the elements of inputs, whose type is the first's."""

    def rule(node: Node) -> Sequence[Made]:
        shapes = [shape for shape in map(node.shape, places) if shape is not None]
        shape = broadcast(shapes) if len(shapes) == len(places) else None
        return [Made(element or node.element(places[0]), shape)]

    return rule


def part(dim: Dim, count: Dim) -> Dim:
    """Return one of so many equal parts of a dim; None where it has none."""
    return None if dim is None or count in (None, 0) else quotient((dim,), [count])


def last_as(shape: Shape | None, dim: Dim) -> Shape | None:
    """Return a shape with another last dim."""
    return (*shape[:-1], dim) if shape else None
