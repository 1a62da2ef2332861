"""Changes of one function, found on the package's syntax trees by name and kind.

A function is found by its qualified name, in whichever file it is. A change names the place inside of
the function by words (names and strings that the code of this place has, and no other place of the
same kind), or by its whole expression. A change that finds no place, or several, is an error.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

Kind = Literal["never", "always", "drop", "without", "operand", "compare", "replace"]
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class StaleChangeError(LookupError):
    """A change whose function or place is not in the package, or is there several times."""


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of a function.

    Attributes:
        kind: what is done with the place.
        place: words of the place, or its whole text. Empty: the function has one place of this kind.
        new: the expression that takes the place, the number of the operand, or the comparison.
        nth: which of several places with these words, from 0.
    """

    kind: Kind
    place: str = ""
    new: str = ""
    nth: int | None = None


def never(words: str = "", nth: int | None = None) -> Change:
    """Make a condition, or one operand of a condition, false."""
    return Change("never", words, "False", nth)


def always(words: str = "", nth: int | None = None) -> Change:
    """Make a condition, or one operand of a condition, true."""
    return Change("always", words, "True", nth)


def drop(words: str = "", nth: int | None = None) -> Change:
    """Leave a statement out."""
    return Change("drop", words, "pass", nth)


def without(words: str = "", nth: int | None = None) -> Change:
    """Leave out an element of a tuple, list, set or dictionary, or an argument of a call."""
    return Change("without", words, "", nth)


def operand(words: str, number: int, nth: int | None = None) -> Change:
    """Put one operand of an operation, or one argument of a call, in its place."""
    return Change("operand", words, str(number), nth)


def compare(words: str, operator: str, nth: int | None = None) -> Change:
    """Put another operator in place of a comparison's."""
    return Change("compare", words, operator, nth)


def replace(expression: str, new: str, nth: int | None = None) -> Change:
    """Put another expression in place of one."""
    return Change("replace", expression, new, nth)


@dataclass(frozen=True, slots=True)
class Edit:
    """The text of a file before and after one change."""

    file: Path
    before: str
    after: str


def edit_of(package: Path, name: str, change: Change) -> Edit:
    """Return the edit that makes a change of a function.

    Raises:
        StaleChangeError: there is no such function or place, or the change fits several.
    """
    named = [(file, node) for file, node in definitions(package).get(name, ())]
    if not named:
        raise StaleChangeError(f"the package has no function {name}")
    fitting = [(file, place) for file, node in named for place in places(node, change)]
    if not fitting:
        raise StaleChangeError(f"{name} has no place for {change}")
    if change.nth is None and len(fitting) > 1:
        raise StaleChangeError(f"{name} has {len(fitting)} places for {change}")
    if (change.nth or 0) >= len(fitting):
        raise StaleChangeError(f"{name} has {len(fitting)} places for {change}")
    file, place = fitting[change.nth or 0]
    text = file.read_text(encoding="utf-8")
    return Edit(file, text, _spliced(text, place, change))


@cache
def definitions(package: Path) -> dict[str, tuple[tuple[Path, Definition], ...]]:
    """Return the functions, classes and tables of modules by qualified name."""
    found: dict[str, tuple[tuple[Path, Definition], ...]] = {}
    for file in sorted(package.rglob("*.py")):
        for name, node in _defined(ast.parse(file.read_text(encoding="utf-8")), ""):
            found[name] = (*found.get(name, ()), (file, node))
    return found


def _defined(parent: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _defined(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(parent, ast.Module):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield ast.unparse(target), node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _defined(node, prefix)


@dataclass(frozen=True, slots=True)
class Place:
    """A node that a change may edit, with the node that has it as an element."""

    node: ast.stmt | ast.expr | ast.keyword
    parent: ast.AST


def places(function: Definition, change: Change) -> list[Place]:
    """Return the places that a change fits: those of its text, or the innermost with its words."""
    every = sorted(_PLACES[change.kind](function), key=_position)
    if not change.place:
        return every
    if exact := [place for place in every if _text(place.node) == _normal(change.place)]:
        return exact
    wanted = set(change.place.split())
    found = [place for place in every if wanted <= words_of(place.node)]
    return [p for p in found if not any(_is_inside(q, p) for q in found)]


@cache
def _text(node: ast.AST) -> str:
    return ast.unparse(node)


@cache
def _normal(text: str) -> str:
    """Return a text as the syntax tree is printed; the text itself where it is no Python."""
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:
        return text


@cache
def words_of(node: ast.AST) -> frozenset[str]:
    """Return the names, attributes and words of strings below a node."""
    words: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            words.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            words.add(inner.attr)
        elif isinstance(inner, ast.keyword) and inner.arg:
            words.add(inner.arg)
        elif isinstance(inner, ast.Constant):
            words.update(str(inner.value).split())
    return frozenset(words)


def _is_inside(inner: Place, outer: Place) -> bool:
    return inner.node is not outer.node and any(
        node is inner.node for node in ast.walk(outer.node)
    )


def _position(place: Place) -> tuple[int, int]:
    return place.node.lineno, place.node.col_offset


def _statements(function: Definition) -> Iterator[Place]:
    for parent in ast.walk(function):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.stmt) and not isinstance(node, ast.Pass):
                yield Place(node, parent)


def _conditions(function: Definition) -> Iterator[Place]:
    for node in ast.walk(function):
        tests: Sequence[ast.expr] = ()
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        elif isinstance(node, ast.BoolOp):
            tests = node.values
        elif isinstance(node, ast.Return) and _is_condition(node.value):
            tests = [node.value] if node.value else ()
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tests = [node.operand]
        yield from (Place(test, node) for test in tests)


def _is_condition(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in {"any", "all"}
    is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_negation or isinstance(node, ast.Compare | ast.BoolOp)


def _elements(function: Definition) -> Iterator[Place]:
    for node in ast.walk(function):
        parts: Sequence[ast.expr | ast.keyword | None] = ()
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = [key or value for key, value in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.Call):
            parts = [*node.args, *node.keywords]
        yield from (Place(part, node) for part in parts if part is not None)


def _expressions(function: Definition) -> Iterator[Place]:
    for parent in ast.walk(function):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.expr) and not isinstance(
                getattr(node, "ctx", None), ast.Store | ast.Del
            ):
                yield Place(node, parent)


def _operations(function: Definition) -> Iterator[Place]:
    return (p for p in _expressions(function) if isinstance(p.node, ast.Call | ast.BinOp))


def _comparisons(function: Definition) -> Iterator[Place]:
    return (p for p in _expressions(function) if isinstance(p.node, ast.Compare))


_PLACES: Mapping[Kind, Callable[[Definition], Iterator[Place]]] = {
    "never": _conditions,
    "always": _conditions,
    "drop": _statements,
    "without": _elements,
    "operand": _operations,
    "compare": _comparisons,
    "replace": _expressions,
}


def _spliced(text: str, place: Place, change: Change) -> str:
    """Return the text of a file with the edited place."""
    node: ast.AST = place.node
    new = change.new
    if change.kind == "without":
        node, new = place.parent, _without(place)
    elif change.kind == "operand":
        new = f"({_operand(place.node, int(new))})"
    elif change.kind == "compare":
        assert isinstance(place.node, ast.Compare)
        new = (
            f"({ast.unparse(place.node.left)} {new} {ast.unparse(place.node.comparators[0])})"
        )
    elif change.kind == "replace":
        new = f"({new})"
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    assert isinstance(node, ast.stmt | ast.expr)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = b"".join(lines[:first]) + lines[first][: node.col_offset]
    after = lines[last][node.end_col_offset :] + b"".join(lines[last + 1 :])
    return (before + new.encode() + after).decode()


def _operand(node: ast.AST, number: int) -> str:
    """Return the text of an operation's operand, or of a call's argument."""
    if isinstance(node, ast.BinOp):
        return ast.unparse((node.left, node.right)[number])
    assert isinstance(node, ast.Call)
    return ast.unparse(node.args[number])


def _without(place: Place) -> str:
    """Return the text of a place's parent without the place."""
    parent, gone = place.parent, place.node
    if isinstance(parent, ast.Dict):
        kept = [
            (key, value)
            for key, value in zip(parent.keys, parent.values, strict=True)
            if gone is not (key or value)
        ]
        return ast.unparse(ast.Dict([key for key, _ in kept], [value for _, value in kept]))
    if isinstance(parent, ast.Call):
        arguments = [each for each in parent.args if each is not gone]
        keywords = [each for each in parent.keywords if each is not gone]
        return ast.unparse(ast.Call(parent.func, arguments, keywords))
    assert isinstance(parent, ast.Tuple | ast.List | ast.Set)
    return ast.unparse(
        type(parent)(elts=[each for each in parent.elts if each is not gone], ctx=ast.Load())
        if not isinstance(parent, ast.Set)
        else ast.Set([each for each in parent.elts if each is not gone])
    )
