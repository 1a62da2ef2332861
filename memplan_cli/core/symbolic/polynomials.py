"""Polynomials over symbols: arithmetic, canonical form, and the syntax tree of a dim's text.

An atom of a product is a symbol's name or a call, like ``floor((W + 1)/2)``, of other
sums. Equal expressions have one canonical form: products sorted, the constant last.

A text is read as Python reads arithmetic, after every name was replaced: names of dims are
freer than Python's (``input.1_dim0``), and in backquotes anything goes.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product as cartesian

Monomial = tuple[str, ...]
Polynomial = Mapping[Monomial, int]
"""Sum of ``coefficient * symbol * symbol ...``; ``()`` is the constant term."""

Call = tuple[str, tuple[Polynomial, ...]]
"""A function and its arguments: floor and ceiling of the quotient of two, mod, min, max."""

QUOTIENTS = frozenset({"floor", "ceiling"})
_MOST_PRODUCTS = 4096

FUNCTIONS = QUOTIENTS | {"mod", "min", "max"}

_PLAIN = r"[^\W\d][\w.:$#@]*"
_WORD = re.compile(rf"`([^`]*)`|({_PLAIN})")
_BARE = re.compile(_PLAIN)


def quoted(name: str) -> str:
    """Return a name as text; one that is no plain word stands in backquotes."""
    return name if _BARE.fullmatch(name) else f"`{name}`"


@dataclass(slots=True)
class Tree:
    """The syntax of a text; ``name`` says what stands where Python sees ``_0``, ``_1`` ..."""

    top: ast.expr
    names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Tree:
        """Read a text.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: it is no expression.
        """
        names: list[str] = []

        def replaced(match: re.Match[str]) -> str:
            names.append(match[2] if match[1] is None else match[1])
            return f" _{len(names) - 1} "  # apart: `2batch` is neither a number nor 2*batch

        safe = _WORD.sub(replaced, text).strip()
        if "#" in safe:
            raise ValueError("Python would read a comment")
        return cls(ast.parse(safe, mode="eval").body, names)

    def name(self, node: ast.Name) -> str:
        """Return the name that was replaced."""
        return self.names[int(node.id[1:])]


def constant(terms: Polynomial) -> int | None:
    """Return the value of a sum without symbols."""
    if not terms:
        return 0
    return terms[()] if len(terms) == 1 and () in terms else None


def formatted(terms: Polynomial) -> str:
    """Return the canonical form of a sum of products: sorted, the constant last."""
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
    """Return one symbol or call as text; a name that is no plain word stands in backquotes."""
    return atom if is_call(atom) else quoted(atom)


def is_call(atom: str) -> bool:
    """Whether an atom is a function of other symbols, and no name."""
    return call_in(atom) is not None


def as_name(text: str) -> str:
    """Return a text as one name: what would read as a call has a space before its bracket."""
    return text.replace("(", " (", 1) if is_call(text) else text


@lru_cache(maxsize=65536)
def call_in(atom: str) -> Call | None:
    """Return the function that an atom calls and its arguments; None of a name.

    A call is what `called` writes; whatever else looks like one is a name.
    """
    name, bracket, _ = atom.partition("(")
    if not bracket or name not in FUNCTIONS or not atom.endswith(")"):
        return None
    try:
        call = _call(Tree.of(atom))
        return call if called(*call) == {(atom,): 1} else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(tree: Tree) -> Call:
    match tree.top:
        case ast.Call(func=ast.Name() as name, args=[ast.BinOp(op=ast.Div()) as quotient]):
            parts = [quotient.left, quotient.right]
        case ast.Call(func=ast.Name() as name, args=parts):
            pass
        case _:
            raise ValueError(ast.dump(tree.top))
    return tree.name(name), tuple(_sum(part, tree) for part in parts)


def _sum(node: ast.expr, tree: Tree) -> Polynomial:
    """Read what `formatted` wrote: sums and products only, calls are atoms."""
    match node:
        case ast.Constant(value=int(value)):
            return {(): value} if value else {}
        case ast.Name():
            return {(tree.name(node),): 1}
        case ast.Call():
            return {(_format_call(*_call(Tree(node, tree.names))),): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return multiplied([_sum(operand, tree)], -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            sign = 1 if isinstance(operator, ast.Add) else -1
            return total([_sum(left, tree), multiplied([_sum(right, tree)], sign)])
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return multiplied([_sum(left, tree), _sum(right, tree)])
    raise ValueError(ast.dump(node))


def _format_call(name: str, arguments: Sequence[Polynomial]) -> str:
    if name in QUOTIENTS:
        top, below = arguments
        divisor = formatted(below)
        if len(below) > 1 or "*" in divisor or divisor.startswith("-"):
            divisor = f"({divisor})"
        dividend = f"({formatted(top)})" if len(top) > 1 else formatted(top)
        return f"{name}({dividend}/{divisor})"
    texts = map(formatted, arguments)
    return f"{name}({', '.join(texts if name == 'mod' else sorted(texts))})"


def bound(terms: Polynomial, dims: Mapping[str, int]) -> Polynomial:
    """Put numbers in for the symbols that are known.

    Raises:
        ValueError: a division by zero.
    """
    return total(
        multiplied([_bound_atom(atom, dims) for atom in monomial], factor)
        for monomial, factor in terms.items()
    )


def names_in(terms: Polynomial) -> frozenset[str]:
    """Return the symbols in an expression, those inside of calls included."""
    found: set[str] = set()
    for atom in {atom for monomial in terms for atom in monomial}:
        call = call_in(atom)
        if call is None:
            found.add(atom)
        else:
            found.update(*map(names_in, call[1]))
    return frozenset(found)


def total(parts: Iterable[Polynomial]) -> Polynomial:
    """Add sums up."""
    found: dict[Monomial, int] = {}
    for part in parts:
        for monomial, value in part.items():
            found[monomial] = found.get(monomial, 0) + value
    return {monomial: value for monomial, value in found.items() if value}


def multiplied(parts: Iterable[Polynomial], factor: int = 1) -> Polynomial:
    """Multiply sums out.

    Raises:
        ValueError: there are more products than anybody would write down.
    """
    found: Polynomial = {(): factor} if factor else {}
    for part in parts:
        if len(found) == len(part) == 1:  # nearly all: a number times a symbol
            ((one, times),), ((other, more),) = found.items(), part.items()
            found = {tuple(sorted(one + other)) if one else other: times * more}
            continue
        if len(found) * len(part) > _MOST_PRODUCTS:
            raise ValueError("too many products")
        pairs = cartesian(found.items(), part.items())
        found = total({tuple(sorted(a + b)): x * y} for (a, x), (b, y) in pairs)
    return found


def floored(terms: Polynomial, divisor: int) -> Polynomial:
    """Return ``floor(terms / divisor)``; whole multiples of the divisor come out.

    Raises:
        ValueError: the divisor is zero.
    """
    if divisor < 0:
        terms, divisor = multiplied([terms], -1), -divisor
    if not divisor:
        raise ValueError("division by zero")
    whole = {m: v // divisor for m, v in terms.items() if v // divisor}
    rest = {m: v % divisor for m, v in terms.items() if v % divisor}
    if not rest or set(rest) == {()}:
        return whole
    common = math.gcd(divisor, *rest.values())
    rest = {m: v // common for m, v in rest.items()}
    # A remainder below what the other terms step by never reaches the next whole number.
    step = math.gcd(divisor // common, *(v for m, v in rest.items() if m))
    if step > 1 and () in rest:
        rest[()] -= rest[()] % step
        return total([whole, floored({m: v for m, v in rest.items() if v}, divisor // common)])
    inner = _inner_floor(rest)
    if inner is not None:  # floor((floor(a/b) + k)/c) is floor((a + k*b)/(b*c))
        terms, below = inner
        return total([whole, floored(terms, below * (divisor // common))])
    return total([whole, {(_format_call("floor", [rest, {(): divisor // common}]),): 1}])


def _inner_floor(terms: Polynomial) -> tuple[Polynomial, int] | None:
    """Read ``floor(a/b) + k`` as ``a + k*b`` and ``b``; None for anything else."""
    atoms = [m for m in terms if m]
    if len(atoms) != 1 or len(atoms[0]) != 1 or terms[atoms[0]] != 1:
        return None
    name, arguments = call_in(atoms[0][0]) or ("", ())
    below = constant(arguments[1]) if name == "floor" else None
    if below is None:
        return None
    return total([arguments[0], {(): terms.get((), 0) * below}]), below


def _bound_atom(atom: str, dims: Mapping[str, int]) -> Polynomial:
    if atom in dims:
        return {(): dims[atom]} if dims[atom] else {}
    call = call_in(atom)
    if call is None:
        return {(atom,): 1}
    name, arguments = call
    return called(name, [bound(argument, dims) for argument in arguments])


def called(name: str, arguments: Sequence[Polynomial]) -> Polynomial:
    """Apply a function: to numbers at once, else as one symbol in canonical form.

    Raises:
        ValueError: a division by zero.
    """
    if name in ("min", "max"):
        return _extreme(name, arguments)
    top, bottom = arguments
    number = constant(bottom)
    if number is None:
        return {(_format_call(name, arguments),): 1} if top else {}
    if name == "floor":
        return floored(top, number)
    if name == "ceiling":
        if number < 0:
            top, number = multiplied([top], -1), -number
        return floored(total([top, {(): number - 1}]), number)
    return total([top, multiplied([floored(top, number)], -number)])


def _extreme(name: str, arguments: Sequence[Polynomial]) -> Polynomial:
    numbers = [v for v in map(constant, arguments) if v is not None]
    others = {formatted(a): a for a in arguments if constant(a) is None}
    if numbers:
        best = min(numbers) if name == "min" else max(numbers)
        others[str(best)] = {(): best} if best else {}
    if len(others) == 1:
        return next(iter(others.values()))
    return {(_format_call(name, list(others.values())),): 1}
