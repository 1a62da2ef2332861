"""Bounds on sizes: interval arithmetic over dims that are between two numbers.

A tensor whose dims are bounded is planned at its largest: a plan of such sizes holds for
every value within the bounds, and lets tensors share memory whose sizes no expression
could order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product as cartesian
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.joint import largest_product
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    apply_function,
    multiply_polynomials,
    parse_call,
    symbol_names,
)
from memplan_cli.core.symbolic.sizes import Size, product_of

if TYPE_CHECKING:
    from memplan_cli.core.symbolic.polynomials import Polynomial

Interval = tuple[int, int]
"""The least and the greatest value, both included."""

Bounds = Mapping[str, Interval]

NO_BOUNDS: Bounds = {}


def largest_size(size: Size, bounds: Bounds) -> Size:
    """Return the largest a size gets; symbols without bounds stay.

    The answer remembers what it is the bound of, because sizes that are equal at their
    largest need not be equal elsewhere.
    """
    inside = [s for s in size.symbols if symbol_names(parse_dim(s)) & bounds.keys()]
    if not inside:
        return size
    whole = _largest_whole(size, bounds)
    if whole is not None:
        return Size(whole, bound_of=str(size))
    left, factors = list(size.symbols), []
    for symbol in inside:
        largest = _largest(parse_dim(symbol), bounds)
        if largest is not None:
            left.remove(symbol)
            factors.append(largest)
    if not factors:
        return size
    most = product_of([*factors, *map(parse_dim, left)], size.coefficient)
    return replace(most, bound_of=str(size))


def _largest_whole(size: Size, bounds: Bounds) -> int | None:
    """Return the most bytes of a size all of whose symbols have bounds; None of others."""
    factors = [parse_dim(symbol) for symbol in size.symbols]
    if not all(symbol_names(terms) <= bounds.keys() for terms in factors):
        return None
    apart = size.coefficient * prod(max(range_of(terms, bounds)[1], 0) for terms in factors)
    if not any(parse_call(atom) for terms in factors for product in terms for atom in product):
        return apart
    try:
        terms = multiply_polynomials(factors, size.coefficient)
    except ValueError:  # more products than anybody would write down
        return apart
    together = largest_product(terms, lambda atom: range_of({(atom,): 1}, bounds))
    return apart if together is None else min(apart, together)


def _largest(terms: Polynomial, bounds: Bounds) -> Polynomial | None:
    """Return what an expression is never above, in its symbols without bounds.

    None where a part that has bounds is multiplied by one that may be negative, or hangs on
    other symbols in a way that is not known to grow with it.
    """
    if symbol_names(terms) <= bounds.keys():
        return {(): max(range_of(terms, bounds)[1], 0)}
    parts = []
    for monomial, factor in terms.items():
        part = _largest_product(monomial, factor, bounds)
        if part is None:
            return None
        parts.append(part)
    return add_polynomials(parts)


def _largest_product(
    monomial: tuple[str, ...], factor: int, bounds: Bounds
) -> Polynomial | None:
    interval, free = (factor, factor), []
    for atom in monomial:
        names = symbol_names({(atom,): 1})
        if names <= bounds.keys():
            interval = _product(interval, _range_of_atom(atom, bounds))
        elif names & bounds.keys():
            grown = (
                _largest_call(atom, bounds)
                if (monomial, factor > 0) == ((atom,), True)
                else None
            )
            return None if grown is None else multiply_polynomials([grown], factor)
        else:
            free.append(atom)
    if free and interval[0] != interval[1] and any(map(parse_call, free)):
        return None
    return multiply_polynomials([{(atom,): 1} for atom in free], interval[1])


def _largest_call(atom: str, bounds: Bounds) -> Polynomial | None:
    """Return what a call is never above, if it grows with each of its arguments."""
    name, arguments = parse_call(atom) or ("", ())
    if name in ("floor", "ceiling"):
        if symbol_names(arguments[1]) or range_of(arguments[1], bounds)[0] < 1:
            return None
    elif name not in ("min", "max"):
        return None
    grown = [_largest(argument, bounds) for argument in arguments]
    return (
        None
        if None in grown
        else apply_function(name, [each for each in grown if each is not None])
    )


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
    call = parse_call(atom)
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
