"""Bounds on sizes: interval arithmetic over dims that are between two numbers.

A tensor whose dims are bounded is planned at its largest: a plan of such sizes holds for
every value within the bounds, and lets tensors share memory whose sizes no expression
could order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product as cartesian
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import call_in, names_in
from memplan_cli.core.symbolic.sizes import Size

if TYPE_CHECKING:
    from memplan_cli.core.symbolic.polynomials import Polynomial

Interval = tuple[int, int]
"""The least and the greatest value, both included."""

Bounds = Mapping[str, Interval]

NO_BOUNDS: Bounds = {}


def at_most(size: Size, bounds: Bounds) -> Size:
    """Return the largest a size gets; symbols without bounds stay.

    The answer remembers what it is the bound of, because sizes that are equal at their
    largest need not be equal elsewhere.
    """
    inside = [s for s in size.symbols if names_in(parse_dim(s)) <= bounds.keys()]
    if not inside:
        return size
    coefficient = size.coefficient
    for symbol in inside:
        coefficient *= max(range_of(parse_dim(symbol), bounds)[1], 0)
    left = list(size.symbols)
    for symbol in inside:
        left.remove(symbol)
    return Size(coefficient, tuple(left) if coefficient else (), str(size))


def range_of(terms: Polynomial, bounds: Bounds) -> Interval:
    """Return numbers that an expression is never below and never above.

    Raises:
        KeyError: a symbol in it has no bounds.
    """
    low = high = 0
    for monomial, factor in terms.items():
        part = (factor, factor)
        for atom in monomial:
            part = _product(part, _range_of_atom(atom, bounds))
        low, high = low + part[0], high + part[1]
    return low, high


def _product(one: Interval, other: Interval) -> Interval:
    corners = [a * b for a, b in cartesian(one, other)]
    return min(corners), max(corners)


def _range_of_atom(atom: str, bounds: Bounds) -> Interval:
    call = call_in(atom)
    if call is None:
        return bounds[atom]
    name, arguments = call
    ranges = [range_of(argument, bounds) for argument in arguments]
    if name in ("min", "max"):
        pick = min if name == "min" else max
        return pick(low for low, _ in ranges), pick(high for _, high in ranges)
    top, bottom = ranges
    # What is divided by is a dim: at zero there is no result at all, below it is no dim.
    bottom = (max(bottom[0], 1), max(bottom[1], 1))
    if name == "mod":
        return 0, bottom[1] - 1
    corners = [(a, b) for a, b in cartesian(top, bottom)]
    if name == "floor":
        return min(a // b for a, b in corners), max(a // b for a, b in corners)
    return min(-(-a // b) for a, b in corners), max(-(-a // b) for a, b in corners)
