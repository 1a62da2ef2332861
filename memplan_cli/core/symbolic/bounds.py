"""Upper bounds of symbolic sizes whose dims lie between two numbers.

A tensor whose dims are bounded is planned with the largest size that it can have. Such a plan is
valid for every value within the bounds, and tensors whose symbolic sizes cannot be compared can
share memory.

Interval arithmetic bounds each factor of a size on its own, which is too much if one factor is
divided by another:

    rows * length,  rows = min(length, floor(1000/length)),  length = 1..100

gives 100 * 100. `_ProductBounds` therefore replaces a call in a product by an upper bound of it
(here ``1000/length``), cancels common factors, and so finds 1000. Every replacement gives a valid
bound, so the smallest of them is valid too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import product as cartesian
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import (
    add_polynomials,
    apply_function,
    multiply_polynomials,
    parse_call,
    symbol_names,
)
from memplan_cli.core.symbolic.sizes import Size, product_of

if TYPE_CHECKING:
    from memplan_cli.core.symbolic.polynomials import Call, Polynomial

Interval = tuple[int, int]
"""The smallest and the largest value, both included."""

Bounds = Mapping[str, Interval]
"""The interval of each bounded symbol."""

NO_BOUNDS: Bounds = {}

Atoms = tuple[str, ...]
"""Factors of a product, symbols and calls, sorted."""

_MAX_CALLS = 4
"""Above this number of calls in a product only intervals are used: the work grows factorially."""


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
    by_intervals = size.coefficient * prod(
        max(range_of(factor, bounds)[1], 0) for factor in factors
    )
    # Intervals take each factor at its largest. Only calls can do better: in n * floor(k/n) the n
    # cancels, so the product is at most k.
    if not any(
        parse_call(atom) for factor in factors for monomial in factor for atom in monomial
    ):
        return by_intervals
    try:
        polynomial = multiply_polynomials(factors, size.coefficient)
    except ValueError:  # too many terms
        return by_intervals
    # `_ProductBounds` counts a subtracted term as 0: that bound is seldom the smaller one.
    if any(coefficient < 0 for coefficient in polynomial.values()):
        return by_intervals
    product_bounds = _ProductBounds(lambda atom: range_of({(atom,): 1}, bounds))
    by_cancelling = product_bounds.of_sum(polynomial, (), ())
    return by_intervals if by_cancelling is None else min(by_intervals, int(by_cancelling))


def _upper_bound(polynomial: Polynomial, bounds: Bounds) -> Polynomial | None:
    """Return an upper bound of a polynomial, as a polynomial of the symbols without bounds.

    None if the bound cannot be expressed: a bounded part is multiplied by a part that may be
    negative, or a call mixes bounded and other symbols and need not grow with them. The polynomial
    is a factor of a size, so a number below 0 counts as 0.
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
    interval, unbounded_atoms = (coefficient, coefficient), []
    for atom in monomial:
        names = symbol_names({(atom,): 1})
        if names <= bounds.keys():
            interval = _multiply_intervals(interval, _range_of_atom(atom, bounds))
        elif names & bounds.keys():
            # A call with both kinds of symbols: only if it is the whole, positive term.
            if len(monomial) > 1 or coefficient < 0:
                return None
            call_bound = _upper_bound_of_call(atom, bounds)
            return (
                None if call_bound is None else multiply_polynomials([call_bound], coefficient)
            )
        else:
            unbounded_atoms.append(atom)
    if (
        unbounded_atoms
        and interval[0] != interval[1]
        and any(map(parse_call, unbounded_atoms))
    ):
        return None  # a call may be negative, and the term is then largest at interval[0]
    return multiply_polynomials([{(atom,): 1} for atom in unbounded_atoms], interval[1])


def _upper_bound_of_call(atom: str, bounds: Bounds) -> Polynomial | None:
    """Return an upper bound of a call that grows with each of its arguments; None of others.

    These are min, max, and floor and ceiling of a quotient by a positive number.
    """
    name, arguments = parse_call(atom) or ("", ())
    if name in ("floor", "ceiling"):
        divisor = arguments[1]
        if symbol_names(divisor) or range_of(divisor, bounds)[0] < 1:
            return None
    elif name not in ("min", "max"):
        return None
    argument_bounds = [_upper_bound(argument, bounds) for argument in arguments]
    known_bounds = [bound for bound in argument_bounds if bound is not None]
    return (
        apply_function(name, known_bounds)
        if len(known_bounds) == len(argument_bounds)
        else None
    )


def _range_of_atom(atom: str, bounds: Bounds) -> Interval:
    """Return an interval that contains all values of a symbol or a call."""
    call = parse_call(atom)
    if call is None:
        return bounds[atom]
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


class _ProductBounds:
    """Upper bounds of fractions of atoms: ``numerator / denominator``, each computed once.

    A bound is None if an atom may be negative.

    Args:
        range_of_atom: returns the interval of a symbol or call.
    """

    def __init__(self, range_of_atom: Callable[[str], Interval]) -> None:
        self._range_of_atom = lru_cache(maxsize=None)(range_of_atom)
        self._bounds: dict[tuple[Atoms, Atoms], Fraction | None] = {}

    def of_sum(
        self, polynomial: Polynomial, numerator: Atoms, denominator: Atoms
    ) -> Fraction | None:
        """Return an upper bound of ``polynomial * numerator / denominator``."""
        total = Fraction(0)
        for monomial, coefficient in polynomial.items():
            bound = self._of_product((*monomial, *numerator), denominator)
            if bound is None:
                return None
            # A term that is subtracted is at least 0, because no atom is negative.
            total += max(coefficient, 0) * bound
        return total

    def _of_product(self, numerator: Atoms, denominator: Atoms) -> Fraction | None:
        """Return an upper bound of ``numerator / denominator``."""
        fraction = _cancelled(numerator, denominator)
        if fraction not in self._bounds:
            self._bounds[fraction] = self._of_cancelled(*fraction)
        return self._bounds[fraction]

    def _of_cancelled(self, numerator: Atoms, denominator: Atoms) -> Fraction | None:
        """Return the smallest bound by intervals and by replacing any of the calls."""
        numerator_ranges = list(map(self._range_of_atom, numerator))
        denominator_ranges = list(map(self._range_of_atom, denominator))
        if any(low < 0 for low, _ in (*numerator_ranges, *denominator_ranges)):
            return None
        smallest = Fraction(
            prod(high for _, high in numerator_ranges),
            prod(max(low, 1) for low, _ in denominator_ranges),  # divisors are dims
        )
        calls = {atom: call for atom in numerator if (call := parse_call(atom))}
        if len(calls) > _MAX_CALLS:
            return smallest
        for atom, call in calls.items():
            others = list(numerator)
            others.remove(atom)
            smallest = min([smallest, *self._of_call(call, tuple(others), denominator)])
        return smallest

    def _of_call(self, call: Call, others: Atoms, denominator: Atoms) -> list[Fraction]:
        """Return upper bounds of ``call * others / denominator``, none if the call has no bound."""
        name, arguments = call
        if name in ("min", "max"):
            bounds = [self.of_sum(argument, others, denominator) for argument in arguments]
            known_bounds = [bound for bound in bounds if bound is not None]
            if name == "min":
                return known_bounds
            return [max(known_bounds)] if len(known_bounds) == len(bounds) else []
        if name not in ("floor", "ceiling"):
            return []
        dividend, divisor = arguments
        quotients = self._of_quotient(dividend, divisor, others, denominator)
        if name == "floor":
            return quotients
        bounds_from_pieces = self._of_even_pieces(dividend, divisor, others, denominator)
        added_by_rounding = self._of_product(others, denominator)  # ceiling(q) <= q + 1
        if added_by_rounding is None:
            return bounds_from_pieces
        return [
            *bounds_from_pieces,
            *(quotient + added_by_rounding for quotient in quotients),
        ]

    def _of_quotient(
        self, dividend: Polynomial, divisor: Polynomial, others: Atoms, denominator: Atoms
    ) -> list[Fraction]:
        """Return upper bounds of ``dividend / divisor * others / denominator``.

        A divisor without negative terms is at least each of its terms, so the dividend is divided
        by each of them in turn.
        """
        if any(coefficient < 0 for coefficient in divisor.values()):
            return []
        bounds = []
        for monomial, coefficient in divisor.items():
            bound = self.of_sum(dividend, others, (*denominator, *monomial))
            if bound is not None:
                bounds.append(bound / coefficient)
        return bounds

    def _of_even_pieces(
        self, dividend: Polynomial, divisor: Polynomial, others: Atoms, denominator: Atoms
    ) -> list[Fraction]:
        """Return an upper bound of ``ceiling(dividend/divisor) * others / denominator``.

        It applies if the divisor is ``ceiling(dividend/b)``. That is the number of pieces when
        ``dividend`` elements are divided into pieces of at most ``b``, so the evenly divided pieces
        are at most ``b`` long. Otherwise the list is empty.
        """
        if len(divisor) != 1:
            return []
        ((monomial, coefficient),) = divisor.items()
        call = parse_call(monomial[0]) if len(monomial) == coefficient == 1 else None
        if call is None or call[0] != "ceiling" or call[1][0] != dividend:
            return []
        max_piece = call[1][1]
        bound = self.of_sum(max_piece, others, denominator)
        return [] if bound is None else [bound]


def _cancelled(numerator: Atoms, denominator: Atoms) -> tuple[Atoms, Atoms]:
    """Return the numerator and denominator of a fraction without common factors, sorted."""
    remaining_numerator, remaining_denominator = list(numerator), []
    for atom in denominator:
        if atom in remaining_numerator:
            remaining_numerator.remove(atom)
        else:
            remaining_denominator.append(atom)
    return tuple(sorted(remaining_numerator)), tuple(sorted(remaining_denominator))
