"""Dims as text: arithmetic over symbols, with one canonical form for equal expressions.

Accepted are expressions such as

    "batch*seq"  "new + past"  "Min(512, seq)"  "floor(W/2 + 1/2)"  "(W + 1)//2"

In the canonical form products are sorted, quotients by a number are written
``floor((W + 1)/2)``, and names that are no plain words are in backquotes. A text that is no
expression is taken as the name of one symbol.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.polynomials import (
    Polynomial,
    as_name,
    constant_value,
    format_polynomial,
    parse_polynomial,
    substitute,
    symbol_names,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Dim


def bind_dim(dim: Dim, dims: Mapping[str, int]) -> Dim:
    """Return a dim with the symbols in ``dims`` replaced by their values.

    The result is a number if no symbol is left, and None if a divisor became zero.
    """
    if not isinstance(dim, str) or not dims:
        return dim
    name = as_name(dim)
    if name in dims:  # the usual case: the dim is one symbol
        return dims[name]
    try:
        return as_dim(substitute(parse_dim(dim), dims))
    except ValueError:  # a division by zero
        return None


def binding_text(dims: Mapping[str, int]) -> str:
    """Return values of symbols for a message: ``batch=8, seq=128``."""
    return ", ".join(f"{name}={value}" for name, value in dims.items())


def canonical_dim(text: str) -> int | str:
    """Return the canonical form of an expression: ``seq*batch`` gives ``batch*seq``."""
    return as_dim(parse_dim(text))


def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the names of the symbols in a dim."""
    return symbol_names(parse_dim(dim)) if isinstance(dim, str) else frozenset()


@lru_cache(maxsize=65536)
def parse_dim(text: str) -> Polynomial:
    """Return a dim's text as a polynomial; a text that is no expression is one symbol."""
    try:
        return parse_polynomial(text)
    # The last two are raised for deep nesting.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A backquote in the name would end its quotation in canonical texts.
        return {(text.strip().replace("`", "'"),): 1}


def as_dim(terms: Polynomial) -> int | str:
    """Return a polynomial as a number if it has no symbols, else as canonical text."""
    value = constant_value(terms)
    return format_polynomial(terms) if value is None else value
