"""The words of the code: docstrings of modules state, and the field's terms are used.

STYLE.md 3.1a is the list. A word of the left column is looked for in comments, docstrings and
messages as it stands, and in names as a part between underscores or capitals.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = Path(__file__).parents[2] / "memplan_cli"

SAID_INSTEAD: Mapping[str, str] = {
    r"glu(e|es|ed|ing|er)": "series-parallel reconstruction",
    r"box(es)?": "composite block",
    r"cores": "bottleneck subsets",
    r"ejecting|throw(s|n|ing)? (it |them |\w+ )?out": "ejection chain",
    r"crowd(s|ed)?|lives|meetings?": "repair state, interval index, live range",
    r"worthiest|worthier|tolls?": "priority, eviction cost",
    r"cradle": "buffers by start",
    r"(un)?straighten(s|ed|ing)?|loosen(s|ed|ing)?": "restore source order, relax order",
    r"on demand": "demand-driven scheduling",
    r"placing|lying|homes?": "allocation, placement, buffer",
    r"hand(s|ed|ing)? (it |them |\w+ )?(on|out)": "reuses, passes",
    r"tak(es?|en|ing) (it |them )?over|took over": "reuses",
    r"births?|born|deaths?": "first use, last use; start, end",
    r"body|bodies|owners?": "subgraph, control-flow node",
    r"(what \w+|it|they) (comes?|came) to": "total",
    r"spell(s|ed|ing|ings)?|spelt": "formatted, canonical form",
    r"doubted|set aside": "untrusted annotation",
    r"misread|stretched": "inference workarounds, symbolic shape rules",
    r"turned down|refuse idle": "rejected, reject unused option",
    r"strangers?|told twice": "untrusted input, redundant field",
    r"held": "reserved by the arena, kept, process memory",
}
"""Words of a private dialect, as expressions -> what the field says."""

ALLOWED: Mapping[tuple[str, str], str] = {
    ("*", "body name"): "field of the IR (STYLE 3.2), attribute of ONNX's Loop and Scan",
    ("*", "bodies name"): "field of the IR (STYLE 3.2)",
    (
        "core/program.py",
        "body text",
    ): "the value of Origin.BODY_INPUT, which is written to files",
    ("training/expansion/loop.py", "body text"): "the attribute of ONNX's Loop and Scan",
    ("*", "held name"): "a key of memplan.report/1; ONNX Runtime counts mem_arena_held",
    ("*", "held text"): "a key of memplan.report/1; ONNX Runtime counts mem_arena_held",
    ("onnx_io/functions.py", "body text"): "a function's body, as ONNX calls it",
    ("onnx_io/functions.py", "bodies text"): "functions' bodies, as ONNX calls them",
    ("onnx_io/writing/chunked.py", "body text"): "the attribute of ONNX's Loop and Scan",
    ("planning/choosing/levels.py", "births name"): "the field of Matching",
    (
        "reporting/findings/diff.py",
        "lives text",
    ): "a kind of change, which is written to files",
    ("reporting/findings/why.py", "body text"): "the path of a Scan's subgraph",
    ("reporting/plans/graph_facts.py", "body text"): "the path of a Scan's subgraph",
    ("transforms/chunking/loops/write.py", "body text"): "the path of a Scan's subgraph",
    ("reporting/media/text.py", "box name"): "a keyword of rich's tables",
    ("runtime/graph/inlining.py", "body text"): "a function's body, as ONNX calls it",
    ("runtime/graph/inlining.py", "bodies text"): "functions' bodies, as ONNX calls them",
    ("runtime/graph/node_index.py", "body text"): "a function's body, as ONNX calls it",
    ("runtime/graph/node_index.py", "bodies text"): "functions' bodies, as ONNX calls them",
    ("shapes/subgraphs/scope.py", "body text"): "the name of a graph that has none",
    (
        "packing/pools/pool.py",
        "births name",
    ): "the field of Matching by which plans are checked",
    ("packing/pools/pool.py", "deaths name"): "beside births",
    ("packing/pools/pool.py", "home name"): "beside births",
}
"""(file or ``*``, word and where) -> why it may stand there."""

_WORDS = re.compile(rf"\b(?:{'|'.join(SAID_INSTEAD)})\b", re.IGNORECASE)
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield each forbidden word with its line: as ``body name`` or ``body text``."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            text, where = " ".join(_PARTS.findall(token.string)), "name"
        elif token.type in {tokenize.STRING, tokenize.COMMENT}:
            # A name in backquotes or braces is no prose; names are looked at where they are.
            text, where = re.sub(r"``?[^`]*`?`|\{[^{}]*\}|_", " ", token.string), "text"
        else:
            continue
        for found in _WORDS.finditer(" ".join(text.split())):
            yield token.start[0], f"{found.group().lower()} {where}"


def named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def is_allowed(file: str, word: str) -> bool:
    return ("*", word) in ALLOWED or (file, word) in ALLOWED


FILES = tuple(sorted(PACKAGE.rglob("*.py")))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_modules_docstring_is_a_statement(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = docstring.split("\n\n", maxsplit=1)[0]
    assert first
    assert "?" not in first, "STYLE.md 3.1a: a module's docstring says what the module holds"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_module_speaks_the_fields_words(path: Path) -> None:
    found = [
        f"{named(path)}:{line}: {word}"
        for line, word in words_of(path.read_text())
        if not is_allowed(named(path), word)
    ]
    assert not found, "\n".join(found)


def test_every_exception_is_needed() -> None:
    used = {(named(path), word) for path in FILES for _, word in words_of(path.read_text())}
    used |= {("*", word) for _, word in used}
    assert ALLOWED.keys() <= used, sorted(ALLOWED.keys() - used)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("crowd = 1\n", ["crowd name"]),
        ("class _OwnerOfBox: ...\n", ["owner name", "box name"]),
        ("by_birth = lowest_of_lives\n", ["birth name", "lives name"]),
        ('"""A slot is handed on whole."""\n', ["handed on text"]),
        ("# who takes\n# over\n", []),
        ('"""What it comes\nto."""\n', ["what it comes to text"]),
        ("homeless, somebody, inbox = 1\n", []),
        ('"""See `home` and ``body``."""\n', []),
    ],
)  # fmt: skip
def test_words_are_found_in_names_and_in_prose(source: str, expected: list[str]) -> None:
    assert [word for _, word in words_of(source)] == expected
