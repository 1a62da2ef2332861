"""Arithmetic on single elements of small tensors: numbers, expressions of dims, or unknown.

A bool is 1 or 0. A result is None (unknown) unless it is exact for every value of the dims, all
of which are non-negative.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    apply_function,
    constant_polynomial,
    constant_value,
    floor_divide,
    multiply_polynomials,
    parse_call,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.program import Dim
    from memplan_cli.core.symbolic.polynomials import Polynomial

EXACT = 1 << 10
"""Factors whose numerator and denominator are below this are multiplied by dims up to 2^14 without rounding,
since float32 numbers are exact up to 2^24. Dims that a model scales are taken to be no larger."""

Element = int | float | str | None
"""An element of a tensor: a number, an expression of dims, or unknown."""


def polynomial_of(dim: Dim) -> Polynomial:
    """Return a known dim as a sum of products."""
    return parse_dim(str(dim))


def is_nonnegative(polynomial: Polynomial) -> bool:
    """Whether a polynomial is at least 0 for all values of its symbols; False if that is not certain."""
    return all(
        factor >= 0 and all(map(_is_nonnegative_atom, monomial))
        for monomial, factor in polynomial.items()
    )


def _is_nonnegative_atom(atom: str) -> bool:
    """Whether a symbol or a call such as ``max(n - 1, 0)`` is surely at least 0.

    A symbol is. One such argument is enough for ``max``; ``mod`` has the sign of its divisor, the second
    argument; all arguments are needed for ``min`` and divisions.
    """
    call = parse_call(atom)
    if call is None:
        return True
    name, arguments = call
    signs = [is_nonnegative(argument) for argument in arguments]
    if name == "max":
        return any(signs)
    return signs[1] if name == "mod" else all(signs)


def _polynomial(element: Element) -> Polynomial | None:
    """Return an element as a polynomial; None if it is unknown, a fraction, or a float that may be rounded."""
    if isinstance(element, float):
        if not element.is_integer() or abs(element) >= EXACT:
            return None
        element = int(element)
    return None if element is None else polynomial_of(element)


def _negated(polynomial: Polynomial) -> Polynomial:
    return multiply_polynomials([polynomial], factor=-1)


def _difference(a: Element, b: Element) -> Polynomial | None:
    """Return ``a - b``; None if an element is unknown."""
    first, second = _polynomial(a), _polynomial(b)
    if first is None or second is None:
        return None
    return add_polynomials([first, _negated(second)])


def add(a: Element, b: Element) -> Element:
    """Return ``a + b``."""
    first, second = _polynomial(a), _polynomial(b)
    if first is None or second is None:
        return None
    return as_dim(add_polynomials([first, second]))


def subtract(a: Element, b: Element) -> Element:
    """Return ``a - b``."""
    return add(a, negative(b))


def negative(a: Element) -> Element:
    """Return ``-a``."""
    return multiply(a, -1)


def multiply(a: Element, b: Element) -> Element:
    """Return ``a * b``; 0 times an unknown element is unknown (it may be infinite)."""
    first, second = _polynomial(a), _polynomial(b)
    if first is None or second is None:
        return None
    return as_dim(multiply_polynomials([first, second]))


def divide_whole(a: Element, b: Element) -> Element:
    """Return the integer quotient ``a // b`` for a positive number b; unknown if a may be negative.

    ONNX rounds to zero, floor division does not.
    """
    if not isinstance(a, int | str) or not isinstance(b, int) or b <= 0:
        return None
    polynomial = polynomial_of(a)
    return as_dim(floor_divide(polynomial, b)) if is_nonnegative(polynomial) else None


def divide(a: Element, b: Element) -> Element:
    """Return the float quotient ``a / b`` for a number b, if it is whole for all values of the dims."""
    first, second = _polynomial(a), _polynomial(b)
    number = constant_value(second) if second is not None else None
    if first is None or not number or any(factor % number for factor in first.values()):
        return None
    return as_dim({monomial: factor // number for monomial, factor in first.items()})


def divide_up(a: Element, b: Element) -> Element:
    """Return ``a / b``, rounded up; None if ``a`` is unknown or ``b`` is no number, or 0."""
    dividend, divisor = _polynomial(a), _polynomial(b)
    number = constant_value(divisor) if divisor is not None else None
    if dividend is None or not number:
        return None
    if number < 0:  # a / b is -a / -b; "ceiling" needs a positive divisor
        dividend, number = _negated(dividend), -number
    return as_dim(apply_function("ceiling", [dividend, constant_polynomial(number)]))


def smaller(a: Element, b: Element) -> Element:
    """Return ``min(a, b)``."""
    return _extreme("min", a, b)


def larger(a: Element, b: Element) -> Element:
    """Return ``max(a, b)``."""
    return _extreme("max", a, b)


def _extreme(name: str, a: Element, b: Element) -> Element:
    """Return the ``min`` or ``max``: one of the two if their order is certain, else a call.

    Unknown for floats whose order is not certain: there are no calls for them.
    """
    difference = _difference(a, b)
    if difference is None:
        return None
    result_if_a_is_larger, result_if_b_is_larger = (b, a) if name == "min" else (a, b)
    if is_nonnegative(difference):
        return result_if_a_is_larger
    if is_nonnegative(_negated(difference)):
        return result_if_b_is_larger
    if isinstance(a, int | str) and isinstance(b, int | str):
        return as_dim(apply_function(name, [polynomial_of(a), polynomial_of(b)]))
    return None


def equal(a: Element, b: Element) -> Element:
    """Return 1 if the elements are equal, 0 if they surely differ, else None."""
    difference = _difference(a, b)
    if difference is None:
        return None
    if not difference:
        return 1
    is_never_equal = _is_positive(difference) or _is_positive(_negated(difference))
    return 0 if is_never_equal else None


def _is_positive(polynomial: Polynomial) -> bool:
    """Whether a polynomial is above 0 for all values of its symbols; False if that is not certain."""
    return is_nonnegative(polynomial) and polynomial.get((), 0) > 0


def opposite(a: Element) -> Element:
    """Return ``not a``."""
    return None if a is None else int(not a)


def floor(a: Element) -> Element:
    """Return the largest integer that is not above ``a``; expressions are integers."""
    return _rounded(math.floor, a)


def ceiling(a: Element) -> Element:
    """Return the smallest integer that is not below ``a``; expressions are integers."""
    return _rounded(math.ceil, a)


def truncated(a: Element) -> Element:
    """Round towards zero, as a cast to an integer does; expressions are integers."""
    return _rounded(math.trunc, a)


def _rounded(function: Callable[[float], int], a: Element) -> Element:
    """Round a float with ``function``, to unknown if it is not finite; return another element as it is."""
    if isinstance(a, float):
        return function(a) if math.isfinite(a) else None
    return a


def is_true(a: Element) -> Element:
    """Return ``a != 0``, as a cast to bool does."""
    return opposite(equal(a, 0))
