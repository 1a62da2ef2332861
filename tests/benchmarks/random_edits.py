"""Small faults of source text, made on its syntax tree: operators, numbers, tables, statements.

A mutant has a name that outlives moves of its function and changes elsewhere: the function, the
operator, and the text before and after. Left out are strings, messages, annotations,
decorators, aliases of types and what only a type checker reads.
"""

from __future__ import annotations

import ast
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Change = tuple[str, ast.AST, str]
"""The operator, what takes the node's place, and what a reader is told."""

_NAMED = (ast.FunctionDef, ast.ClassDef)
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.BitXor: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TYPING = {"TypeVar", "NewType", "cast", "ParamSpec"}
_TYPED = {"annotation", "returns", "decorator_list", "type_params"}
_LONGEST = 150


@dataclass(frozen=True)
class Mutant:
    """One edit of one file.

    Attributes:
        file: from the root of the repository.
        place: qualified name of the function or class that holds it; empty for a module.
        operator: kind of the edit.
        text: the source before and after.
        nth: which of several with the same text in the same place.
        lines: first and last line of what is edited.
        entry: qualified name and first line of the outermost function; None outside of any.
        is_compiled: whether numba compiles that function.
    """

    file: str
    place: str
    operator: str
    text: str
    nth: int
    lines: tuple[int, int]
    entry: tuple[str, int] | None
    is_compiled: bool

    @property
    def name(self) -> str:
        """Name of this mutant while its function does not change, whichever file has it."""
        return f"{self.place}::{self.operator}::{self.text}::{self.nth}"

    @property
    def key(self) -> str:
        """Name of this mutant among those of one commit."""
        return f"{self.file}::{self.name}"

    @property
    def room(self) -> str:
        return self.file.split("/")[1]


@dataclass(frozen=True)
class _Site:
    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    names: tuple[str, ...]
    entry: ast.FunctionDef | None


def mutants(source: str, file: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    for mutant, _, _ in _found(ast.parse(source), file):
        yield mutant


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Return the tree of a file with one edit.

    Raises:
        LookupError: the file no longer has what the mutant edits.
    """
    tree = ast.parse(source)
    for found, site, new in _found(tree, mutant.file):
        if found.key == mutant.key:
            located = ast.copy_location(new, site.node)
            if site.index is None:
                setattr(site.parent, site.field, located)
            else:
                getattr(site.parent, site.field)[site.index] = located
            return ast.fix_missing_locations(tree)
    raise LookupError(mutant.key)


def _found(tree: ast.Module, file: str) -> Iterator[tuple[Mutant, _Site, ast.AST]]:
    seen: Counter[tuple[str, str, str]] = Counter()
    for site in list(_sites(tree, (), None)):
        place = ".".join(site.names)
        for operator, new, text in _changes(site):
            nth = seen[place, operator, text]
            seen[place, operator, text] += 1
            yield Mutant(file, place, operator, text, nth, *_where(site)), site, new


def _where(site: _Site) -> tuple[tuple[int, int], tuple[str, int] | None, bool]:
    node: Any = site.node
    lines, entry = (node.lineno, node.end_lineno), site.entry
    if entry is None:
        return lines, None, False
    name = ".".join(site.names[: site.names.index(entry.name) + 1])
    # What a function's code says it begins at.
    first = min([entry.lineno, *(each.lineno for each in entry.decorator_list)])
    is_compiled = any(ast.unparse(each) == "compiled" for each in entry.decorator_list)
    return lines, (name, first), is_compiled


def _sites(
    node: ast.AST, names: tuple[str, ...], entry: ast.FunctionDef | None
) -> Iterator[_Site]:
    for field, value in ast.iter_fields(node):
        if field in _TYPED or (isinstance(node, ast.Raise) and field in {"exc", "cause"}):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _is_left_out(child, node, names):
                continue
            inner = entry
            # What a function takes when it is not told is computed where it is defined.
            if isinstance(node, ast.FunctionDef) and field == "body" and entry is None:
                inner = node
            if hasattr(child, "lineno"):
                at = index if isinstance(value, list) else None
                yield _Site(node, field, at, child, names, inner)
            if _is_typing(child):
                continue
            below = (*names, child.name) if isinstance(child, _NAMED) else names
            yield from _sites(child, below, inner)


def _is_left_out(node: ast.AST, parent: ast.AST, names: tuple[str, ...]) -> bool:
    """Whether nothing of a node is code that a test could need."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert | ast.Global):
        return True
    if isinstance(node, ast.keyword):  # of zip(): an assertion
        return node.arg == "strict"
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.FunctionDef):
        return any(ast.unparse(each) == "overload" for each in node.decorator_list)
    if isinstance(node, ast.Assign) and isinstance(parent, ast.Module) and not names:
        value = node.value
        alias = isinstance(value, ast.Subscript) or (
            isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
        )
        return alias or any(ast.unparse(each) == "__all__" for each in node.targets)
    return False


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in _TYPING - {"cast"}


def _changes(site: _Site) -> Iterator[Change]:
    node = site.node
    before = ast.unparse(node)
    for operator, new in _replacements(site):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield operator, new, _short(ast.unparse(node.test))
        else:
            yield operator, new, _short(f"{before} -> {ast.unparse(new)}")
    for operator, new, dropped in _without(site):
        yield operator, new, _short(f"without {dropped}")


def _short(text: str) -> str:
    text = " ".join(text.split())
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... {sha256(text.encode()).hexdigest()[:8]}"


def _replacements(site: _Site) -> Iterator[tuple[str, ast.AST]]:
    """Yield what takes the place of a node, as its kind says."""
    node = site.node
    for kinds, edit in _EDITS:
        if isinstance(node, kinds):
            yield from edit(node)


def _comparisons(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for index, op in enumerate(node.ops):
        new = deepcopy(node)
        new.ops[index] = _COMPARED[type(op)]()
        yield "comparison", new


def _arithmetic(node: ast.BinOp | ast.AugAssign) -> Iterator[tuple[str, ast.AST]]:
    left = getattr(node, "left", None)
    is_text = isinstance(left, ast.JoinedStr) or isinstance(getattr(left, "value", None), str)
    if not is_text:
        new = deepcopy(node)
        new.op = _COMPUTED[type(node.op)]()
        yield "arithmetic", new


def _unary(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    if not isinstance(node.op, ast.UAdd):
        yield "unary", node.operand


def _conditions(node: ast.If | ast.IfExp | ast.While) -> Iterator[tuple[str, ast.AST]]:
    opposite = deepcopy(node)
    opposite.test = ast.UnaryOp(ast.Not(), opposite.test)
    yield "condition", opposite


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.func, ast.Name) and node.func.id in _CALLED:
        other = deepcopy(node)
        other.func = ast.Name(_CALLED[node.func.id], ast.Load())
        yield "call", other


def _loops(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    yield "loop", ast.Break() if isinstance(node, ast.Continue) else ast.Continue()


def _booleans(node: ast.BoolOp) -> Iterator[tuple[str, ast.AST]]:
    swapped = deepcopy(node)
    swapped.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "boolean", swapped
    for index in range(len(node.values)):
        rest = [value for at, value in enumerate(node.values) if at != index]
        yield "operand", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node.value, float):
        yield "constant", ast.Constant(node.value * 2 + 1)


_EDITS: tuple[tuple[Any, Callable[..., Iterator[tuple[str, ast.AST]]]], ...] = (
    (ast.Compare, _comparisons),
    ((ast.BinOp, ast.AugAssign), _arithmetic),
    (ast.BoolOp, _booleans),
    (ast.UnaryOp, _unary),
    (ast.Constant, _constants),
    ((ast.If, ast.IfExp, ast.While), _conditions),
    (ast.Call, _calls),
    ((ast.Continue, ast.Break), _loops),
)


def _without(site: _Site) -> Iterator[Change]:
    """Yield what is left of a node when a part of it is taken away."""
    node = site.node
    dropped = _statement(node)
    if dropped is not None:
        yield "statement", ast.Pass(), dropped
    elif isinstance(node, ast.Call):
        for index, keyword in enumerate(node.keywords):
            if keyword.arg == "strict":
                continue
            call = deepcopy(node)
            del call.keywords[index]
            yield "argument", call, f"{ast.unparse(keyword)} of {ast.unparse(node.func)}()"
    elif isinstance(node, ast.Slice):
        for bound in ("lower", "upper", "step"):
            if getattr(node, bound) is not None:
                rest = deepcopy(node)
                setattr(rest, bound, None)
                yield "slice", rest, f"{bound} of [{ast.unparse(node)}]"
    else:
        yield from _elements(node)


def _statement(node: ast.AST) -> str | None:
    """Return the text of a statement that can be left out."""
    if isinstance(node, ast.Raise):
        return "raise " + ast.unparse(node.exc).split("(")[0] if node.exc else "raise"
    if isinstance(node, ast.Assign | ast.AugAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(node) if isinstance(target, ast.Attribute | ast.Subscript) else None
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return ast.unparse(node) if called or isinstance(node, ast.Delete) else None


def _elements(node: ast.AST) -> Iterator[Change]:
    """Yield tables and comprehensions that lack an entry or a condition."""
    if isinstance(node, ast.Dict):
        for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            fewer = deepcopy(node)
            del fewer.keys[index], fewer.values[index]
            yield "entry", fewer, f"{ast.unparse(key) if key else '**'}: {ast.unparse(value)}"
    elif isinstance(node, ast.Set) and len(node.elts) > 1:
        for index, element in enumerate(node.elts):
            smaller = deepcopy(node)
            del smaller.elts[index]
            yield "entry", smaller, ast.unparse(element)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        for which, loop in enumerate(node.generators):
            for index, condition in enumerate(loop.ifs):
                whole = deepcopy(node)
                del whole.generators[which].ifs[index]
                yield "filter", whole, f"if {ast.unparse(condition)}"
