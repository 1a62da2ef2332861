"""Sizes in bytes: an integer times symbols, exact for every value of the symbols."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, parse_dim, symbols_of
from memplan_cli.core.symbolic.polynomials import (
    Polynomial,
    constant_value,
    floor_divide,
    format_polynomial,
    is_call,
    multiply_polynomials,
    quote_name,
    substitute,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.program import Dim, Shape

__all__ = [
    "BITS", "SAMPLE", "Size", "bind_dim", "canonical_dim", "sampled_unit", "size_of", "symbols_of",
    "unit_value",
]  # fmt: skip

FIXED_UNIT = "1"
"""The unit of sizes that are numbers of bytes, without symbols."""

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
"""Bits per element. Other types, such as string, have no size that is known before a run."""


@dataclass(frozen=True, slots=True)
class Size:
    """``coefficient * symbols[0] * symbols[1] ...`` bytes, symbols in sorted order.

    Attributes:
        coefficient: the integer.
        symbols: names of dims, or other factors in parentheses: ``(new + past)``,
            ``(floor((W + 1)/2))``.
        bound_of: if this size is only an upper bound: the exact size, as text.
    """

    coefficient: int
    symbols: tuple[str, ...] = ()
    bound_of: str = ""

    @property
    def unit(self) -> str:
        """The product of the symbols as text: ``1``, ``batch*seq``."""
        return "*".join(self.symbols) or "1"

    def bind(self, dims: Mapping[str, int]) -> Size:
        """Return the size with the symbols in ``dims`` replaced by their values.

        Raises:
            ValueError: the size is negative, or a divisor is zero.
        """
        if not self.symbols:
            return self
        terms = (substitute(parse_dim(symbol), dims) for symbol in self.symbols)
        return product_of(terms, self.coefficient)

    def __str__(self) -> str:
        return "*".join((str(self.coefficient), *self.symbols))


@lru_cache(maxsize=65536)
def size_of(shape: Shape | None, dtype: str) -> Size | None:
    """Return the bytes of a dense tensor, or None if they are not known.

    Types of less than a byte are packed: three int4 take two bytes.
    """
    bits = BITS.get(dtype)
    if bits is None or shape is None or not all(map(_is_non_negative, shape)):
        return None
    symbolic = [dim for dim in shape if isinstance(dim, str)]
    number = math.prod(dim for dim in shape if isinstance(dim, int)) * bits
    if not symbolic:
        return Size(-(-number // 8))
    terms = [parse_dim(dim) for dim in symbolic]
    try:
        if number % 8 == 0:
            return product_of(terms, number // 8)
        # The bytes are ceiling(bits / 8), which is -floor(-bits / 8).
        negative_bits = multiply_polynomials(terms, -number)
        return product_of([multiply_polynomials([floor_divide(negative_bits, 8)], -1)], 1)
    except ValueError:  # too many products
        return None


def _is_non_negative(dim: Dim) -> bool:
    """Return False for an unknown dim, a negative number, or a product with a negative number.

    A sum such as ``n - 5`` is accepted, although some values of its symbols make it negative.
    """
    if isinstance(dim, str):
        return _factored(parse_dim(dim)).number >= 0
    return dim is not None and dim >= 0


def unit_value(unit: str, dims: Mapping[str, int]) -> int:
    """Return the value of a unit: ``batch*(new + past)`` with every symbol bound.

    Raises:
        ValueError: a symbol has no value, or the value is negative.
    """
    value = constant_value(substitute(parse_dim(unit), dims))
    if value is None or value < 0:
        raise ValueError(f"{unit} is {value} for {dict(dims)}")
    return value


SAMPLE = 64
"""The value of every symbol while orders, or candidates of a plan, with symbolic sizes are compared."""


def sampled_unit(unit: str, sample: int = SAMPLE) -> int:
    """Return the value of a unit such as ``batch*(new + past)`` with ``sample`` for each symbol.

    A unit with a negative value, such as ``n - 100``, counts as the product of its symbols.
    """
    symbols = symbols_of(unit)
    try:
        return unit_value(unit, dict.fromkeys(symbols, sample))
    except ValueError:
        return int(sample ** len(symbols))


def product_of(factors: Iterable[Polynomial], coefficient: int) -> Size:
    """Return the product of polynomials as a size.

    A polynomial that is no single product becomes a symbol in parentheses, without the factors
    that all its products share.

    Raises:
        ValueError: the number before the symbols is negative.
    """
    symbols: list[str] = []
    for terms in factors:
        factors_of_terms = _factored(terms)
        coefficient *= factors_of_terms.number
        symbols.extend(factors_of_terms.symbols)
        if factors_of_terms.sum:
            symbols.append(f"({factors_of_terms.sum})")
    if coefficient < 0:
        raise ValueError("negative size")
    return Size(coefficient, tuple(sorted(symbols)) if coefficient else ())


class _Factors(NamedTuple):
    """The factors of a polynomial: ``4*a*b + 6*a`` is ``2 * a * (2*b + 3)``.

    Attributes:
        symbols: the factors that all terms have in common, as texts for `Size.symbols`.
        sum: the text of the sum that remains; empty if the polynomial has a single term or is 0.
    """

    number: int
    symbols: list[str]
    sum: str = ""


def _factored(terms: Polynomial) -> _Factors:
    """Return a polynomial as the product of a number, symbols and a sum."""
    if not terms:
        return _Factors(0, [])
    first, *others = terms
    common = Counter(first)
    for monomial in others:
        common &= Counter(monomial)
    # An atom is the name of a dim, or a call such as ``floor(n/2)``, which gets parentheses.
    symbols = [
        f"({atom})" if is_call(atom) else quote_name(atom) for atom in common.elements()
    ]
    if not others:  # a single term has no factor besides its number and its symbols
        return _Factors(terms[first], symbols)
    number = math.gcd(*terms.values())
    remaining = {
        tuple((Counter(monomial) - common).elements()): value // number
        for monomial, value in terms.items()
    }
    return _Factors(number, symbols, format_polynomial(remaining))
