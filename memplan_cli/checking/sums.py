"""Sums of bytes over symbols: their numbers at given dims, their text, and texts of others.

A sum is coefficients by unit: ``{"1": 64, "batch": 4096}`` is 64 + 4096*batch bytes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, symbols_of
from memplan_cli.core.symbolic.sizes import unit_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Sum = dict[str, int]

_SEEDS = (3, 11, 40)


def added(*sums: Mapping[str, int]) -> Sum:
    """Add sums up, unit by unit; what comes to nothing is left out."""
    found: defaultdict[str, int] = defaultdict(int)
    for each in sums:
        for unit, number in each.items():
            found[unit] += number
    return {unit: number for unit, number in found.items() if number}


def number_of(sums: Mapping[str, int] | None, dims: Mapping[str, int]) -> int | None:
    """Return a sum as a number, or None where a symbol of it has none."""
    if sums is None:
        return None
    total = 0
    for unit, count in sums.items():
        factor = factor_of(unit, dims) if count else 0
        if factor is None:
            return None
        total += count * factor
    return total


def factor_of(unit: str, dims: Mapping[str, int]) -> int | None:
    """Return the value of a unit, or None where it has none, or one that is no size."""
    if unit == "1":
        return 1
    try:
        return unit_value(unit, dims)
    except ValueError:
        return None


def is_symbolic(sums: Mapping[str, int]) -> bool:
    """Whether a symbol is in a sum."""
    return any(unit != "1" and number for unit, number in sums.items())


def canonical(sums: Mapping[str, int]) -> int | str:
    """Return the form that all texts of a sum have in common."""
    units = sorted(sums.items(), key=lambda item: (item[0] == "1", item[0]))
    return canonical_dim(
        " + ".join(str(n) if unit == "1" else f"{n}*{unit}" for unit, n in units) or "0"
    )


def value_of(text: str, dims: Mapping[str, int]) -> int | None:
    """Return the value of an expression, or None where a symbol of it has none."""
    found = bind_dim(canonical_dim(text), dims)
    return found if isinstance(found, int) else None


def samples(units: Iterable[str]) -> Iterator[dict[str, int]]:
    """Yield values for symbols at which two different sums are very likely not equal."""
    names = sorted({name for unit in units if unit != "1" for name in symbols_of(unit)})
    for seed in _SEEDS:
        yield {name: 128 * (seed + 2 * at) for at, name in enumerate(names)}
