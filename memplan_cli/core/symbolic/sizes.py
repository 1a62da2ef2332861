"""Sizes in bytes: a number times named symbols, exact for every value of the symbols."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, parse_dim, symbols_of
from memplan_cli.core.symbolic.polynomials import (
    Polynomial,
    bound,
    constant,
    floored,
    format_atom,
    formatted,
    is_call,
    multiplied,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.program import Dim, Shape

__all__ = [
    "BITS", "Size", "bind_dim", "canonical_dim", "size_of", "symbols_of", "unit_value",
]  # fmt: skip

BITS: Mapping[str, int] = {
    "bool": 8,
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4e2m1": 4,
    "int8": 8,
    "uint8": 8,
    "float8e4m3fn": 8,
    "float8e4m3fnuz": 8,
    "float8e5m2": 8,
    "float8e5m2fnuz": 8,
    "float8e8m0": 8,
    "int16": 16,
    "uint16": 16,
    "float16": 16,
    "bfloat16": 16,
    "int32": 32,
    "uint32": 32,
    "float32": 32,
    "int64": 64,
    "uint64": 64,
    "float64": 64,
    "complex64": 64,
    "complex128": 128,
}
"""Bits of one element; types that are not here have no size known before the run."""


@dataclass(frozen=True, slots=True)
class Size:
    """``coefficient * symbols[0] * symbols[1] ...`` bytes, symbols in sorted order.

    A symbol is a dim's name, or an expression that is no product, in parentheses:
    ``(new + past)``, ``(floor((W + 1)/2))``. ``bound_of`` is the size itself, as text,
    where the number is only the most that it can be.
    """

    coefficient: int
    symbols: tuple[str, ...] = ()
    bound_of: str = ""

    @property
    def unit(self) -> str:
        """What the coefficient is multiplied by, as text: ``1``, ``batch*seq``."""
        return "*".join(self.symbols) or "1"

    def bind(self, dims: Mapping[str, int]) -> Size:
        """Replace the symbols that ``dims`` knows by their values.

        Raises:
            ValueError: the size comes out negative, or divides by zero.
        """
        if not self.symbols:
            return self
        terms = (bound(parse_dim(symbol), dims) for symbol in self.symbols)
        return product_of(terms, self.coefficient)

    def __str__(self) -> str:
        return "*".join((str(self.coefficient), *self.symbols))


@lru_cache(maxsize=65536)
def size_of(shape: Shape | None, dtype: str) -> Size | None:
    """Return the bytes of a dense tensor, or None where they are not known.

    Types below a byte are packed: three int4 take two bytes.
    """
    bits = BITS.get(dtype)
    if bits is None or shape is None or not all(map(_is_a_length, shape)):
        return None
    symbolic = [dim for dim in shape if isinstance(dim, str)]
    number = math.prod(dim for dim in shape if isinstance(dim, int)) * bits
    if not symbolic:
        return Size(-(-number // 8))
    terms = [parse_dim(dim) for dim in symbolic]
    try:
        if number % 8 == 0:
            return product_of(terms, number // 8)
        elements = multiplied(terms, -number)
        return product_of([multiplied([floored(elements, 8)], -1)], 1)
    except ValueError:
        return None


def _is_a_length(dim: Dim) -> bool:
    """Whether a dim is known and is not negative whatever its symbols stand for."""
    if isinstance(dim, str):
        return _factored(parse_dim(dim))[0] >= 0
    return dim is not None and dim >= 0


def unit_value(unit: str, dims: Mapping[str, int]) -> int:
    """Return the value of a unit: ``batch*(new + past)`` with every symbol bound.

    Raises:
        ValueError: a symbol has no value, or the value is negative.
    """
    value = constant(bound(parse_dim(unit), dims))
    if value is None or value < 0:
        raise ValueError(f"{unit} is {value} for {dict(dims)}")
    return value


def product_of(factors: Iterable[Polynomial], coefficient: int) -> Size:
    """Return the size of factors multiplied: common symbols out, what is no product in parentheses."""
    symbols: list[str] = []
    for terms in factors:
        number, common, rest = _factored(terms)
        coefficient *= number
        symbols.extend(common)
        if rest:
            symbols.append(f"({rest})")
    if coefficient < 0:
        raise ValueError("negative size")
    return Size(coefficient, tuple(sorted(symbols)) if coefficient else ())


def _factored(terms: Polynomial) -> tuple[int, list[str], str]:
    """Split a sum of products into a number, symbols that all share, and the rest as text."""
    if not terms:
        return 0, [], ""
    first, *others = terms
    shared = list(first)
    for monomial in others:
        left = list(monomial)
        kept = []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    words = [f"({atom})" if is_call(atom) else format_atom(atom) for atom in shared]
    if not others:
        return terms[first], words, ""
    number = math.gcd(*terms.values())
    rest = {}
    for monomial, value in terms.items():
        left = list(monomial)
        for atom in shared:
            left.remove(atom)
        rest[tuple(left)] = value // number
    return number, words, formatted(rest)
