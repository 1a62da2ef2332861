"""Dims as text: arithmetic over symbols, with one canonical form for equal expressions.

Accepted are expressions such as

    "batch*seq"  "new + past"  "Min(512, seq)"  "floor(W/2 + 1/2)"  "(W + 1)//2"

In the canonical form products are sorted, quotients by a number are written
``floor((W + 1)/2)``, and names that are no plain words are in backquotes. A text that is no
expression is taken as the name of one symbol.
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
    add_polynomials,
    apply_function,
    as_name,
    constant_value,
    floor_divide,
    format_polynomial,
    multiply_polynomials,
    substitute,
    symbol_names,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Dim

_MAX_POWER = 8

_Rational = tuple[Polynomial, int]
"""A polynomial, and the number that it is divided by."""


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
        tree = Tree.parse(text)
        return _whole(_rational(tree.top, tree))
    # The last two are raised for deep nesting.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A backquote in the name would end its quotation in canonical texts.
        return {(text.strip().replace("`", "'"),): 1}


def as_dim(terms: Polynomial) -> int | str:
    """Return a polynomial as a number if it has no symbols, else as canonical text."""
    value = constant_value(terms)
    return format_polynomial(terms) if value is None else value


def _whole(value: _Rational) -> Polynomial:
    """Return the quotient of a polynomial and a number, rounded down."""
    terms, divisor = value
    return floor_divide(terms, divisor)


def _rational(node: ast.expr, tree: Tree) -> _Rational:
    """Return the numerator and the divisor of a syntax tree.

    Divisions by a number are kept exact until the end: ``W/2 + 1/2`` is ``(W + 1) / 2``.

    Raises:
        ValueError: the expression is no arithmetic over integers and names.
    """
    match node:
        case ast.Constant(value=int(value)):
            return ({(): value} if value else {}), 1
        case ast.Name():
            return {(tree.name(node),): 1}, 1
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            terms, divisor = _rational(operand, tree)
            return multiply_polynomials([terms], -1), divisor
        case ast.BinOp(left=left, op=operator, right=right):
            return _arithmetic(operator, _rational(left, tree), _rational(right, tree))
        case ast.Call(func=ast.Name() as name, args=args, keywords=[]) if args:
            return _function(tree.name(name).lower(), args, tree)
    raise ValueError(ast.dump(node))


def _arithmetic(operator: ast.operator, left: _Rational, right: _Rational) -> _Rational:
    """Return the result of a binary operator on two rational polynomials.

    Raises:
        ValueError: the operator is not supported, or an exponent is not a whole number from 0 to 8.
    """
    (a, a_divisor), (b, b_divisor) = left, right
    # Both numerators over the common divisor a_divisor * b_divisor:
    left_numerator, right_numerator = (
        multiply_polynomials([a], b_divisor),
        multiply_polynomials([b], a_divisor),
    )
    number = constant_value(b)  # of ``**``: the exponent, if it is a whole number
    exponent = None
    if number is not None and b_divisor and number % b_divisor == 0:
        exponent = number // b_divisor
    match operator:
        case ast.Add():
            return add_polynomials([left_numerator, right_numerator]), a_divisor * b_divisor
        case ast.Sub():
            difference = add_polynomials(
                [left_numerator, multiply_polynomials([right_numerator], -1)]
            )
            return difference, a_divisor * b_divisor
        case ast.Mult():
            return multiply_polynomials([a, b]), a_divisor * b_divisor
        case ast.Div() if constant_value(b) is not None:
            # A divisor of 0 is refused when the quotient is rounded: see `_whole`.
            return left_numerator, a_divisor * (constant_value(b) or 0)
        case ast.FloorDiv() | ast.Div():  # dims are integers, so a quotient of dims is floored
            return apply_function("floor", [left_numerator, right_numerator]), 1
        case ast.Mod():
            return apply_function("mod", [_whole(left), _whole(right)]), 1
        case ast.Pow() if exponent is not None and 0 <= exponent <= _MAX_POWER:
            return multiply_polynomials([a] * exponent), a_divisor**exponent
    raise ValueError(ast.dump(operator))


def _function(word: str, args: list[ast.expr], tree: Tree) -> _Rational:
    """Return a call of floor, ceiling, mod, min or max.

    Raises:
        ValueError: there is no such function, or it has another number of arguments.
    """
    name = "ceiling" if word == "ceil" else word
    if name not in FUNCTIONS or (name in QUOTIENTS) != (len(args) == 1):
        raise ValueError(word)
    if name not in QUOTIENTS:
        if name == "mod" and len(args) != 2:
            raise ValueError(word)
        return apply_function(name, [_whole(_rational(arg, tree)) for arg in args]), 1
    match args[0]:
        # Both sides separately: `_arithmetic` would round a quotient of dims down already.
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            (a, a_divisor), (b, b_divisor) = _rational(left, tree), _rational(right, tree)
            return apply_function(
                name,
                [multiply_polynomials([a], b_divisor), multiply_polynomials([b], a_divisor)],
            ), 1
    terms, divisor = _rational(args[0], tree)
    return apply_function(name, [terms, {(): divisor}]), 1
