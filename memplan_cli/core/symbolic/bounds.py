"""Upper bounds of symbolic sizes whose dims lie between two numbers.

A tensor whose dims are bounded is planned with the largest size that it can have. Such a plan is
valid for every value within the bounds, and tensors whose symbolic sizes cannot be compared can
share memory.

Interval arithmetic bounds each factor on its own, so the bound of ``n * floor(1000/n)`` is too large:
it is the product of the largest ``n`` and the largest quotient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product as cartesian
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    multiply_polynomials,
    parse_call,
    symbol_names,
)
from memplan_cli.core.symbolic.sizes import Size, product_of

if TYPE_CHECKING:
    from memplan_cli.core.symbolic.polynomials import Polynomial

Interval = tuple[int, int]
"""The smallest and the largest value, both included."""


class DimRange(NamedTuple):
    """The numbers that a dim with bounds may have: ``low``, ``low + step``, and so on up to ``high``."""

    low: int
    high: int
    step: int = 1

    def __str__(self) -> str:
        """Return the range in the form of ``--bounds``: ``1..64``, or ``32..640:32`` with a step."""
        step = f":{self.step}" if self.step != 1 else ""
        return f"{self.low}..{self.high}{step}"

    @property
    def values(self) -> range:
        """All numbers of the range."""
        return range(self.low, self.high + 1, self.step)


Bounds = Mapping[str, DimRange]
"""The range of each bounded symbol."""

NO_BOUNDS: Bounds = {}


def largest_size(size: Size, bounds: Bounds) -> Size:
    """Return an upper bound of a size; symbols without bounds stay in it.

    It is a number if all symbols have bounds. Otherwise each bounded factor is replaced by its own
    upper bound, or kept if `_upper_bound` finds none.

    The exact size is kept in ``bound_of``, because two sizes with equal bounds need not be equal.
    """
    bounded = [s for s in size.symbols if symbol_names(parse_dim(s)) & bounds.keys()]
    if not bounded:
        return size
    max_bytes = _max_bytes(size, bounds)
    if max_bytes is not None:
        return Size(max_bytes, bound_of=str(size))
    remaining, factors = list(size.symbols), []
    for symbol in bounded:
        upper_bound = _upper_bound(parse_dim(symbol), bounds)
        if upper_bound is not None:
            remaining.remove(symbol)
            factors.append(upper_bound)
    if not factors:
        return size
    largest = product_of([*factors, *map(parse_dim, remaining)], size.coefficient)
    return replace(largest, bound_of=str(size))


def range_of(polynomial: Polynomial, bounds: Bounds) -> Interval:
    """Return an interval that contains all values of a polynomial. It may be too wide.

    Raises:
        KeyError: a symbol has no bounds.
    """
    low = high = 0
    for monomial, coefficient in polynomial.items():
        interval = (coefficient, coefficient)
        for atom in monomial:
            interval = _multiply_intervals(interval, _range_of_atom(atom, bounds))
        low, high = low + interval[0], high + interval[1]
    return low, high


def _max_bytes(size: Size, bounds: Bounds) -> int | None:
    """Return an upper bound of a size in bytes; None if one of its symbols has no bounds."""
    factors = [parse_dim(symbol) for symbol in size.symbols]
    if not all(symbol_names(factor) <= bounds.keys() for factor in factors):
        return None
    # A factor of a size is never negative, although its interval may reach below 0.
    return size.coefficient * prod(max(range_of(factor, bounds)[1], 0) for factor in factors)


def _upper_bound(polynomial: Polynomial, bounds: Bounds) -> Polynomial | None:
    """Return an upper bound of a polynomial, as a polynomial of the symbols without bounds.

    None if the bound cannot be expressed: a bounded part is multiplied by a part that may be
    negative, or a call has bounded and other symbols. The polynomial is a factor of a size, so a
    number below 0 counts as 0.
    """
    if symbol_names(polynomial) <= bounds.keys():
        return {(): max(range_of(polynomial, bounds)[1], 0)}
    terms = []
    for monomial, coefficient in polynomial.items():
        term = _upper_bound_of_term(monomial, coefficient, bounds)
        if term is None:
            return None
        terms.append(term)
    return add_polynomials(terms)


def _upper_bound_of_term(
    monomial: tuple[str, ...], coefficient: int, bounds: Bounds
) -> Polynomial | None:
    """Return an upper bound of ``coefficient * monomial``, or None: see `_upper_bound`."""
    interval = (coefficient, coefficient)  # of the coefficient times the bounded atoms
    unbounded_atoms = []
    for atom in monomial:
        names = symbol_names({(atom,): 1})
        if names <= bounds.keys():
            interval = _multiply_intervals(interval, _range_of_atom(atom, bounds))
        elif names & bounds.keys():
            return None  # a call of bounded and other symbols
        else:
            unbounded_atoms.append(atom)
    low, high = interval
    # An atom is a symbol or a call. A symbol is a dim and never negative, so that the term is
    # largest at ``high``. A call may be negative, and then the term is largest at ``low``.
    has_call = any(parse_call(atom) is not None for atom in unbounded_atoms)
    if has_call and low != high:
        return None
    return multiply_polynomials([{(atom,): 1} for atom in unbounded_atoms], high)


def _range_of_atom(atom: str, bounds: Bounds) -> Interval:
    """Return an interval that contains all values of a symbol or a call."""
    call = parse_call(atom)
    if call is None:
        low, high, _ = bounds[atom]
        return low, high
    name, arguments = call
    ranges = [range_of(argument, bounds) for argument in arguments]
    if name in ("min", "max"):
        pick = min if name == "min" else max
        return pick(low for low, _ in ranges), pick(high for _, high in ranges)
    dividend, divisor = ranges
    # A divisor is a dim. A model with a divisor of zero has no result, so it is at least 1.
    divisor = (max(divisor[0], 1), max(divisor[1], 1))
    if name == "mod":
        return 0, divisor[1] - 1
    corners = list(cartesian(dividend, divisor))
    if name == "floor":
        quotients = [a // b for a, b in corners]
    else:
        quotients = [-(-a // b) for a, b in corners]
    return min(quotients), max(quotients)


def _multiply_intervals(interval: Interval, other: Interval) -> Interval:
    corners = [a * b for a, b in cartesian(interval, other)]
    return min(corners), max(corners)
