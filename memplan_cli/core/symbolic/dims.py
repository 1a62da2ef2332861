"""Dims read from text: sums of products of symbols, one canonical form for equal ones.

    "batch*seq"  "new + past"  "Min(512, seq)"  "floor(W/2 + 1/2)"  "(W + 1)//2"

are read; what is written has one canonical form and reads as itself: products sorted,
quotients by a number as ``floor((W + 1)/2)``, whatever is no word in backquotes. A text
that is no expression at all is the name of a symbol.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.polynomials import (
    FUNCTIONS,
    QUOTIENTS,
    Polynomial,
    Tree,
    as_name,
    bound,
    called,
    constant,
    floored,
    formatted,
    multiplied,
    names_in,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Dim

_MAX_POWER = 8

_Rational = tuple[Polynomial, int]
"""A sum of products, and the number that it is divided by."""


def bind_dim(dim: Dim, dims: Mapping[str, int]) -> Dim:
    """Replace the symbols of a dim that ``dims`` knows; a number where all are known."""
    if not isinstance(dim, str) or not dims:
        return dim
    name = as_name(dim)
    if name in dims:
        return dims[name]
    try:
        return as_dim(bound(parse_dim(dim), dims))
    except ValueError:  # a division by a symbol that turned out to be zero
        return None


def binding_text(dims: Mapping[str, int]) -> str:
    """Return values of symbols for a message: ``batch=8, seq=128``."""
    return ", ".join(f"{name}={value}" for name, value in dims.items())


def canonical_dim(text: str) -> int | str:
    """Return the canonical form of equal expressions: ``seq*batch`` -> ``batch*seq``."""
    return as_dim(parse_dim(text))


def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the names a dim depends on."""
    return names_in(parse_dim(dim)) if isinstance(dim, str) else frozenset()


@lru_cache(maxsize=65536)
def parse_dim(text: str) -> Polynomial:
    """Read a dim's text; what is no expression is one symbol, named by the whole text."""
    try:
        tree = Tree.of(text)
        return _whole(_rational(tree.top, tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {(text.strip().replace("`", "'"),): 1}


def as_dim(terms: Polynomial) -> int | str:
    """Return a number where no symbol is left, else the canonical form."""
    value = constant(terms)
    return formatted(terms) if value is None else value


def _whole(value: _Rational) -> Polynomial:
    terms, divisor = value
    return floored(terms, divisor)


def _rational(node: ast.expr, tree: Tree) -> _Rational:
    """Return numerator and divisor of an expression.

    Raises:
        ValueError: it is something else than arithmetic.
    """
    match node:
        case ast.Constant(value=int(value)):
            return ({(): value} if value else {}), 1
        case ast.Name():
            return {(tree.name(node),): 1}, 1
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            terms, divisor = _rational(operand, tree)
            return multiplied([terms], -1), divisor
        case ast.BinOp(left=left, op=operator, right=right):
            return _arithmetic(operator, _rational(left, tree), _rational(right, tree))
        case ast.Call(func=ast.Name() as name, args=args, keywords=[]) if args:
            return _function(tree.name(name).lower(), args, tree)
    raise ValueError(ast.dump(node))


def _arithmetic(operator: ast.operator, one: _Rational, other: _Rational) -> _Rational:
    (a, down), (b, under) = one, other
    over, below = multiplied([a], under), multiplied([b], down)
    number = constant(_whole((b, under)))
    match operator:
        case ast.Add():
            found = total([over, below]), down * under
        case ast.Sub():
            found = total([over, multiplied([below], -1)]), down * under
        case ast.Mult():
            found = multiplied([a, b]), down * under
        case ast.Div() if constant(b) is not None:
            found = over, down * (constant(b) or 0)
        case ast.FloorDiv() | ast.Div():  # a dim is a whole number, so is the quotient
            found = called("floor", [over, below]), 1
        case ast.Mod():
            found = called("mod", [_whole((a, down)), _whole((b, under))]), 1
        case ast.Pow() if number is not None and 0 <= number <= _MAX_POWER:
            found = multiplied([a] * number), down**number
        case _:
            raise ValueError(ast.dump(operator))
    return found


def _function(word: str, args: list[ast.expr], tree: Tree) -> _Rational:
    name = "ceiling" if word == "ceil" else word
    if name not in FUNCTIONS or (name in QUOTIENTS) != (len(args) == 1):
        raise ValueError(word)
    if name not in QUOTIENTS:
        if name == "mod" and len(args) != 2:
            raise ValueError(word)
        return called(name, [_whole(_rational(arg, tree)) for arg in args]), 1
    match args[0]:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            (a, down), (b, under) = _rational(left, tree), _rational(right, tree)
            return called(name, [multiplied([a], under), multiplied([b], down)]), 1
    terms, divisor = _rational(args[0], tree)
    return called(name, [terms, {(): divisor}]), 1
