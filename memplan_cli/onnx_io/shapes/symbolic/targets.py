"""Shapes that are the values of an input: of Reshape, Expand, Range and their like.

Exporters write the target of a Reshape as a chain: Shape -> Gather -> Add -> Concat. Here a
target is known where the shapes behind it are, by number or by name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import call_in, constant, floored
from memplan_cli.onnx_io.shapes.symbolic.elements import (
    ceiling,
    divide,
    larger,
    subtract,
    terms_of,
)
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute, product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.core.symbolic.polynomials import Polynomial
    from memplan_cli.onnx_io.shapes.symbolic.values import Array, Values


def reshaped(values: Values, node: NodeProto) -> Shape | None:
    """Return a Reshape's shape: 0 copies a dim, -1 takes what is left."""
    known, shape = values.dims(node, 1), values.shape(node.input[0])
    if known is None:
        return None
    dims = list(known)
    if not int_attribute(node, "allowzero", 0):
        for at, dim in enumerate(dims):
            if dim == 0:
                dims[at] = shape[at] if shape is not None and at < len(shape) else None
    if -1 in dims:
        rest = [dim for dim in dims if dim != -1]
        dims[dims.index(-1)] = None if shape is None else quotient(shape, rest)
    return tuple(dims)


def quotient(whole: Shape, parts: Sequence[Dim]) -> Dim:
    """Divide one product of dims by another, where that leaves a product."""
    if None in whole or None in parts:
        return None
    left = list(whole)
    divisors = []
    for part in parts:
        if isinstance(part, str) and part in left:
            left.remove(part)
        else:
            divisors.append(part)
    top, bottom = terms_of(product(left)), terms_of(product(divisors))
    number = constant(bottom)
    if number is None:
        return _without(top, bottom)
    if not number or any(value % number for value in top.values()):
        return None
    return as_dim(floored(top, number))


def _without(top: Polynomial, bottom: Polynomial) -> Dim:
    """Divide by a single product, all of whose symbols each term has."""
    if len(bottom) != 1:
        return None
    ((monomial, number),) = bottom.items()
    found = {}
    for factors, value in top.items():
        left = list(factors)
        for atom in monomial:
            if atom not in left:
                return None
            left.remove(atom)
        if value % number:
            return None
        found[tuple(left)] = value // number
    return as_dim(found)


def broadcast(shapes: list[Shape]) -> Shape:
    """Return the shape that several are broadcast to."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(_common(dims) for dims in zip(*padded, strict=True))


def _common(dims: tuple[Dim, ...]) -> Dim:
    """Return the dim of several that are alike or 1: a number above 1 wins over any name."""
    numbers = [dim for dim in dims if isinstance(dim, int) and dim != 1]
    if numbers:
        return numbers[0]
    names = [*dict.fromkeys(dim for dim in dims if dim != 1)]
    if len(names) < 2:
        return names[0] if names else 1
    if None in names:
        return None
    for dim in names:
        if all(other == dim or _cuts(other, dim) for other in names):
            return dim
    return None


def _cuts(cut: Dim, dim: Dim) -> bool:
    """Whether a dim is another one cut at a number: broadcast with it, nothing was cut off."""
    terms = parse_dim(str(cut))
    if len(terms) != 1:
        return False
    ((monomial, factor),) = terms.items()
    call = call_in(monomial[0]) if len(monomial) == 1 and factor == 1 else None
    if call is None or call[0] != "min":
        return False
    others = [argument for argument in call[1] if argument != parse_dim(str(dim))]
    numbers = [constant(argument) for argument in others]
    return len(others) < len(call[1]) and all(n is not None and n > 1 for n in numbers)


def broadcasted(values: Values, node: NodeProto) -> Shape | None:
    """Return the shape of an operator on elements."""
    shapes = [values.shape(name) for name in node.input if name]
    known = [shape for shape in shapes if shape is not None]
    return broadcast(known) if known and len(known) == len(shapes) else None


def expanded(values: Values, node: NodeProto) -> Shape | None:
    """Return an Expand's shape: input and target, broadcast."""
    target, shape = values.dims(node, 1), values.shape(node.input[0])
    return None if target is None or shape is None else broadcast([shape, target])


def filled(values: Values, node: NodeProto) -> Shape | None:
    """Return a ConstantOfShape's shape."""
    return values.dims(node, 0)


def ranged(values: Values, node: NodeProto) -> Shape | None:
    """Return a Range's length: steps from its start to before its limit."""
    ends = [values.value(node, at) for at in range(3)]
    known = [end for end in ends if end is not None and end.array.size == 1]
    if len(known) < len(ends):
        return None
    if all(end.is_known for end in known):
        return (_steps(*(end.array.reshape(()) for end in known)),)
    start, limit, delta = (end.elements[0] for end in known)
    length = larger(ceiling(divide(subtract(limit, start), delta)), 0)
    return (length if isinstance(length, int | str) else None,)


def _steps(start: Array, limit: Array, delta: Array) -> Dim:
    """Count steps as ONNX Runtime's kernel does, in doubles whatever the type is.

    In their own type 0.1 to 2.5 by 0.1 is one step longer (measured with ONNX Runtime).
    """
    steps = (float(limit) - float(start)) / float(delta) if delta else math.nan
    return max(math.ceil(steps), 0) if math.isfinite(steps) else None


def topmost(values: Values, node: NodeProto) -> Shape | None:
    """Return a TopK's shape (opset 10 on): its axis is as long as its second input says."""
    shape, most = values.shape(node.input[0]), values.dims(node, 1)
    if shape is None or most is None or len(most) != 1:
        return None
    axis = int_attribute(node, "axis", -1) % len(shape)
    return (*shape[:axis], most[0], *shape[axis + 1 :])


def one_hot(values: Values, node: NodeProto) -> Shape | None:
    """Return a OneHot's shape: an axis more, as long as its depth."""
    shape, depth = values.shape(node.input[0]), values.dims(node, 1)
    if shape is None or depth is None or len(depth) != 1:
        return None
    axis = int_attribute(node, "axis", -1) % (len(shape) + 1)
    return (*shape[:axis], depth[0], *shape[axis:])
