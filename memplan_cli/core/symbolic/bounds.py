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
    """Return an upper bound of a size: each factor with bounded symbols is replaced by its upper bound.

    A factor is a symbol or an expression, such as ``n + past``. The result is a number if all symbols have
    bounds. A factor stays as it is if `_upper_bound` finds no bound.

    The exact size is kept in ``bound_of``, because two sizes with equal bounds need not be equal.
    """
    factors = [parse_dim(text) for text in size.symbols]
    upper_bounds = [
        _upper_bound(factor, bounds) if symbol_names(factor) & bounds.keys() else None
        for factor in factors
    ]
    if all(upper_bound is None for upper_bound in upper_bounds):
        return size
    largest_factors = [
        factor if upper_bound is None else upper_bound
        for factor, upper_bound in zip(factors, upper_bounds, strict=True)
    ]
    return replace(product_of(largest_factors, size.coefficient), bound_of=str(size))


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


def _upper_bound(polynomial: Polynomial, bounds: Bounds) -> Polynomial | None:
    """Return an upper bound of a factor of a size: bounded symbols are replaced by numbers, others stay.

    None if a bounded part is multiplied by a part that may be negative, or if a call, such as
    ``floor((n + past) / 2)``, has bounded and other symbols.
    """
    if symbol_names(polynomial) <= bounds.keys():
        high = range_of(polynomial, bounds)[1]
        # A negative factor has the bound 0 too, so that no size is negative.
        return {(): max(high, 0)}
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
    """Return an upper bound of ``coefficient * monomial`` in the symbols without bounds; None if none is found.

    With n from 1 to 8, the bound of ``2*n*batch`` is ``16*batch``.
    """
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
    # Symbols are dims and never negative: the term is at most ``high`` times the symbols. But a call, such as
    # ``min(a, b - 1)``, may be negative: of 2 to 16 times -1, the largest is 2 times -1.
    has_call = any(parse_call(atom) is not None for atom in unbounded_atoms)
    if has_call and low != high:
        return None  # the sign of the call is unknown
    atom_polynomials: list[Polynomial] = [{(atom,): 1} for atom in unbounded_atoms]
    return multiply_polynomials(atom_polynomials, high)


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
