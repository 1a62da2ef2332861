"""Symbolic values of integers in chains on shapes: one rule an op, dims as expressions.

Every integer scalar or vector is worked out: a number, an expression of dims, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import floored, multiplied, total
from memplan_cli.shapes.lattice import shape_in

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, TypeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.core.symbolic.polynomials import Polynomial

_LONGEST = 64
"""Elements above which a vector is data and no shape."""

_MOST_AXES = 8
"""Elements above which a vector of floats is no scales of a Resize."""

_SINGLE = 1
"""TensorProto's number for float32, the only type that a Resize takes its scales in."""

_WHOLE = (6, 7)
"""TensorProto's numbers for int32 and int64."""


@dataclass(frozen=True, slots=True)
class Known:
    """An integer scalar or vector; an element that is not known is None."""

    elements: tuple[Dim, ...]
    is_scalar: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """What is known of the values above a node: their types, and the integers in them."""

    types: Mapping[str, TypeProto]
    values: dict[str, Known]
    factors: dict[str, tuple[float, ...]]
    """Short vectors of constants that are no integers: the scales of a Resize."""

    @classmethod
    def over(cls, graph: GraphProto, types: Mapping[str, TypeProto]) -> Walk:
        """Begin a walk over a graph's nodes, in order, with its weights."""
        known = {t.name: known for t in graph.initializer if (known := _tensor(t))}
        return cls(types, known, {t.name: f for t in graph.initializer if (f := _factors(t))})

    def follow(self, node: NodeProto) -> None:
        """Work out the integers that a node gives, where there is a rule for it."""
        rule = RULES.get(node.op_type)
        value = rule(self, node) if rule is not None else None
        if value is not None and len(value.elements) <= _LONGEST:
            self.values[node.output[0]] = value
        elif node.op_type == "Constant" and (factors := _constant_factors(node)):
            self.factors[node.output[0]] = factors

    def shape(self, name: str) -> Shape | None:
        """Return a value's dims; a name that inference made up is no dim."""
        return shape_in(self.types[name]) if name in self.types else None

    def value(self, node: NodeProto, at: int) -> Known | None:
        """Return what is known of an input."""
        return self.values.get(node.input[at]) if at < len(node.input) else None

    def numbers(self, node: NodeProto, at: int, default: Sequence[int]) -> list[int] | None:
        """Return an input that must be numbers: axes, starts; a default where it is left out."""
        if at >= len(node.input) or not node.input[at]:
            return list(default)
        known = self.values.get(node.input[at])
        if known is None or not all(isinstance(e, int) for e in known.elements):
            return None
        return [e for e in known.elements if isinstance(e, int)]


def int_attribute(node: NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of a node."""
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _tensor(tensor: TensorProto) -> Known | None:
    """Return a constant's elements; None where it is data and no shape."""
    if tensor.data_type not in _WHOLE or len(tensor.dims) > 1 or tensor.data_location == 1:
        return None
    if tensor.dims and not 0 <= tensor.dims[0] <= _LONGEST:
        return None
    from onnx import numpy_helper

    array = numpy_helper.to_array(tensor)
    return Known(tuple(int(e) for e in array.reshape(-1)), not array.ndim)


def _factors(tensor: TensorProto) -> tuple[float, ...]:
    """Return the elements of a short vector of floats; nothing for any other tensor."""
    if tensor.data_type != _SINGLE or len(tensor.dims) != 1 or tensor.data_location == 1:
        return ()
    if not 0 < tensor.dims[0] <= _MOST_AXES:
        return ()
    from onnx import numpy_helper

    return tuple(map(float, numpy_helper.to_array(tensor)))


def _constant_factors(node: NodeProto) -> tuple[float, ...]:
    for attribute in node.attribute:
        if attribute.name == "value":
            return _factors(attribute.t)
        if attribute.name == "value_floats" and len(attribute.floats) <= _MOST_AXES:
            return tuple(map(float, attribute.floats))
    return ()


def _constant(_: Walk, node: NodeProto) -> Known | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            return _tensor(attribute.t)
        if attribute.name == "value_int":
            return Known((int(attribute.i),), is_scalar=True)
        if attribute.name == "value_ints":
            return Known(tuple(map(int, attribute.ints)))
    return None


def _shape(walk: Walk, node: NodeProto) -> Known | None:
    shape = walk.shape(node.input[0])
    if shape is None:
        return None
    start, end = int_attribute(node, "start", 0), int_attribute(node, "end", len(shape))
    return Known(shape[slice(start, end)])


def _size(walk: Walk, node: NodeProto) -> Known | None:
    shape = walk.shape(node.input[0])
    return None if shape is None else Known((product(shape),), is_scalar=True)


def product(dims: Sequence[Dim]) -> Dim:
    """Multiply dims; None where one is not known, or where that is more than one can write."""
    if None in dims:
        return None
    try:
        return as_dim(multiplied([terms_of(dim) for dim in dims]))
    except ValueError:
        return None


def terms_of(dim: Dim) -> Polynomial:
    """Return a dim that is known as a sum of products."""
    return parse_dim(str(dim))


def _cast(walk: Walk, node: NodeProto) -> Known | None:
    """Follow integers only: a quotient of floats is another number."""
    return walk.value(node, 0) if int_attribute(node, "to", 0) in _WHOLE else None


def _same(walk: Walk, node: NodeProto) -> Known | None:
    return walk.value(node, 0)


def _reshape(walk: Walk, node: NodeProto) -> Known | None:
    known, target = walk.value(node, 0), walk.numbers(node, 1, ())
    if known is None or target is None or len(target) > 1:
        return None
    return Known(known.elements, is_scalar=not target)


def _squeeze(walk: Walk, node: NodeProto) -> Known | None:
    known = walk.value(node, 0)
    if known is None or len(known.elements) != 1:
        return None
    return Known(known.elements, is_scalar=True)


def _unsqueeze(walk: Walk, node: NodeProto) -> Known | None:
    known = walk.value(node, 0)
    return Known(known.elements) if known is not None and known.is_scalar else None


def _gather(walk: Walk, node: NodeProto) -> Known | None:
    known, places = walk.value(node, 0), walk.value(node, 1)
    if known is None or places is None or known.is_scalar:
        return None
    size = len(known.elements)
    taken = [e for e in places.elements if isinstance(e, int) and -size <= e < size]
    if len(taken) != len(places.elements):
        return None
    return Known(tuple(known.elements[at] for at in taken), places.is_scalar)


def _concat(walk: Walk, node: NodeProto) -> Known | None:
    parts = []
    for at, name in enumerate(node.input):
        known = walk.value(node, at)
        if known is None:  # a hole of a length that is known keeps the other dims
            shape = walk.shape(name)
            if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
                return None
            known = Known((None,) * min(shape[0], _LONGEST + 1))
        parts.append(known)
    return Known(tuple(e for part in parts for e in part.elements))


def _slice(walk: Walk, node: NodeProto) -> Known | None:
    known = walk.value(node, 0)
    ints = {a.name: list(a.ints) for a in node.attribute}
    starts = ints.get("starts") or walk.numbers(node, 1, ())
    ends = ints.get("ends") or walk.numbers(node, 2, ())
    steps = walk.numbers(node, 4, (1,))
    if known is None or known.is_scalar or not steps:
        return None
    if not starts or not ends or len(starts) != 1 or not steps[0]:
        return None
    return Known(known.elements[slice(starts[0], ends[0], steps[0])])


Combine = Callable[[int | str, int | str], "Dim"]


def _pairs(combine: Combine) -> Callable[[Walk, NodeProto], Known | None]:
    """Return a rule that combines two inputs element by element, a single one with all."""

    def rule(walk: Walk, node: NodeProto) -> Known | None:
        one, other = walk.value(node, 0), walk.value(node, 1)
        if one is None or other is None:
            return None
        length = max(len(one.elements), len(other.elements))
        if not {len(one.elements), len(other.elements)} <= {1, length}:
            return None
        a, b = (
            known.elements * (length if len(known.elements) == 1 else 1)
            for known in (one, other)
        )
        elements = tuple(
            None if x is None or y is None else combine(x, y)
            for x, y in zip(a, b, strict=True)
        )
        return Known(elements, one.is_scalar and other.is_scalar)

    return rule


def _add(a: int | str, b: int | str) -> Dim:
    return as_dim(total([terms_of(a), terms_of(b)]))


def _subtract(a: int | str, b: int | str) -> Dim:
    return as_dim(total([terms_of(a), multiplied([terms_of(b)], -1)]))


def _multiply(a: int | str, b: int | str) -> Dim:
    return product((a, b))


def _divide(a: int | str, b: int | str) -> Dim:
    """Divide as dims do: what is negative, where ONNX rounds the other way, is left alone."""
    terms = terms_of(a)
    if not isinstance(b, int) or b <= 0 or any(value < 0 for value in terms.values()):
        return None
    return as_dim(floored(terms, b))


def _smaller(a: int | str, b: int | str) -> Dim:
    return as_dim(parse_dim(f"min({a}, {b})"))


def _larger(a: int | str, b: int | str) -> Dim:
    return as_dim(parse_dim(f"max({a}, {b})"))


def _equal(a: int | str, b: int | str) -> Dim:
    """Compare numbers, and what is the same expression; a dim is never below zero."""
    if a == b:
        return 1
    numbers = [e for e in (a, b) if isinstance(e, int)]
    return 0 if len(numbers) == 2 or (numbers and numbers[0] < 0) else None


def _where(walk: Walk, node: NodeProto) -> Known | None:
    inputs = [walk.value(node, at) for at in range(3)]
    known = [value for value in inputs if value is not None]
    if len(known) < 3:
        return None
    length = max(len(value.elements) for value in known)
    if any(len(value.elements) not in (1, length) for value in known):
        return None
    which, yes, no = (
        value.elements * (length if len(value.elements) == 1 else 1) for value in known
    )
    chosen = tuple(
        None if not isinstance(w, int) else y if w else n
        for w, y, n in zip(which, yes, no, strict=True)
    )
    return Known(chosen, all(value.is_scalar for value in known))


def _filled(walk: Walk, node: NodeProto) -> Known | None:
    """ConstantOfShape of a vector: Expand's targets begin with one of ones."""
    length = walk.numbers(node, 0, ())
    value = next((_tensor(a.t) for a in node.attribute if a.name == "value"), None)
    if length is None or len(length) != 1 or not 0 <= length[0] <= _LONGEST or value is None:
        return None
    return Known(value.elements[:1] * length[0])


def _product_of(walk: Walk, node: NodeProto) -> Known | None:
    known = walk.value(node, 0)
    if known is None:
        return None
    return Known((product(known.elements),), is_scalar=not int_attribute(node, "keepdims", 1))


RULES: Mapping[str, Callable[[Walk, NodeProto], Known | None]] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _cast,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Add": _pairs(_add),
    "Sub": _pairs(_subtract),
    "Mul": _pairs(_multiply),
    "Div": _pairs(_divide),
    "Min": _pairs(_smaller),
    "Max": _pairs(_larger),
    "Equal": _pairs(_equal),
    "Where": _where,
    "ReduceProd": _product_of,
}
"""The rule of each operator whose result may be integers of a shape."""
