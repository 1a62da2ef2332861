"""What does a dim's text mean? A sum of products of symbols, one spelling for equal ones.

    "batch*seq"  "new + past"  "Min(512, seq)"  "floor(W/2 + 1/2)"  "(W + 1)//2"

are read; what comes out again is spelled in one way and reads as itself: products sorted,
quotients by a number as ``floor((W + 1)/2)``, whatever is no word in backquotes. A text
that is no expression at all is the name of a symbol.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product as cartesian
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.ir import Dim

Monomial = tuple[str, ...]
Polynomial = Mapping[Monomial, int]
"""Sum of ``coefficient * symbol * symbol ...``; ``()`` is the constant term."""

_CALLS: Mapping[str, str] = {
    "floor": "floor", "ceiling": "ceiling", "ceil": "ceiling", "mod": "mod", "min": "min",
    "max": "max",
}  # fmt: skip
"""Functions as they are found, in small letters, and as they are spelled."""

_WORD = re.compile(r"`([^`]*)`|([^\W\d][\w.:$#@]*)")
_PLAIN = re.compile(r"[^\W\d][\w.:$#@]*")
_MAX_POWER = 8


def bind_dim(dim: Dim, dims: Mapping[str, int]) -> Dim:
    """Replace the symbols of a dim that ``dims`` knows; a number where all are known."""
    if not isinstance(dim, str) or not dims:
        return dim
    if dim in dims:
        return dims[dim]
    try:
        return as_dim(bound(parse_dim(dim), dims))
    except ValueError:  # a division by a symbol that turned out to be zero
        return None


def canonical_dim(text: str) -> int | str:
    """Return one spelling for all equal expressions: ``seq*batch`` -> ``batch*seq``."""
    return as_dim(parse_dim(text))


def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the names a dim depends on."""
    return names_in(parse_dim(dim)) if isinstance(dim, str) else frozenset()


@lru_cache(maxsize=65536)
def parse_dim(text: str) -> Polynomial:
    """Read a dim's text; what is no expression is one symbol, named by the whole text."""
    try:
        return _whole(_Reader.read(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {(text.strip().replace("`", "'"),): 1}


def as_dim(terms: Polynomial) -> int | str:
    """Return a number where no symbol is left, else the spelling."""
    value = constant(terms)
    return spelled(terms) if value is None else value


def constant(terms: Polynomial) -> int | None:
    """Return the value of a sum without symbols."""
    if not terms:
        return 0
    return terms[()] if len(terms) == 1 and () in terms else None


def spelled(terms: Polynomial) -> str:
    """Spell a sum of products: sorted, the constant last."""
    if not terms:
        return "0"
    words = []
    for monomial in sorted(terms, key=lambda m: (not m, m)):
        value = terms[monomial]
        factors = [spelled_atom(atom) for atom in monomial]
        if abs(value) != 1 or not factors:
            factors.insert(0, str(abs(value)))
        words.append(f"{'-' if value < 0 else '+'} {'*'.join(factors)}")
    text = " ".join(words)
    return text[2:] if text.startswith("+ ") else f"-{text[2:]}"


def spelled_atom(atom: str) -> str:
    """Spell one symbol or call; a name that is no plain word stands in backquotes."""
    return atom if is_call(atom) or _PLAIN.fullmatch(atom) else f"`{atom}`"


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
        call = _call_in(atom)
        if call is None:
            found.add(atom)
        else:
            found.update(*(names_in(argument) for argument in call.arguments))
    return frozenset(found)


def total(parts: Iterable[Polynomial]) -> Polynomial:
    """Add sums up."""
    found: dict[Monomial, int] = {}
    for part in parts:
        for monomial, value in part.items():
            found[monomial] = found.get(monomial, 0) + value
    return {monomial: value for monomial, value in found.items() if value}


def multiplied(parts: Iterable[Polynomial], factor: int = 1) -> Polynomial:
    """Multiply sums out."""
    found: Polynomial = {(): factor} if factor else {}
    for part in parts:
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
    return total([whole, {(f"floor({_argument(rest)}/{divisor // common})",): 1}])


def _inner_floor(terms: Polynomial) -> tuple[Polynomial, int] | None:
    """Read ``floor(a/b) + k`` as ``a + k*b`` and ``b``; None for anything else."""
    atoms = [m for m in terms if m]
    if len(atoms) != 1 or len(atoms[0]) != 1 or terms[atoms[0]] != 1:
        return None
    call = _call_in(atoms[0][0])
    if call is None or call.name != "floor":
        return None
    top, below = call.arguments[0], constant(call.arguments[1])
    if below is None:
        return None
    return total([top, {(): terms.get((), 0) * below}]), below


def _argument(terms: Polynomial) -> str:
    text = spelled(terms)
    return f"({text})" if len(terms) > 1 else text


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: tuple[Polynomial, ...]


def is_call(atom: str) -> bool:
    """Whether an atom is a function of other symbols, and no name."""
    return _call_in(atom) is not None


def calls_in(atom: str) -> tuple[str, tuple[Polynomial, ...]] | None:
    """Return the function that an atom calls and its arguments; None of a name.

    The functions are floor and ceiling of the quotient of two arguments, mod, min and max.
    """
    call = _call_in(atom)
    return None if call is None else (call.name, call.arguments)


@lru_cache(maxsize=65536)
def _call_in(atom: str) -> _Call | None:
    """Return the function and what it is given, or None for a name."""
    name, bracket, _ = atom.partition("(")
    if not bracket or name not in _CALLS or not atom.endswith(")"):
        return None
    try:
        reader, tree = _Reader.tree(atom)
        if not isinstance(tree, ast.Call):
            return None
        if name in ("floor", "ceiling"):
            (quotient,) = tree.args
            if not isinstance(quotient, ast.BinOp):
                return None
            parts: list[ast.expr] = [quotient.left, quotient.right]
        else:
            parts = tree.args
        return _Call(name, tuple(_whole(reader.rational(part)) for part in parts))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bound_atom(atom: str, dims: Mapping[str, int]) -> Polynomial:
    if atom in dims:
        return {(): dims[atom]} if dims[atom] else {}
    call = _call_in(atom)
    if call is None:
        return {(atom,): 1}
    return _called(call.name, [bound(argument, dims) for argument in call.arguments])


def _called(name: str, arguments: list[Polynomial]) -> Polynomial:
    """Apply a function: to numbers at once, else as one symbol in one spelling."""
    if name in ("min", "max"):
        return _extreme(name, arguments)
    top, bottom = arguments
    number = constant(bottom)
    if number is None:
        if name == "mod":
            return {(f"mod({spelled(top)}, {spelled(bottom)})",): 1}
        divisor = spelled(bottom)
        if len(bottom) > 1 or "*" in divisor or divisor.startswith("-"):
            divisor = f"({divisor})"
        return {(f"{name}({_argument(top)}/{divisor})",): 1} if top else {}
    if name == "floor":
        return floored(top, number)
    if name == "ceiling":
        if number < 0:
            top, number = multiplied([top], -1), -number
        return floored(total([top, {(): number - 1}]), number)
    return total([top, multiplied([floored(top, number)], -number)])


def _extreme(name: str, arguments: list[Polynomial]) -> Polynomial:
    numbers = [v for v in map(constant, arguments) if v is not None]
    others = {spelled(a): a for a in arguments if constant(a) is None}
    if numbers:
        best = min(numbers) if name == "min" else max(numbers)
        others[str(best)] = {(): best} if best else {}
    if len(others) == 1:
        return next(iter(others.values()))
    return {(f"{name}({', '.join(sorted(others))})",): 1}


_Rational = tuple[Polynomial, int]


def _whole(value: _Rational) -> Polynomial:
    terms, divisor = value
    return floored(terms, divisor)


@dataclass(slots=True)
class _Reader:
    """Reads text as Python would, after every name was put aside under a number."""

    names: list[str] = field(default_factory=list)

    @classmethod
    def tree(cls, text: str) -> tuple[_Reader, ast.expr]:
        reader = cls()
        safe = _WORD.sub(reader._aside, text.strip())
        return reader, ast.parse(safe, mode="eval").body

    @classmethod
    def read(cls, text: str) -> _Rational:
        reader, tree = cls.tree(text)
        return reader.rational(tree)

    def _aside(self, match: re.Match[str]) -> str:
        self.names.append(match[2] if match[1] is None else match[1])
        return f"_{len(self.names) - 1}"

    def rational(self, node: ast.expr) -> _Rational:
        """Return numerator and divisor of an expression.

        Raises:
            ValueError: it is something else than arithmetic.
        """
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return ({(): value} if value else {}), 1
            case ast.Name(id=name):
                return {(self.names[int(name[1:])],): 1}, 1
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                terms, divisor = self.rational(operand)
                return multiplied([terms], -1), divisor
            case ast.BinOp(left=left, op=operator, right=right):
                return self._arithmetic(left, operator, right)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args:
                return self._call(self.names[int(name[1:])].lower(), args)
        raise ValueError(ast.dump(node))

    def _arithmetic(
        self, left: ast.expr, operator: ast.operator, right: ast.expr
    ) -> _Rational:
        (a, down), (b, under) = self.rational(left), self.rational(right)
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
                found = _called("floor", [over, below]), 1
            case ast.Mod():
                found = _called("mod", [_whole((a, down)), _whole((b, under))]), 1
            case ast.Pow() if number is not None and 0 <= number <= _MAX_POWER:
                found = multiplied([a] * number), down**number
            case _:
                raise ValueError(ast.dump(operator))
        return found

    def _call(self, word: str, args: list[ast.expr]) -> _Rational:
        name = _CALLS.get(word, "")
        if not name or (name in ("floor", "ceiling")) != (len(args) == 1):
            raise ValueError(word)
        if name not in ("floor", "ceiling"):
            if name == "mod" and len(args) != 2:
                raise ValueError(word)
            return _called(name, [_whole(self.rational(arg)) for arg in args]), 1
        match args[0]:
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                (a, down), (b, under) = self.rational(left), self.rational(right)
                return _called(name, [multiplied([a], under), multiplied([b], down)]), 1
        terms, divisor = self.rational(args[0])
        return _called(name, [terms, {(): divisor}]), 1
