"""The largest that products get whose factors hang on one another.

    rows * length,  rows = min(length, floor(1000/length)),  length = 1..100

Interval arithmetic gives 100 * 100: each factor at its largest. What a piece of a tensor takes
is bounded because one factor is divided by the other: here a call is replaced by what it is
never above, and what then stands above and below a fraction is cancelled, so the answer is
1000. Every replacement is a bound, so is the least of them all.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.polynomials import parse_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.symbolic.polynomials import Call, Polynomial

    Interval = tuple[int, int]

Atoms = tuple[str, ...]
"""Factors of a product, sorted."""

_MOST_CALLS = 4
"""Calls in one product, above which only intervals are looked at: each is tried in each order."""


def largest_product(terms: Polynomial, range_of: Callable[[str], Interval]) -> int | None:
    """Return what a sum of products is never above; None where a factor may be negative.

    Args:
        terms: The sum.
        range_of: The least and the largest value of a symbol or call.
    """
    if any(factor < 0 for factor in terms.values()):
        return None
    found = _Joint(range_of).sum(terms, (), ())
    return None if found is None else int(found)


class _Joint:
    """Bounds of fractions whose factors are symbols and calls, each found once."""

    def __init__(self, range_of: Callable[[str], Interval]) -> None:
        self._range_of = lru_cache(maxsize=None)(range_of)
        self._known: dict[tuple[Atoms, Atoms], Fraction | None] = {}

    def sum(self, terms: Polynomial, above: Atoms, below: Atoms) -> Fraction | None:
        """Return what ``terms * above / below`` is never above."""
        found = Fraction(0)
        for monomial, factor in terms.items():
            part = self._product((*monomial, *above), below)
            if part is None:
                return None
            # A part that is taken away is at least nothing: no factor is negative.
            found += max(factor, 0) * part
        return found

    def _product(self, above: Atoms, below: Atoms) -> Fraction | None:
        above, below = _cancelled(above, below)
        if (above, below) not in self._known:
            self._known[above, below] = self._bound(above, below)
        return self._known[above, below]

    def _bound(self, above: Atoms, below: Atoms) -> Fraction | None:
        ranges = [self._range_of(atom) for atom in (*above, *below)]
        if any(low < 0 for low, _ in ranges):
            return None
        least = Fraction(1)
        for _, high in ranges[: len(above)]:
            least *= high
        for low, _ in ranges[len(above) :]:
            least /= max(low, 1)  # a dim that is divided by
        calls = [(atom, call) for atom in dict.fromkeys(above) if (call := parse_call(atom))]
        if len(calls) > _MOST_CALLS:
            return least
        for atom, call in calls:
            rest = list(above)
            rest.remove(atom)
            for other in self._replaced(call, tuple(rest), below):
                least = min(least, other)
        return least

    def _replaced(self, call: Call, rest: Atoms, below: Atoms) -> list[Fraction]:
        """Return bounds of a product in which a call is replaced by what it is never above."""
        name, arguments = call
        if name in ("min", "max"):
            each = [self.sum(argument, rest, below) for argument in arguments]
            known = [bound for bound in each if bound is not None]
            if name == "min":
                return known
            return [max(known)] if known and len(known) == len(each) else []
        if name not in ("floor", "ceiling"):
            return []
        top, bottom = arguments
        found = [*self._divided(top, bottom, rest, below)]
        if name == "ceiling":
            found = [
                *self._shares(top, bottom, rest, below),
                *self._one_more(found, rest, below),
            ]
        return found

    def _divided(
        self, top: Polynomial, bottom: Polynomial, rest: Atoms, below: Atoms
    ) -> list[Fraction]:
        """Return bounds of a quotient: a sum is at least each of its terms."""
        if any(factor < 0 for factor in bottom.values()):
            return []
        found = []
        for monomial, factor in bottom.items():
            part = self.sum(top, rest, (*below, *monomial))
            if part is not None:
                found.append(part / factor)
        return found

    def _one_more(
        self, quotients: list[Fraction], rest: Atoms, below: Atoms
    ) -> list[Fraction]:
        more = self._product(rest, below)
        return [] if more is None else [each + more for each in quotients]

    def _shares(
        self, top: Polynomial, bottom: Polynomial, rest: Atoms, below: Atoms
    ) -> list[Fraction]:
        """Return bounds of ``ceiling(a/ceiling(a/b))``: what is dealt out evenly is at most b."""
        if len(bottom) != 1:
            return []
        ((monomial, factor),) = bottom.items()
        call = parse_call(monomial[0]) if len(monomial) == factor == 1 else None
        if call is None or call[0] != "ceiling" or call[1][0] != top:
            return []
        found = self.sum(call[1][1], rest, below)
        return [] if found is None else [found]


def _cancelled(above: Atoms, below: Atoms) -> tuple[Atoms, Atoms]:
    left, under = list(above), []
    for atom in below:
        if atom in left:
            left.remove(atom)
        else:
            under.append(atom)
    return tuple(sorted(left)), tuple(sorted(under))
