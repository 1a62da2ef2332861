"""Arithmetic on single elements: numbers, expressions of dims, quotients of such, or nothing.

A truth value is 1 or 0. None is an element that is not known; whatever is not known for every
value of the dims, none of which is below zero, is None.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import (
    call_in,
    called,
    constant,
    floored,
    multiplied,
    total,
)

if TYPE_CHECKING:
    from memplan_cli.core.program import Dim
    from memplan_cli.core.symbolic.polynomials import Polynomial

EXACT = 1 << 10
"""Factors whose parts are below this are multiplied without rounding, for dims below 2^14:
the product of single-precision numbers is exact up to 2^24."""

_MAX_POWER = 4


class Ratio(NamedTuple):
    """A float that is an expression divided by a number above one."""

    top: Polynomial
    below: int


Element = int | float | str | Ratio | None


def terms_of(dim: Dim) -> Polynomial:
    """Return a dim that is known as a sum of products."""
    return parse_dim(str(dim))


def is_nonnegative(terms: Polynomial) -> bool:
    """Whether a sum is below zero for no value of its symbols."""
    return all(
        factor >= 0 and all(map(_is_nonnegative_atom, monomial))
        for monomial, factor in terms.items()
    )


def _is_nonnegative_atom(atom: str) -> bool:
    call = call_in(atom)
    if call is None:
        return True
    name, arguments = call
    signs = [is_nonnegative(argument) for argument in arguments]
    return any(signs) if name == "max" else signs[1] if name == "mod" else all(signs)


def _ratio(element: Element) -> Ratio | None:
    """Return an element as a quotient; None where a float would round it."""
    if isinstance(element, Ratio):
        # Divided by anything but a power of two, it was rounded: only its floor is sure.
        return element if element.below & (element.below - 1) == 0 else None
    if isinstance(element, float):
        if not math.isfinite(element):
            return None
        value = Fraction(element)
        if max(abs(value.numerator), value.denominator) >= EXACT:
            return None
        return Ratio(_number(value.numerator), value.denominator)
    return None if element is None else Ratio(terms_of(element), 1)


def _number(value: int) -> Polynomial:
    return {(): value} if value else {}


def _reduced(top: Polynomial, below: int) -> Element:
    common = math.gcd(below, *top.values())
    top, below = {m: v // common for m, v in top.items()}, below // common
    if below == 1:
        return as_dim(top)
    value = constant(top)
    if value is None:
        return Ratio(top, below)
    return value / below if below & (below - 1) == 0 else None


def _difference(a: Element, b: Element) -> Polynomial | None:
    """Return a multiple of ``a - b`` that has its sign."""
    one, other = _ratio(a), _ratio(b)
    if one is None or other is None:
        return None
    left = multiplied([one.top], other.below)
    return total([left, multiplied([other.top], -one.below)])


def add(a: Element, b: Element) -> Element:
    """Add two elements."""
    one, other = _ratio(a), _ratio(b)
    if one is None or other is None:
        return None
    tops = multiplied([one.top], other.below), multiplied([other.top], one.below)
    return _reduced(total(tops), one.below * other.below)


def subtract(a: Element, b: Element) -> Element:
    """Subtract two elements."""
    return add(a, negative(b))


def negative(a: Element) -> Element:
    """Return an element with the other sign."""
    return multiply(a, -1)


def multiply(a: Element, b: Element) -> Element:
    """Multiply two elements; zero times what is not known is not known."""
    one, other = _ratio(a), _ratio(b)
    if one is None or other is None:
        return None
    return _reduced(multiplied([one.top, other.top]), one.below * other.below)


def divide_whole(a: Element, b: Element) -> Element:
    """Divide as integers: what may be negative, where ONNX rounds the other way, is left alone."""
    if not isinstance(a, int | str) or not isinstance(b, int) or b <= 0:
        return None
    terms = terms_of(a)
    return as_dim(floored(terms, b)) if is_nonnegative(terms) else None


def divide(a: Element, b: Element) -> Element:
    """Divide as floats, by a number."""
    one, other = _ratio(a), _ratio(b)
    number = constant(other.top) if other is not None else None
    if one is None or other is None or not number:
        return None
    sign = 1 if number > 0 else -1
    return _reduced(multiplied([one.top], other.below * sign), one.below * abs(number))


def modulo(a: Element, b: Element) -> Element:
    """Return the remainder of integers that are not negative."""
    if not isinstance(a, int | str) or not isinstance(b, int) or b <= 0:
        return None
    terms = terms_of(a)
    return as_dim(called("mod", [terms, _number(b)])) if is_nonnegative(terms) else None


def power(a: Element, b: Element) -> Element:
    """Raise to a small whole power."""
    exponent = int(b) if isinstance(b, int | float) and b == int(b) else -1
    if not 0 <= exponent <= _MAX_POWER:
        return None
    found: Element = 1
    for _ in range(exponent):
        found = multiply(found, a)
    return found


def smaller(a: Element, b: Element) -> Element:
    """Return the smaller of two elements."""
    return _extreme("min", a, b)


def larger(a: Element, b: Element) -> Element:
    """Return the larger of two elements."""
    return _extreme("max", a, b)


def _extreme(name: str, a: Element, b: Element) -> Element:
    apart = _difference(a, b)
    if apart is None:
        return None
    first, second = (b, a) if name == "min" else (a, b)
    if is_nonnegative(apart):
        return first
    if is_nonnegative(multiplied([apart], -1)):
        return second
    if isinstance(a, int | str) and isinstance(b, int | str):
        return as_dim(called(name, [terms_of(a), terms_of(b)]))
    return None


def equal(a: Element, b: Element) -> Element:
    """Compare two elements."""
    apart = _difference(a, b)
    if apart is None:
        return None
    return 1 if not apart else 0 if _is_positive(apart, 1) or _is_positive(apart, -1) else None


def _is_positive(terms: Polynomial, sign: int) -> bool:
    signed = multiplied([terms], sign)
    return is_nonnegative(signed) and signed.get((), 0) > 0


def less(a: Element, b: Element) -> Element:
    """Whether the first is below the second."""
    apart = _difference(b, a)
    if apart is None:
        return None
    return (
        1 if _is_positive(apart, 1) else 0 if is_nonnegative(multiplied([apart], -1)) else None
    )


def opposite(a: Element) -> Element:
    """Negate a truth value."""
    return None if a is None else int(not a)


def both(a: Element, b: Element) -> Element:
    """Whether both hold: not where one is known not to."""
    return 0 if 0 in (a, b) else None if None in (a, b) else 1


def either(a: Element, b: Element) -> Element:
    """Whether one holds: it does where one is known to."""
    return opposite(both(opposite(a), opposite(b)))


def differ(a: Element, b: Element) -> Element:
    """Whether one truth value is the other's opposite."""
    return None if a is None or b is None else int(bool(a) != bool(b))


def chosen(which: Element, yes: Element, no: Element) -> Element:
    """Return one of two elements; what is not known to be chosen is known where both are alike."""
    if which is None:
        return yes if yes == no else None
    return yes if which else no


def floor(a: Element) -> Element:
    """Round down."""
    if isinstance(a, float):
        return math.floor(a) if math.isfinite(a) else None
    return as_dim(floored(a.top, a.below)) if isinstance(a, Ratio) else a


def ceiling(a: Element) -> Element:
    """Round up."""
    if isinstance(a, float):
        return math.ceil(a) if math.isfinite(a) else None
    if not isinstance(a, Ratio):
        return a
    return as_dim(called("ceiling", [a.top, _number(a.below)]))


def truncated(a: Element) -> Element:
    """Round to zero, as a cast to integers does."""
    if isinstance(a, float):
        return int(a) if math.isfinite(a) else None
    if isinstance(a, Ratio):
        return floor(a) if is_nonnegative(a.top) else None
    return a


def magnitude(a: Element) -> Element:
    """Return an element that may not be negative as it is."""
    return larger(a, negative(a)) if isinstance(a, int | str) else None


def is_true(a: Element) -> Element:
    """Whether an element is not zero, as a cast to truth values says."""
    return opposite(equal(a, 0))
