"""Polynomials over symbols: arithmetic, canonical text, and the parser of expressions.

A polynomial is a sum of products of *atoms*. An atom is the name of a symbol, or the text of a
call such as ``floor((W + 1)/2)``. Equal polynomials have one canonical text: products sorted, the
constant last.

A text is parsed by Python's parser after every name was replaced by ``_0``, ``_1``, ...: names of
dims may have characters that Python's names may not (``input.1_dim0``), and in backquotes any.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product as cartesian
from typing import NamedTuple

Monomial = tuple[str, ...]
"""The atoms of a product, sorted."""

Polynomial = Mapping[Monomial, int]
"""Product of atoms -> its coefficient; the empty product is the constant term.

No coefficient is 0, so the polynomial 0 is an empty mapping.
"""

Call = tuple[str, tuple[Polynomial, ...]]
"""A function and its arguments; floor and ceiling have a dividend and a divisor."""

QUOTIENTS = frozenset({"floor", "ceiling"})
_MAX_PRODUCTS = 4096
_MAX_POWER = 8

FUNCTIONS = QUOTIENTS | {"mod", "min", "max"}

_PLAIN = r"[^\W\d][\w.:$#@]*"
_WORD = re.compile(rf"`(?P<quoted>[^`]*)`|(?P<plain>{_PLAIN})")
"""A name in an expression, in backquotes or as a plain word."""
_BARE = re.compile(_PLAIN)


def quote_name(name: str) -> str:
    """Return a name as it is written in an expression: in backquotes if it is no plain word."""
    return name if _BARE.fullmatch(name) else f"`{name}`"


def constant_polynomial(value: int) -> Polynomial:
    """Return a number as a polynomial; 0 is the one without terms."""
    return {(): value} if value else {}


def constant_value(terms: Polynomial) -> int | None:
    """Return the value of a polynomial without symbols; None if it has some."""
    if not terms:
        return 0
    return terms[()] if len(terms) == 1 and () in terms else None


def format_polynomial(terms: Polynomial) -> str:
    """Return the canonical text of a polynomial, such as ``2*batch*seq - 1``."""
    if not terms:
        return "0"
    words = []
    for monomial in sorted(terms, key=lambda m: (not m, m)):
        value = terms[monomial]
        factors = [format_atom(atom) for atom in monomial]
        if abs(value) != 1 or not factors:
            factors.insert(0, str(abs(value)))
        words.append(f"{'-' if value < 0 else '+'} {'*'.join(factors)}")
    text = " ".join(words)
    return text[2:] if text.startswith("+ ") else f"-{text[2:]}"


def format_atom(atom: str) -> str:
    """Return an atom as it is written in an expression."""
    return atom if is_call(atom) else quote_name(atom)


def is_call(atom: str) -> bool:
    """Return whether an atom is a call, and not the name of a symbol."""
    return parse_call(atom) is not None


def as_name(text: str) -> str:
    """Return a text as the name of one symbol.

    A text that would be parsed as a call gets a space before its bracket.
    """
    return text.replace("(", " (", 1) if is_call(text) else text


@lru_cache(maxsize=65536)
def parse_call(atom: str) -> Call | None:
    """Return the function and the arguments of an atom that is a call; None for the name of a symbol.

    A call that is not in canonical form, such as ``min(b, a)`` for ``min(a, b)``, is a name too.
    """
    name, bracket, _ = atom.partition("(")
    if not bracket or name not in FUNCTIONS or not atom.endswith(")"):
        return None
    try:
        tree = _Tree.parse(atom)
        call = _call_of(tree.top, tree)
        one_times_atom = {(atom,): 1}  # all that a call in canonical form simplifies to
        return call if apply_function(*call) == one_times_atom else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _format_call(name: str, arguments: Sequence[Polynomial]) -> str:
    """Return the canonical text of a call: ``floor((W + 1)/2)``, ``min(a, b)``."""
    if name in QUOTIENTS:
        top, bottom = arguments
        divisor = format_polynomial(bottom)
        if len(bottom) > 1 or "*" in divisor or divisor.startswith("-"):
            divisor = f"({divisor})"
        dividend = f"({format_polynomial(top)})" if len(top) > 1 else format_polynomial(top)
        return f"{name}({dividend}/{divisor})"
    # The arguments of min and max are sorted: equal calls have equal texts.
    texts = map(format_polynomial, arguments)
    return f"{name}({', '.join(texts if name == 'mod' else sorted(texts))})"


def substitute(terms: Polynomial, dims: Mapping[str, int]) -> Polynomial:
    """Return a polynomial with the symbols in ``dims`` replaced by their values.

    Raises:
        ValueError: a division by zero.
    """
    return add_polynomials(
        multiply_polynomials([_substituted_atom(atom, dims) for atom in monomial], factor)
        for monomial, factor in terms.items()
    )


def symbol_names(terms: Polynomial) -> frozenset[str]:
    """Return the names of the symbols in a polynomial, those in arguments of calls included."""
    names: set[str] = set()
    for atom in {atom for monomial in terms for atom in monomial}:
        call = parse_call(atom)
        if call is None:
            names.add(atom)
        else:
            names.update(*map(symbol_names, call[1]))
    return frozenset(names)


def add_polynomials(parts: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of polynomials."""
    sums: dict[Monomial, int] = {}
    for part in parts:
        for monomial, value in part.items():
            sums[monomial] = sums.get(monomial, 0) + value
    return {monomial: value for monomial, value in sums.items() if value}


def multiply_polynomials(parts: Iterable[Polynomial], factor: int = 1) -> Polynomial:
    """Return the product of polynomials and a number.

    Raises:
        ValueError: an intermediate result has more than 4096 products.
    """
    result = constant_polynomial(factor)
    for part in parts:
        if len(result) == len(part) == 1:  # the usual case, fast: two single products
            ((a, x),), ((b, y),) = result.items(), part.items()
            result = {tuple(sorted(a + b)) if a else b: x * y}
            continue
        if len(result) * len(part) > _MAX_PRODUCTS:
            raise ValueError("too many products")
        pairs = cartesian(result.items(), part.items())
        result = add_polynomials({tuple(sorted(a + b)): x * y} for (a, x), (b, y) in pairs)
    return result


def floor_divide(terms: Polynomial, divisor: int) -> Polynomial:
    """Return ``floor(terms / divisor)``.

    Multiples of the divisor are taken out of the floor: ``floor((4*a + b)/2)`` is
    ``2*a + floor(b/2)``.

    Raises:
        ValueError: the divisor is zero.
    """
    if divisor < 0:
        terms, divisor = multiply_polynomials([terms], -1), -divisor
    if not divisor:
        raise ValueError("division by zero")
    quotients = {product: value // divisor for product, value in terms.items()}
    whole = {product: value for product, value in quotients.items() if value}
    rest = {product: value % divisor for product, value in terms.items() if value % divisor}
    # A constant that remains is below the divisor, and its floor is 0.
    if not rest or set(rest) == {()}:
        return whole
    common = math.gcd(divisor, *rest.values())
    divisor //= common
    rest = {product: value // common for product, value in rest.items()}
    return add_polynomials([whole, _floor_of_fraction(rest, divisor)])


def _floor_of_fraction(terms: Mapping[Monomial, int], divisor: int) -> Polynomial:
    """Return ``floor(terms / divisor)`` of a reduced fraction.

    Its coefficients lie between 0 and the divisor, and have no factor in common with it.
    """
    # If ``step`` divides the divisor and all terms but the constant, the constant is rounded down to
    # a multiple of it: floor((6*a + 5)/8) is floor((6*a + 4)/8), which is floor((3*a + 2)/4).
    step = math.gcd(divisor, *(value for product, value in terms.items() if product))
    constant = terms.get((), 0)
    if step > 1 and constant:
        rounded = add_polynomials([terms, {(): -(constant % step)}])
        return floor_divide(rounded, divisor)
    quotient = _as_one_quotient(terms)
    if quotient is not None:  # floor((floor(a/b) + k)/c) is floor((a + k*b)/(b*c))
        dividend, inner_divisor = quotient
        return floor_divide(dividend, inner_divisor * divisor)
    return {(_format_call("floor", [terms, {(): divisor}]),): 1}


def _as_one_quotient(terms: Mapping[Monomial, int]) -> tuple[Polynomial, int] | None:
    """Return ``a + k*b`` and ``b`` for terms ``floor(a/b) + k`` with numbers b and k, else None."""
    products = [product for product in terms if product]  # without (), that of the constant k
    match products:
        case [(atom,)] if terms[atom,] == 1:
            name, arguments = parse_call(atom) or ("", ())
        case _:
            return None
    if name != "floor":
        return None
    dividend, divisor_terms = arguments
    divisor = constant_value(divisor_terms)
    if divisor is None:
        return None
    scaled_constant = terms.get((), 0) * divisor
    return add_polynomials([dividend, {(): scaled_constant}]), divisor


def _substituted_atom(atom: str, dims: Mapping[str, int]) -> Polynomial:
    """Return an atom with the symbols in ``dims`` replaced by their values."""
    if atom in dims:
        return constant_polynomial(dims[atom])
    call = parse_call(atom)
    if call is None:
        return {(atom,): 1}
    name, arguments = call
    return apply_function(name, [substitute(argument, dims) for argument in arguments])


def apply_function(name: str, arguments: Sequence[Polynomial]) -> Polynomial:
    """Return the value of a function: simplified, or as one atom in canonical form.

    The functions are ``min`` and ``max`` of any number of arguments, and ``floor``, ``ceiling`` and ``mod`` of a
    dividend and a divisor.

    Raises:
        ValueError: a division by zero.
    """
    if name in ("min", "max"):
        return _extreme(name, arguments)
    dividend, divisor = arguments
    number = constant_value(divisor)
    if number is None:  # a divisor with symbols: 0 / divisor is 0, any other call is an atom
        return {(_format_call(name, arguments),): 1} if dividend else {}
    if name == "floor":
        return floor_divide(dividend, number)
    if name == "ceiling":
        # ceiling(dividend / number) is floor((dividend + number - 1) / number) for a positive number.
        if number < 0:
            dividend, number = multiply_polynomials([dividend], -1), -number
        return floor_divide(add_polynomials([dividend, {(): number - 1}]), number)
    whole_part = multiply_polynomials([floor_divide(dividend, number)], number)
    return add_polynomials([dividend, multiply_polynomials([whole_part], -1)])  # mod


def _extreme(name: str, arguments: Sequence[Polynomial]) -> Polynomial:
    """Return the ``min`` or ``max``: numbers are merged into one, equal arguments occur once."""
    numbers = [v for v in map(constant_value, arguments) if v is not None]
    distinct = {format_polynomial(a): a for a in arguments if constant_value(a) is None}
    if numbers:
        number = constant_polynomial(min(numbers) if name == "min" else max(numbers))
        distinct[format_polynomial(number)] = number
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    return {(_format_call(name, list(distinct.values())),): 1}  # one atom


def parse_polynomial(text: str) -> Polynomial:
    """Return an expression as a polynomial. A quotient by a number is rounded down.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the text is no expression.
    """
    tree = _Tree.parse(text)
    return _whole(_rational(tree.top, tree))


@dataclass(slots=True)
class _Tree:
    """The syntax tree of a dim's text.

    Attributes:
        top: the root; its names are placeholders ``_0``, ``_1``, ... for names that Python cannot parse.
        names: the name that each placeholder stands for.
    """

    top: ast.expr
    names: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> _Tree:
        """Return the syntax tree of an expression, with a placeholder for each name.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: the text is no expression.
        """
        names: list[str] = []

        def placeholder(match: re.Match[str]) -> str:
            names.append(match["plain"] or match["quoted"])
            return f" _{len(names) - 1} "  # with spaces, so that `2batch` is a syntax error

        python_text = _WORD.sub(placeholder, text).strip()
        if "#" in python_text:
            raise ValueError("Python would read a comment")
        return cls(ast.parse(python_text, mode="eval").body, names)

    def name(self, node: ast.Name) -> str:
        """Return the name that a placeholder stands for."""
        return self.names[int(node.id[1:])]


class _Rational(NamedTuple):
    """A polynomial divided by a number, which may be negative but is never 0."""

    numerator: Polynomial
    divisor: int = 1


def _whole(value: _Rational) -> Polynomial:
    """Return the quotient of a polynomial and a number, rounded down."""
    return floor_divide(value.numerator, value.divisor)


def _rational(node: ast.expr, tree: _Tree) -> _Rational:
    """Return the numerator and the divisor of a syntax tree.

    Divisions by a number are kept exact until the end: ``W/2 + 1/2`` is ``(W + 1) / 2``.

    Raises:
        ValueError: the expression is no arithmetic over integers and names.
    """
    match node:
        # No bool: `_Tree.parse` has replaced all words, ``True`` too.
        case ast.Constant(value=int(value)):
            return _Rational(constant_polynomial(value))
        case ast.Name():
            return _Rational({(tree.name(node),): 1})
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _rational(operand, tree)
            return _Rational(multiply_polynomials([positive.numerator], -1), positive.divisor)
        case ast.BinOp(left=left, op=operator, right=right):
            return _arithmetic(operator, _rational(left, tree), _rational(right, tree))
        case ast.Call():
            return _Rational(apply_function(*_call_of(node, tree)))
    raise ValueError(ast.dump(node))


def _arithmetic(operator: ast.operator, left: _Rational, right: _Rational) -> _Rational:
    """Return the result of a binary operator on two rational polynomials.

    The quotient ``/`` by a number is exact. By symbols it is floored, as ``//`` is, because dims are integers.

    Raises:
        ValueError: the operator is not supported, a divisor is 0, or an exponent is not a whole
            number from 0 to 8.
    """
    left_terms, right_terms = _over_common_divisor(left, right)
    common_divisor = left.divisor * right.divisor
    right_number = constant_value(right.numerator)  # None: the right operand has symbols
    match operator:
        case ast.Add():
            return _Rational(add_polynomials([left_terms, right_terms]), common_divisor)
        case ast.Sub():
            negative_right = multiply_polynomials([right_terms], -1)
            return _Rational(add_polynomials([left_terms, negative_right]), common_divisor)
        case ast.Mult():
            product = multiply_polynomials([left.numerator, right.numerator])
            return _Rational(product, common_divisor)
        case ast.Div() | ast.FloorDiv() | ast.Mod() if right_number == 0:
            raise ValueError("division by zero")
        case ast.Div() if right_number is not None:
            # (a/b) / (p/q) is (a*q) / (b*p): a*q are the ``left_terms``, and p is the ``right_number``.
            return _Rational(left_terms, left.divisor * right_number)
        case ast.FloorDiv() | ast.Div():
            return _Rational(apply_function("floor", [left_terms, right_terms]))
        case ast.Mod():
            return _Rational(apply_function("mod", [_whole(left), _whole(right)]))
        case ast.Pow() if right_number is not None and right_number % right.divisor == 0:
            exponent = right_number // right.divisor
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


def _call_of(node: ast.expr, tree: _Tree) -> Call:
    """Return the function and the arguments of a call, the node of a syntax tree.

    In a text, ``floor`` and ``ceiling`` (or ``ceil``) have one argument, ``mod`` two, ``min`` and ``max``
    two or more.

    Raises:
        ValueError: the node is no call, there is no such function, or it has another number of arguments.
    """
    match node:
        case ast.Call(func=ast.Name() as function, args=args, keywords=[]):
            word = tree.name(function).lower()
        case _:
            raise ValueError(ast.dump(node))
    name = "ceiling" if word == "ceil" else word
    if name in QUOTIENTS and len(args) == 1:
        return name, _quotient(args[0], tree)
    if (name == "mod" and len(args) == 2) or (name in ("min", "max") and len(args) > 1):
        return name, tuple(_whole(_rational(arg, tree)) for arg in args)
    raise ValueError(word)


def _quotient(node: ast.expr, tree: _Tree) -> tuple[Polynomial, Polynomial]:
    """Return the dividend and the divisor of the argument of floor or ceiling.

    ``W/k`` gives ``W`` and ``k``, and ``W/2 + 1/2`` gives ``W + 1`` and 2.

    Raises:
        ValueError: a part of the argument is divided by dims, as in ``W/k + V/k``: `_rational` would floor each quotient.
    """
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            _refuse_division_by_dims(left, right)
            return _over_common_divisor(_rational(left, tree), _rational(right, tree))
    _refuse_division_by_dims(node)
    value = _rational(node, tree)
    constant_divisor: Polynomial = {(): value.divisor}
    return value.numerator, constant_divisor


def _refuse_division_by_dims(*nodes: ast.expr) -> None:
    """Raise a ValueError if a part of a syntax tree, outside of calls, is divided by an expression with names."""
    for node in nodes:
        match node:
            case ast.UnaryOp(operand=operand):
                _refuse_division_by_dims(operand)
            case ast.BinOp(left=left, op=operator, right=right):
                divisor_parts = ast.walk(right) if isinstance(operator, ast.Div) else ()
                if any(isinstance(part, ast.Name) for part in divisor_parts):
                    raise ValueError(ast.dump(node))
                _refuse_division_by_dims(left, right)
