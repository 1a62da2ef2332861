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
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.symbolic.polynomials import (
    QUOTIENTS,
    Polynomial,
    Tree,
    add_polynomials,
    apply_function,
    as_name,
    constant_polynomial,
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


class _Rational(NamedTuple):
    """A polynomial divided by a number, which may be negative but is never 0."""

    numerator: Polynomial
    divisor: int = 1


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
    return floor_divide(value.numerator, value.divisor)


def _rational(node: ast.expr, tree: Tree) -> _Rational:
    """Return the numerator and the divisor of a syntax tree.

    Divisions by a number are kept exact until the end: ``W/2 + 1/2`` is ``(W + 1) / 2``.

    Raises:
        ValueError: the expression is no arithmetic over integers and names.
    """
    match node:
        case ast.Constant(value=int(value)):
            return _Rational(constant_polynomial(value))
        case ast.Name():
            return _Rational({(tree.name(node),): 1})
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _rational(operand, tree)
            return _Rational(multiply_polynomials([positive.numerator], -1), positive.divisor)
        case ast.BinOp(left=left, op=operator, right=right):
            return _arithmetic(operator, _rational(left, tree), _rational(right, tree))
        case ast.Call(func=ast.Name() as name, args=args, keywords=[]) if args:
            return _apply(tree.name(name).lower(), args, tree)
    raise ValueError(ast.dump(node))


def _arithmetic(operator: ast.operator, left: _Rational, right: _Rational) -> _Rational:
    """Return the result of a binary operator on two rational polynomials.

    Raises:
        ValueError: the operator is not supported, a divisor is 0, or an exponent is not a whole
            number from 0 to 8.
    """
    left_terms, right_terms = _over_common_divisor(left, right)
    common_divisor = left.divisor * right.divisor
    number = constant_value(right.numerator)  # None: the right operand has symbols
    match operator:
        case ast.Add():
            return _Rational(add_polynomials([left_terms, right_terms]), common_divisor)
        case ast.Sub():
            negative_right = multiply_polynomials([right_terms], -1)
            return _Rational(add_polynomials([left_terms, negative_right]), common_divisor)
        case ast.Mult():
            product = multiply_polynomials([left.numerator, right.numerator])
            return _Rational(product, common_divisor)
        case ast.Div() if number == 0:
            raise ValueError("division by zero")
        case ast.Div() if number is not None:
            # (a/b) / (number/d) is a*d / (b*number), and a*d are the ``left_terms``.
            return _Rational(left_terms, left.divisor * number)
        case ast.FloorDiv() | ast.Div():  # dims are integers, so a quotient of dims is floored
            return _Rational(apply_function("floor", [left_terms, right_terms]))
        case ast.Mod():
            return _Rational(apply_function("mod", [_whole(left), _whole(right)]))
        case ast.Pow() if number is not None and not number % right.divisor:
            exponent = number // right.divisor
            if 0 <= exponent <= _MAX_POWER:
                power = multiply_polynomials([left.numerator] * exponent)
                return _Rational(power, left.divisor**exponent)
    raise ValueError(ast.dump(operator))


def _over_common_divisor(left: _Rational, right: _Rational) -> tuple[Polynomial, Polynomial]:
    """Return both numerators over the product of both divisors. Their quotient is ``left / right``."""
    return (
        multiply_polynomials([left.numerator], right.divisor),
        multiply_polynomials([right.numerator], left.divisor),
    )


def _apply(word: str, args: list[ast.expr], tree: Tree) -> _Rational:
    """Return the value of a function at the syntax trees of its arguments.

    ``floor`` and ``ceiling`` (or ``ceil``) have one argument, ``mod`` two, ``min`` and ``max`` two or more.

    Raises:
        ValueError: there is no such function, or it has another number of arguments.
    """
    name = "ceiling" if word == "ceil" else word
    if name in QUOTIENTS and len(args) == 1:
        return _Rational(apply_function(name, _quotient(args[0], tree)))
    if (name == "mod" and len(args) == 2) or (name in ("min", "max") and len(args) > 1):
        whole_args = [_whole(_rational(arg, tree)) for arg in args]
        return _Rational(apply_function(name, whole_args))
    raise ValueError(word)


def _quotient(node: ast.expr, tree: Tree) -> tuple[Polynomial, Polynomial]:
    """Return the dividend and the divisor of the argument of floor or ceiling.

    ``W/2 + 1/2`` gives ``W + 1`` and 2, ``W/k`` gives ``W`` and ``k``. Only a whole argument can be a
    quotient of dims: as a part of it, as in ``W/k + 1``, the quotient is floored (`_arithmetic`).
    """
    match node:
        # Not `_rational(node)`, which floors a quotient of dims.
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _over_common_divisor(_rational(left, tree), _rational(right, tree))
    value = _rational(node, tree)
    constant_divisor: Polynomial = {(): value.divisor}
    return value.numerator, constant_divisor
