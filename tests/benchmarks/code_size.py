"""Compare the size of the code base at two commits, and what one command executes of it.

    python -m tests.benchmarks.code_size --old REV [--new REV]

Without --new the working tree is measured. Writes docs/measurements/code_size.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
PACKAGE = "memplan_cli"
PAGE = ROOT / "docs" / "measurements" / "code_size.md"

OPERATORS = frozenset(schema.name for schema in onnx.defs.get_all_schemas())

TABLE_ENTRIES = 3
"""Operator names that a module-level constant must hold to count as an operator table."""

RUNTIME_VERSION = re.compile(r"\b1\.(2[89]|3\d)(\.\d+)?\b")
"""A version of ONNX Runtime in code, a docstring or a comment."""

TRACED_COMMAND = ("optimize", "branchy_cnn.onnx", "--target", "cpu", "--quiet")

TRACER = """
import json, sys, threading
codes = set()
def note(frame, event, argument):
    if event == "call":
        code = frame.f_code
        codes.add((code.co_filename, code.co_firstlineno, code.co_name))
threading.setprofile(note)
sys.setprofile(note)
sys.argv = ["memplan", *sys.argv[2:]]
from memplan_cli.__main__ import main
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
inside = [(file, name) for file, _, name in codes if "/memplan_cli/" in file]
files, functions = {file for file, _ in inside}, [n for _, n in inside if n[0] != "<"]
print(json.dumps([len(files), len(functions)]), file=sys.__stderr__)
"""


@dataclass(frozen=True)
class CodeSize:
    """Counts of one tree, by the name of what was counted."""

    counts: Mapping[str, int]
    rooms: Mapping[str, tuple[int, int]]
    """Files and lines of each folder directly under the package."""


def measure(tree: Path) -> CodeSize:
    """Return the counts of a tree that holds the package, its tests and its sample models."""
    package = tree / PACKAGE
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    modules = {path: ast.parse(text) for path, text in texts.items()}
    nodes = [node for module in modules.values() for node in ast.walk(module)]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    files, executed = executed_code(tree)
    tests, benchmarks = tree / "tests", tree / "tests" / "benchmarks"
    counts = {
        "lines of the package": sum(map(_lines, texts.values())),
        "of these docstrings": sum(map(docstring_lines, modules.values())),
        "of these code, without docstrings, comments and blank lines": sum(
            code_lines(text) - docstring_lines(modules[path]) for path, text in texts.items()
        ),
        "files of the package": len(texts),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "functions": len(functions),
        "private functions with one caller": private_functions_with_one_caller(nodes),
        "operator tables": sum(map(operator_tables, modules.values())),
        "files with an operator table": sum(
            operator_tables(module) > 0 for module in modules.values()
        ),
        "files that name a version of ONNX Runtime": sum(
            bool(RUNTIME_VERSION.search(text)) for text in texts.values()
        ),
        "files executed by `optimize branchy_cnn.onnx --target cpu`": files,
        "functions executed by it": executed,
        "lines of tests without benchmarks": _lines_below(tests) - _lines_below(benchmarks),
        "lines of benchmark programs": _lines_below(benchmarks),
        "lines of hand-written JSON schema": _lines_below(package / "reporting", "*.json"),
        "lines of Markdown": _lines_below(tree / "docs", "*.md")
        + sum(_lines(path.read_text(encoding="utf-8")) for path in tree.glob("*.md")),
    }
    return CodeSize(counts, _rooms(package, texts))


def executed_code(tree: Path) -> tuple[int, int]:
    """Return how many files and functions of the package the traced command executes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tracer.py").write_text(TRACER)
        model = tree / "sample_models" / "branchy_cnn.onnx"
        (folder / model.name).write_bytes(model.read_bytes())
        done = subprocess.run(
            [sys.executable, "tracer.py", "memplan", *TRACED_COMMAND],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(tree)},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert (folder / "branchy_cnn.memplan.onnx").exists(), done.stderr
    files, functions = json.loads(done.stderr.splitlines()[-1])
    return files, functions


def private_functions_with_one_caller(nodes: Sequence[ast.AST]) -> int:
    """Count private functions and methods whose name is used once in the package."""
    used = Counter[str]()
    defined = Counter[str]()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
        elif isinstance(node, ast.FunctionDef) and re.match(r"_[^_]", node.name):
            defined[node.name] += 1
    # Functions of several files may share a name: then the uses are shared as well.
    return sum(number for name, number in defined.items() if used[name] == number)


def operator_tables(module: ast.Module) -> int:
    """Count the module-level constants that hold several names of operators."""
    constants = [
        n for n in module.body if isinstance(n, ast.Assign | ast.AnnAssign) and n.value
    ]
    return sum(len(set(_operators(node))) >= TABLE_ENTRIES for node in constants)


def _operators(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield from OPERATORS.intersection(inner.value.split())
            yield from {inner.value.rpartition(":")[2]} & OPERATORS


def _rooms(package: Path, texts: Mapping[Path, str]) -> Mapping[str, tuple[int, int]]:
    rooms: dict[str, tuple[int, int]] = {}
    for path, text in texts.items():
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else "(top level)"
        files, lines = rooms.get(room, (0, 0))
        rooms[room] = files + 1, lines + _lines(text)
    return dict(sorted(rooms.items()))


def _lines(text: str) -> int:
    return text.count("\n")


def docstring_lines(module: ast.Module) -> int:
    """Return the non-blank lines of all docstrings, those of attributes included."""
    body_lists = (getattr(node, "body", None) for node in ast.walk(module))
    statements = (s for body in body_lists if isinstance(body, list) for s in body)
    texts = (
        s.value.value
        for s in statements
        if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)
    )
    # The closing quotes of a docstring of several lines stand on a line of their own.
    return sum(
        sum(bool(line.strip()) for line in text.splitlines()) + ("\n" in text)
        for text in texts
        if isinstance(text, str)
    )


def code_lines(text: str) -> int:
    """Return the lines that are neither blank nor only a comment; docstrings are among them."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def _lines_below(folder: Path, pattern: str = "*.py") -> int:
    return sum(_lines(path.read_text(encoding="utf-8")) for path in folder.rglob(pattern))


def measure_commit(commit: str) -> CodeSize:
    """Return the counts of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return measure(Path(folder))


def page(old: CodeSize, new: CodeSize, commit: str) -> str:
    """Return both counts side by side as Markdown."""
    lines = [
        "# The size of the code base",
        "",
        f"`python -m tests.benchmarks.code_size --old {commit}` counts a commit and this one.",
        "",
        f"| count | {commit} | now |",
        "|---|--:|--:|",
        *(f"| {name} | {old.counts[name]:,} | {now:,} |" for name, now in new.counts.items()),
        "",
        "| room | files | lines |",
        "|---|--:|--:|",
        *(f"| `{room}` | {files} | {n:,} |" for room, (files, n) in new.rooms.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", required=True, help="the commit to compare with")
    parser.add_argument("--new", help="a commit; default: the working tree")
    options = parser.parse_args()
    new = measure_commit(options.new) if options.new else measure(ROOT)
    text = page(measure_commit(options.old), new, options.old)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
