"""How many bytes? A number times named symbols, exact for every value of the symbols."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product as cartesian
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.ir import Dim, Shape

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

Monomial = tuple[str, ...]
Polynomial = Mapping[Monomial, int]
"""Sum of ``coefficient * symbol * symbol ...``; ``()`` is the constant term."""


@dataclass(frozen=True, slots=True)
class Size:
    """``coefficient * symbols[0] * symbols[1] ...`` bytes, symbols in sorted order.

    A symbol is a dim's name, or an expression that is no product, in parentheses.
    """

    coefficient: int
    symbols: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What the coefficient is multiplied by, as text: ``1``, ``batch*seq``."""
        return "*".join(self.symbols) or "1"

    def fits_in(self, other: Size) -> bool:
        """Whether this is at most ``other`` whatever the symbols stand for."""
        return self.symbols == other.symbols and self.coefficient <= other.coefficient

    def bind(self, dims: Mapping[str, int]) -> Size:
        """Replace the symbols that ``dims`` knows by their values."""
        return _from_dims(
            tuple(bind_dim(symbol, dims) for symbol in self.symbols), self.coefficient
        )

    def __str__(self) -> str:
        return "*".join((str(self.coefficient), *self.symbols))


def size_of(shape: Shape | None, dtype: str) -> Size | None:
    """Return the bytes of a dense tensor, or None where they are not known.

    Types below a byte are packed: three int4 take two bytes.
    """
    bits = BITS.get(dtype)
    if bits is None or shape is None:
        return None
    try:
        return _from_dims(shape, bits, divisor=8)
    except ValueError:
        return None


def bind_dim(dim: Dim, dims: Mapping[str, int]) -> Dim:
    """Replace the symbols of a dim that ``dims`` knows; a number where all are known."""
    if not isinstance(dim, str) or not dims:
        return dim
    terms = parse_dim(dim)
    bound = _sum(
        _product([_atom(symbol, dims) for symbol in monomial], factor)
        for monomial, factor in terms.items()
    )
    return _as_dim(bound)


def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the names a dim depends on."""
    if not isinstance(dim, str):
        return frozenset()
    names: set[str] = set()
    for monomial in parse_dim(dim):
        for atom in monomial:
            names.update(_names(atom))
    return frozenset(names)


@lru_cache(maxsize=65536)
def canonical_dim(text: str) -> int | str:
    """Return one spelling for all equal sums of products: ``seq*batch`` -> ``batch*seq``."""
    dim = _as_dim(parse_dim(text))
    assert dim is not None  # noqa: S101 - a text never stands for an unknown dim
    return dim


@lru_cache(maxsize=65536)
def parse_dim(text: str) -> Polynomial:
    """Read a dim's text; what is no sum of products is one opaque symbol."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _polynomial(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {(text,): 1}


def _polynomial(node: ast.expr) -> Polynomial:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return {(): value} if value else {}
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _scaled(_polynomial(operand), -1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum((_polynomial(left), _polynomial(right)))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _sum((_polynomial(left), _scaled(_polynomial(right), -1)))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product([_polynomial(left), _polynomial(right)], 1)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _call("floordiv", (_polynomial(left), _polynomial(right)))
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return _call("mod", (_polynomial(left), _polynomial(right)))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if (
            0 <= power <= 8
        ):
            return _product([_polynomial(left)] * power, 1)
        case ast.Call(
            func=ast.Name(id="floor" | "ceiling" as way),
            args=[ast.BinOp(left=left, op=ast.Div(), right=right)],
        ):
            kind = "floordiv" if way == "floor" else "ceildiv"
            return _call(kind, (_polynomial(left), _polynomial(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name.lower() in _FUNCTIONS
        ):
            return _call(name.lower(), tuple(_polynomial(arg) for arg in args))
    raise ValueError(ast.dump(node))


_FUNCTIONS: Mapping[str, object] = {
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
}


def _call(name: str, args: tuple[Polynomial, ...]) -> Polynomial:
    """Fold a call on numbers; else it is one symbol, spelled canonically."""
    values = [_constant(arg) for arg in args]
    if all(value is not None for value in values) and values:
        try:
            result = _FUNCTIONS[name](*values)  # type: ignore[operator]
        except (ZeroDivisionError, TypeError) as error:
            raise ValueError(name) from error
        return {(): result} if result else {}
    if name in ("min", "max"):
        args = tuple(sorted(args, key=_text))
    return {(f"{name}({', '.join(map(_text, args))})",): 1}


def _constant(terms: Polynomial) -> int | None:
    if not terms:
        return 0
    return terms[()] if set(terms) == {()} else None


def _scaled(terms: Polynomial, factor: int) -> Polynomial:
    return {monomial: value * factor for monomial, value in terms.items() if value * factor}


def _sum(parts: object) -> Polynomial:
    total: dict[Monomial, int] = {}
    for part in parts:  # type: ignore[attr-defined]
        for monomial, value in part.items():
            total[monomial] = total.get(monomial, 0) + value
    return {monomial: value for monomial, value in total.items() if value}


def _product(parts: list[Polynomial], factor: int) -> Polynomial:
    total: Polynomial = {(): factor} if factor else {}
    for part in parts:
        pairs = cartesian(total.items(), part.items())
        total = _sum({tuple(sorted(a + b)): x * y} for (a, x), (b, y) in pairs)
    return total


def _text(terms: Polynomial) -> str:
    """Spell a sum of products: sorted, constants last."""
    if not terms:
        return "0"
    words = []
    for monomial in sorted(terms, key=lambda m: (not m, m)):
        value = terms[monomial]
        factors = list(monomial)
        if abs(value) != 1 or not factors:
            factors.insert(0, str(abs(value)))
        sign = "-" if value < 0 else "+"
        words.append(f"{sign} {'*'.join(factors)}")
    text = " ".join(words)
    return text[2:] if text.startswith("+ ") else f"-{text[2:]}"


def _as_dim(terms: Polynomial) -> int | str:
    value = _constant(terms)
    return _text(terms) if value is None else value


def _atom(symbol: str, dims: Mapping[str, int]) -> Polynomial:
    if symbol in dims:
        value = dims[symbol]
        return {(): value} if value else {}
    name, _, rest = symbol.partition("(")
    if not rest or name not in _FUNCTIONS:
        return {(symbol,): 1}
    tree = ast.parse(symbol, mode="eval").body
    assert isinstance(tree, ast.Call)  # noqa: S101 - _call wrote it
    args = [bind_dim(_as_dim(_polynomial(arg)), dims) for arg in tree.args]
    return _call(name, tuple(parse_dim(str(arg)) for arg in args))


def _names(atom: str) -> set[str]:
    name, _, rest = atom.partition("(")
    if not rest or name not in _FUNCTIONS:
        return {atom}
    return {
        n.id for n in ast.walk(ast.parse(atom, mode="eval")) if isinstance(n, ast.Name)
    } - set(_FUNCTIONS)


def _from_dims(dims: Shape, factor: int, *, divisor: int = 1) -> Size:
    """Multiply dims into a size: common factors out, what is no product in parentheses."""
    coefficient, symbols = factor, []
    for dim in dims:
        if dim is None:
            raise ValueError("unknown dim")
        if isinstance(dim, int):
            coefficient *= dim
            continue
        terms = (
            parse_dim(dim.removeprefix("(").removesuffix(")"))
            if _wrapped(dim)
            else parse_dim(dim)
        )
        number, common, rest = _factored(terms)
        coefficient *= number
        symbols.extend(common)
        if rest:
            symbols.append(f"({rest})")
    if coefficient < 0:
        raise ValueError("negative size")
    if coefficient == 0:
        return Size(0)
    if coefficient % divisor and symbols:
        raise ValueError("a packed type whose size is no whole number of bytes")
    return Size(-(-coefficient // divisor), tuple(sorted(symbols)))


def _wrapped(dim: str) -> bool:
    return dim.startswith("(") and dim.endswith(")")


def _factored(terms: Polynomial) -> tuple[int, Monomial, str]:
    """Split a sum of products into a number, common symbols and the rest as text."""
    if not terms:
        return 0, (), ""
    number = math.gcd(*terms.values())
    monomials = list(terms)
    common = list(monomials[0])
    for monomial in monomials[1:]:
        left = list(monomial)
        common = [s for s in common if s in left and (left.remove(s) or True)]  # type: ignore[func-returns-value]
    if len(terms) == 1:
        number = next(iter(terms.values()))
        return number, tuple(common), ""
    rest = {}
    for monomial, value in terms.items():
        left = list(monomial)
        for symbol in common:
            left.remove(symbol)
        rest[tuple(left)] = value // number
    return number, tuple(common), _text(rest)
