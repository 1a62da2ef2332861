"""Shape rules of operators whose output shape is a value or a broadcast: Reshape, Expand, Range.

Exporters write the target of a Reshape as a chain Shape -> Gather -> Add -> Concat. Here a target
is known if the shapes that it is computed from are, as numbers or as names.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memplan_cli.core.operators import names_of
from memplan_cli.core.symbolic.bounds import DimRange, range_of
from memplan_cli.core.symbolic.dims import as_dim, canonical_dim
from memplan_cli.core.symbolic.polynomials import (
    constant_value,
    floor_divide,
    parse_call,
    symbol_names,
)
from memplan_cli.onnx_io.shapes.symbolic.elements import (
    divide_up,
    larger,
    polynomial_of,
    subtract,
)
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.core.symbolic.polynomials import Polynomial
    from memplan_cli.onnx_io.shapes.symbolic.values import Rule, Values

_LARGEST_DIM = (1 << 63) - 1
"""Dims of tensors are of int64."""


def reshape_shape(values: Values, node: NodeProto) -> Shape | None:
    """Reshape: the target, where 0 copies the input's dim and -1 takes the remaining elements.

    With ``allowzero`` a 0 stays 0. An expression that may have such a special value, as ``n - 2`` may be -1,
    gives an unknown dim.
    """
    target = values.input_dims(node, 1)
    input_shape = values.shape(node.input[0])
    if target is None:
        return None
    dims = list(target)
    copies_zero = not int_attribute(node, "allowzero", 0)
    known_dims = input_shape or ()
    elements = product(target)
    has_same_count = elements is not None and elements == product(known_dims)
    for axis, dim in enumerate(dims):
        if dim == 0 and copies_zero:
            dims[axis] = known_dims[axis] if axis < len(known_dims) else None
        elif isinstance(dim, str):
            may_be_special = _least(dim) < (1 if copies_zero else 0)
            # n - 2 is never -1 if the input has an axis of n - 2 or, for a target (n - 2, m), m * (n - 2) elements.
            is_never_negative = dim in known_dims or has_same_count
            # It may be 0, which copies a dim of the input. The dim here is wrong then. Input and result have 0 bytes
            # with it, but tensors that are computed from this shape may be counted too small (docs/limits.md).
            if may_be_special and not is_never_negative:
                dims[axis] = None
    if -1 in dims:
        others = [dim for dim in dims if dim != -1]
        inferred = None if input_shape is None else divide_dims(input_shape, others)
        dims[dims.index(-1)] = inferred
    return tuple(dims)


def _least(dim: str) -> int:
    """Return a lower bound of an expression whose symbols are all at least 1."""
    polynomial = polynomial_of(dim)
    bounds = {name: DimRange(1, _LARGEST_DIM) for name in symbol_names(polynomial)}
    return range_of(polynomial, bounds)[0]


def divide_dims(dividend: Shape, divisor: Sequence[Dim]) -> Dim:
    """Return the product of one list of dims divided by that of another.

    None if a dim is unknown, or if the division may leave a remainder.
    """
    # Equal dims cancel first, because `_divided_by_monomial` cannot divide by several terms (``past+s``).
    remaining = list(dividend)
    divisors = []
    for dim in divisor:
        if isinstance(dim, str) and dim in remaining:
            remaining.remove(dim)
        else:
            divisors.append(dim)
    dividend_product, divisor_product = product(remaining), product(divisors)
    if dividend_product is None or divisor_product is None:
        return None  # a dim is unknown, or an expression has too many terms
    numerator, denominator = polynomial_of(dividend_product), polynomial_of(divisor_product)
    number = constant_value(denominator)
    if number is None:
        return _divided_by_monomial(numerator, denominator)
    if not number or any(value % number for value in numerator.values()):
        return None
    return as_dim(floor_divide(numerator, number))


def _divided_by_monomial(numerator: Polynomial, denominator: Polynomial) -> Dim:
    """Return the quotient if ``denominator`` is one monomial that divides each term, else None.

    For example ``6 n s + 4 n`` by ``2 n`` is ``3 s + 2``.
    """
    if len(denominator) != 1:
        return None
    ((monomial, number),) = denominator.items()
    quotient = {}
    for factors, value in numerator.items():
        remaining = list(factors)
        for atom in monomial:
            if atom not in remaining:
                return None
            remaining.remove(atom)
        if value % number:
            return None
        quotient[tuple(remaining)] = value // number
    return as_dim(quotient)


def broadcast_shapes(shapes: list[Shape]) -> Shape:
    """Return the shape to which one or more are broadcast; None for a dim that is not certain."""
    rank = max(len(shape) for shape in shapes)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(_broadcast_dim(dims) for dims in zip(*aligned, strict=True))


def _broadcast_dim(dims: tuple[Dim, ...]) -> Dim:
    """Return the dim to which several are broadcast.

    A number other than 1 decides. Dims of 1 do not count. If the others are equal, they are the result.
    Of two different ones each may be 1, so the result is unknown (None). But ``d`` and ``min(d, 7)`` give
    ``d`` (see `_is_clamped`).
    """
    numbers = [dim for dim in dims if isinstance(dim, int) and dim != 1]
    if numbers:
        return numbers[0]
    names_or_none = [*dict.fromkeys(dim for dim in dims if dim != 1)]
    if len(names_or_none) < 2:
        return names_or_none[0] if names_or_none else 1
    if None in names_or_none:
        return None
    for dim in names_or_none:
        if all(other == dim or _is_clamped(other, dim) for other in names_or_none):
            return dim
    return None


def _is_clamped(clamped: Dim, dim: Dim) -> bool:
    """Whether ``clamped`` is ``min(dim, number, ..)`` with numbers above 1.

    Then ``clamped`` is 1 if ``dim`` is, and only then. So if the two broadcast to one another, they are equal.
    """
    call = parse_call(str(canonical_dim(str(clamped))))  # only canonical texts are parsed
    if call is None:  # a name, a sum, a product or a number
        return False
    function, arguments = call
    dim_polynomial = polynomial_of(dim)  # arguments are polynomials too
    if function != "min" or dim_polynomial not in arguments:
        return False
    numbers = [constant_value(other) for other in arguments if other != dim_polynomial]
    return all(number is not None and number > 1 for number in numbers)


def elementwise_shape(values: Values, node: NodeProto) -> Shape | None:
    """Elementwise operators: the broadcast of all inputs."""
    shapes = [values.shape(name) for name in node.input if name]
    known_shapes = [shape for shape in shapes if shape is not None]
    if not known_shapes or len(known_shapes) < len(shapes):
        return None
    return broadcast_shapes(known_shapes)


def expand_shape(values: Values, node: NodeProto) -> Shape | None:
    """Expand: the broadcast of the input's shape and the target."""
    target, shape = values.input_dims(node, 1), values.shape(node.input[0])
    return None if target is None or shape is None else broadcast_shapes([shape, target])


def constant_of_shape_shape(values: Values, node: NodeProto) -> Shape | None:
    """ConstantOfShape: the elements of its input."""
    return values.input_dims(node, 0)


def range_shape(values: Values, node: NodeProto) -> Shape | None:
    """Range: (max(ceil((limit - start) / delta), 0),)."""
    inputs = [values.input_value(node, index) for index in range(3)]
    scalars = [value for value in inputs if value is not None and value.array.size == 1]
    if len(scalars) < len(inputs):
        return None
    if all(value.is_known for value in scalars):
        return (_range_length(*(float(value.array.item()) for value in scalars)),)
    # Each element is a number, an expression of dims, or None. A length that is a float is no dim.
    start, limit, delta = (value.elements[0] for value in scalars)
    length = larger(divide_up(subtract(limit, start), delta), 0)
    return (length if isinstance(length, int | str) else None,)


def _range_length(start: float, limit: float, delta: float) -> Dim:
    """Return the length of a Range as ONNX Runtime's kernel counts it: in doubles for every type.

    In float32 0.1 to 2.5 by 0.1 would be one step longer (measured with ONNX Runtime).
    """
    steps = (limit - start) / delta if delta else math.nan
    return max(math.ceil(steps), 0) if math.isfinite(steps) else None


def top_k_shape(values: Values, node: NodeProto) -> Shape | None:
    """TopK (opset 10 on): the input's shape with dim ``axis`` replaced by k, the second input."""
    shape, k = values.shape(node.input[0]), values.input_dims(node, 1)
    if shape is None or k is None or len(k) != 1:
        return None
    axis = int_attribute(node, "axis", -1) % len(shape)
    return (*shape[:axis], k[0], *shape[axis + 1 :])


RULES: Mapping[str, Rule] = {
    "ConstantOfShape": constant_of_shape_shape,
    "Expand": expand_shape,
    "Range": range_shape,
    "Reshape": reshape_shape,
    "TopK": top_k_shape,
    **dict.fromkeys(names_of(lambda op: op.broadcasts), elementwise_shape),
}
"""The shape rules of this file, by operator."""
