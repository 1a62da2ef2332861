"""Symbolic dims against SymPy: what is worked out while dynamic models are planned, done again.

Every call of the polynomials that planning makes is noted, then done again by memplan and by
SymPy (integers that are not negative, expanded), whose conversion from and to our form is not
counted. SymPy is no dependency of memplan: where it is missing, its columns stay empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from time import process_time
from typing import TYPE_CHECKING, Any

from memplan_cli.core.symbolic.dims import canonical_dim, parse_dim
from memplan_cli.onnx_io.load import load_model
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.files.model_file import ModelFile, plan_model

from .ablation_modules import lines, module, replace, undo
from .ablation_parsers import loading
from .scale import SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

MODELS = (
    "bert_base_dyn", "bert_base_dyn_ts", "llama_1b_dyn", "resnet50_dynbatch",
    "mobilenetv2_ts", "moe_sparse", "messy/distilbert_ts",
)  # fmt: skip

NOTED = ("multiplied", "total", "floored", "formatted")

EQUAL = (
    ("seq*batch", "batch*seq"),
    ("(a + 1)*(a - 1)", "a*a - 1"),
    ("floor((2*a + 1)/2)", "a"),
    ("(4*a + 6)//4", "floor((2*a + 3)/2)"),
    ("ceiling(a/2)", "floor((a + 1)/2)"),
    ("floor((floor((a + 1)/2) + 1)/2)", "floor((a + 3)/4)"),
    ("floor(floor(a/3)/5)", "floor(a/15)"),
    ("(8*a + 5)//4", "2*a + 1"),
    ("floor((6*a + 4)/9)", "floor((6*a + 3)/9)"),
    ("mod(a, 4)", "a - 4*floor(a/4)"),
    ("a % 4 + 4*(a//4)", "a"),
    ("min(7, seq, 4)", "min(4, seq)"),
    ("max(a, a)", "a"),
    ("min(b, a)", "min(a, b)"),
)
"""Texts that mean the same dim."""

HEAD = (
    "model", "texts read", "sums, products, quotients, texts written", "own, s", "SymPy, s", "times",
)  # fmt: skip


@dataclass(slots=True)
class Record:
    """The calls that were made from outside, in order, and the texts that were read."""

    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    texts: dict[str, None] = field(default_factory=dict)
    depth: int = 0

    def noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that notes its calls, but for those made inside of others."""

        def noted(*given: Any) -> Any:  # noqa: ANN401
            args = (list(given[0]), *given[1:]) if name in ("multiplied", "total") else given
            if not self.depth:
                self.calls.append((name, args))
            self.depth += 1
            try:
                return function(*args)
            finally:
                self.depth -= 1

        return noted

    def reading(self, function: Callable[[str], Any]) -> Callable[[str], Any]:
        """Return a reader that notes its texts."""

        def noted(text: str) -> Any:  # noqa: ANN401
            self.texts[text] = None
            self.depth += 1
            try:
                return function(text)
            finally:
                self.depth -= 1

        return noted


def recorded(path: Path) -> Record:
    """Plan a model unbound, and return what that asked of the polynomials."""
    record = Record()
    note_calls(record)
    try:
        plan_model(ModelFile.of(path, load_model(path)), Settings(allow_partial=True))
    finally:
        undo()
    return record


def note_calls(record: Record) -> None:
    """Put what notes its calls in the place of the polynomials and of the reader of dims."""
    for name in NOTED:
        replace("polynomials", name, record.noting(name, getattr(module("polynomials"), name)))
    replace("dims", "parse_dim", record.reading(parse_dim))


class Algebra:
    """What SymPy does in the place of the polynomials."""

    def __init__(self) -> None:
        self._sympy = import_module("sympy")
        self._known: dict[str, Any] = {}

    def _symbol(self, name: str) -> Any:  # noqa: ANN401
        return self._sympy.Symbol(name, integer=True, nonnegative=True)

    def of(self, terms: Mapping[tuple[str, ...], int]) -> Any:  # noqa: ANN401
        """Return a sum of products as SymPy's, calls of functions as they mean."""
        return self._sympy.Add(
            *(
                self._sympy.Mul(value, *(self.read(atom) for atom in monomial))
                for monomial, value in terms.items()
            )
        )

    def read(self, text: str) -> Any:  # noqa: ANN401
        """Return what a text means, each name a symbol."""
        if text not in self._known:
            self._known[text] = self.parsed(text)
        return self._known[text]

    def parsed(self, text: str) -> Any:  # noqa: ANN401
        sympy = self._sympy
        names: dict[str, Any] = {
            "floor": sympy.floor, "ceiling": sympy.ceiling,
            "mod": sympy.Mod, "min": sympy.Min, "max": sympy.Max,
        }  # fmt: skip

        def aside(match: re.Match[str]) -> str:
            word = match[1] or match[2]
            if match[2] and word.lower() in names:
                return str(word.lower())
            key = f"_{len(names)}"
            names[key] = self._symbol(word)
            return key

        safe = re.sub(r"`([^`]*)`|([^\W\d][\w.:$#@]*)", aside, text)
        try:
            return sympy.expand(sympy.sympify(safe, locals=names))
        except (sympy.SympifyError, TypeError, ValueError):
            return self._symbol(text)

    def prepared(self, name: str, args: Sequence[Any]) -> Callable[[], Any]:
        """Return one call, its arguments converted beforehand."""
        sympy = self._sympy
        if name == "formatted":
            terms = self.of(args[0])
            return lambda: str(terms)
        if name == "floored":
            terms, divisor = self.of(args[0]), args[1]
            return lambda: sympy.floor(terms / divisor)
        parts = [self.of(part) for part in args[0]]
        if name == "total":
            return lambda: sympy.Add(*parts)
        factor = args[1] if len(args) > 1 else 1
        return lambda: sympy.expand(sympy.Mul(factor, *parts))


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each model, then what both cost beside it."""
    algebra = Algebra() if find_spec("sympy") else None
    for name in MODELS:
        path = SHARED / f"{name}.onnx"
        if not path.exists():
            continue
        record = recorded(path)
        parse = parse_dim.__wrapped__
        ours = [(getattr(module("polynomials"), each), args) for each, args in record.calls]
        own = _seconds([*((parse, (text,)) for text in record.texts), *ours])
        cells = [name, str(len(record.texts)), str(len(record.calls)), f"{own:.3f}"]
        if algebra is None:
            yield (*cells, "-", "-")
            continue
        theirs = [(algebra.prepared(each, args), ()) for each, args in record.calls]
        other = _seconds([*((algebra.parsed, (text,)) for text in record.texts), *theirs])
        yield (*cells, f"{other:.3f}", f"{other / max(own, 1e-6):.0f}")
    yield from _beside(algebra)


def _seconds(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> float:
    started = process_time()
    for function, args in calls:
        function(*args)
    return process_time() - started


def _beside(algebra: Algebra | None) -> Iterator[tuple[str, ...]]:
    """Yield the time to load, and equal texts that are told to be equal."""
    size = f"{lines('polynomials', 'dims')} lines"
    mine = loading("import memplan_cli.core.symbolic.dims")
    theirs = f"{loading('import sympy'):.3f}" if algebra else "-"
    yield ("loading", "-", size, f"{mine:.3f}", theirs, "-")
    ours = sum(canonical_dim(a) == canonical_dim(b) for a, b in EQUAL)
    other = "-"
    if algebra:
        same = [algebra.parsed(a) == algebra.parsed(b) for a, b in EQUAL]
        other = f"{sum(same)} of {len(EQUAL)}"
    yield (
        "equal texts found equal",
        str(len(EQUAL)),
        "-",
        f"{ours} of {len(EQUAL)}",
        other,
        "-",
    )
