"""The largest of several sums by unit, whatever the symbols stand for.

Live bytes over symbols are a sum at each step, and their peak is the largest of the sums.
One that is at least another for all dims of 1 or more leaves that one out. Where several
are left, the peak is the maximum of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Problem, pressure
from memplan_cli.core.symbolic.bounds import range_of
from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import call_in, multiplied, names_in, total
from memplan_cli.planning.fit import LARGEST_DIM
from memplan_cli.planning.totals import expression

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.core.problem import Buffer
    from memplan_cli.core.symbolic.polynomials import Polynomial

ByUnit = Mapping[str, int]

MOST_SUMS = 4
"""Sums above which a maximum tells a reader no more than that nothing is known."""

_MOST_COMPARED = 64
"""Sums above which not all are compared: that takes the square of their number."""


def live_peak_text(units: Mapping[str, tuple[Buffer, ...]]) -> str | None:
    """Return the most bytes live at one tick, for dims of 1 or more, as an expression.

    Args:
        units: The buffers by unit; a size is the coefficient of its unit.

    Returns:
        ``32768*batch``, ``max(4096*batch, 64*seq + 8)``; None where more than `MOST_SUMS`
        sums are each the largest for some dims.
    """
    found: list[ByUnit] = []
    for sums in _largest_first(_curve(units)):
        if not any(_covers(known, sums) for known in found):
            found = [known for known in found if not _covers(sums, known)] + [sums]
        if len(found) > _MOST_COMPARED:
            return None
    kept: list[ByUnit] = []
    for sums in found:
        if not any(is_at_least(known, sums) for known in kept):
            kept = [known for known in kept if not is_at_least(sums, known)] + [sums]
    if len(kept) > MOST_SUMS:
        return None
    words = sorted(map(expression, kept))
    return words[0] if len(words) == 1 else f"max({', '.join(words)})" if words else "0"


def is_at_least(one: ByUnit, other: ByUnit) -> bool:
    """Whether a sum is proved to be at least another one for all dims of 1 or more.

    Each symbol is written as what it is at least, and more: where no coefficient of the
    difference is negative then, neither is the difference. Units are sizes, so none of them
    is negative, whatever stands in it.
    """
    if _covers(one, other):
        return True
    ours, theirs = set(one) - set(other), set(other) - set(one)
    parts = {unit: one[unit] - other[unit] for unit in one.keys() & other.keys()}
    try:
        less = _summed({unit: other[unit] for unit in theirs})
        more = _summed({unit: one[unit] for unit in ours} | parts)
        gap = total([more, multiplied([_at_most(less)], -1)])
        found = total(
            multiplied([_shifted(atom) for atom in monomial], factor)
            for monomial, factor in gap.items()
        )
    except ValueError:  # more products than anybody would write down
        return False
    return all(value > 0 for value in found.values())


def _covers(one: ByUnit, other: ByUnit) -> bool:
    """Whether a sum has as much of every unit as another one."""
    return all(one.get(unit, 0) >= value for unit, value in other.items())


def _summed(sums: ByUnit) -> Polynomial:
    return total(multiplied([_parsed(unit)], value) for unit, value in sums.items())


@lru_cache(maxsize=1 << 12)
def _parsed(unit: str) -> Polynomial:
    return parse_dim(unit)


def _at_most(terms: Polynomial) -> Polynomial:
    """Return a sum that is never below: a minimum is no more than what it is taken of."""
    return total(
        multiplied([_largest_of(atom) for atom in monomial], factor)
        if factor > 0 and not any(map(_can_be_negative, monomial))
        else {monomial: factor}
        for monomial, factor in terms.items()
    )


def _largest_of(atom: str) -> Polynomial:
    name, arguments = call_in(atom) or ("", ())
    if name != "min":
        return {(atom,): 1}
    return max(arguments, key=lambda argument: len(names_in(argument)))


@lru_cache(maxsize=1 << 12)
def _shifted(atom: str) -> Polynomial:
    """Return a symbol or call as the least that it can be, plus what is not negative."""
    low = _least(atom)
    return {(atom,): 1, (): low} if low else {(atom,): 1}


def _can_be_negative(atom: str) -> bool:
    return _least(atom) < 0


@lru_cache(maxsize=1 << 12)
def _least(atom: str) -> int:
    """Return what a symbol or call is never below, for dims of 1 or more."""
    terms: Polynomial = {(atom,): 1}
    return range_of(terms, dict.fromkeys(names_in(terms), (1, LARGEST_DIM)))[0]


def _curve(units: Mapping[str, tuple[Buffer, ...]]) -> Iterator[ByUnit]:
    """Yield the bytes that are live after each change, unit by unit."""
    changes = sorted(
        (tick, unit, live)
        for unit, buffers in units.items()
        for tick, live in pressure(Problem(buffers))
    )
    now: dict[str, int] = {}
    for _, at_once in groupby(changes, key=itemgetter(0)):
        now.update((unit, live) for _, unit, live in at_once)
        yield {unit: live for unit, live in now.items() if live}


def _largest_first(curve: Iterable[ByUnit]) -> list[ByUnit]:
    """Return each sum once, those with most in them first: they cover most others."""
    once = {tuple(sorted(sums.items())): sums for sums in curve}
    return [once[key] for key in sorted(once, key=lambda k: (-sum(v for _, v in k), k))]
