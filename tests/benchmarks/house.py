"""The house in figures: lines by room, files, functions, importers, circles, before and after.

python -m tests.benchmarks.house --old 3a31115
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import tarfile
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
PACKAGE = "memplan_cli"
PAGE = ROOT / "docs" / "measurements" / "house.md"

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class House:
    """What a tree of the package is made of."""

    files: Mapping[str, int]
    """Lines by module."""
    functions: Mapping[str, int]
    importers: Mapping[str, frozenset[str]]
    questions: int
    """Modules whose docstring asks."""

    @property
    def lines(self) -> int:
        return sum(self.files.values())

    @property
    def rooms(self) -> Mapping[str, tuple[int, int]]:
        """Files and lines of each room; modules at the root count as one."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        folders = {name.rpartition(".")[0] for name in self.files}
        for module, lines in self.files.items():
            inside = module.count(".") > 1 or (module in folders and module != PACKAGE)
            room = module.split(".")[1] if inside else "(root)"
            found[room].update(files=1, lines=lines)
        return {room: (each["files"], each["lines"]) for room, each in sorted(found.items())}

    @property
    def with_one_importer(self) -> int:
        return sum(len(by) == 1 for by in self.importers.values())

    @property
    def circles(self) -> int:
        """Groups of files that need each other, late and typing imports counted."""
        needs: defaultdict[str, set[str]] = defaultdict(set)
        for module, by in self.importers.items():
            for importer in by:
                needs[importer].add(module)
        return sum(len(group) > 1 for group in _components(needs))


def _components(needs: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Yield the strongly connected components: what reaches each other."""
    nodes = sorted({*needs, *(target for targets in needs.values() for target in targets)})
    reach = {node: _reached(node, needs) for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        if node not in seen:
            group = {node} | {other for other in reach[node] if node in reach[other]}
            seen |= group
            yield group


def _reached(node: str, needs: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        for target in needs.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def measured(package: Path) -> House:
    """Measure a package from its text."""
    trees = {
        _name(path, package): (path, ast.parse(path.read_text())) for path in _all(package)
    }
    files, functions, questions = {}, {}, 0
    importers: dict[str, set[str]] = {
        name: set() for name, (path, _) in trees.items() if path.name != "__init__.py"
    }
    for name, (path, tree) in trees.items():
        files[name] = len(path.read_text().splitlines())
        questions += "?" in (ast.get_docstring(tree) or "").split("\n\n")[0]
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS):
                key = f"{name}.{node.name}:{node.lineno}"
                functions[key] = (node.end_lineno or node.lineno) - node.lineno + 1
            for target in _targets(node, trees):
                if target in importers and target != name:
                    importers[target].add(name)
    return House(
        files, functions, {name: frozenset(by) for name, by in importers.items()}, questions
    )


def _all(package: Path) -> Sequence[Path]:
    return sorted(package.rglob("*.py"))


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(node: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in known else node.module


def of_commit(commit: str) -> House:
    """Measure the package of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit, PACKAGE], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return measured(Path(folder) / PACKAGE)


def page(old: House, new: House, commit: str) -> str:
    """Return the two houses beside each other."""
    rows: list[tuple[str, object, object]] = [
        ("lines", old.lines, new.lines),
        ("files", len(old.files), len(new.files)),
        ("modules at the root", _at_root(old), _at_root(new)),
        ("median lines of a file", *_medians(old.files, new.files)),
        ("largest file", _largest(old.files), _largest(new.files)),
        ("functions", len(old.functions), len(new.functions)),
        ("median lines of a function", *_medians(old.functions, new.functions)),
        ("largest function", _largest(old.functions), _largest(new.functions)),
        ("files that one other file imports", old.with_one_importer, new.with_one_importer),
        ("circles of files", old.circles, new.circles),
        ("module docstrings that ask", old.questions, new.questions),
    ]
    text = [
        "# The house in figures",
        "",
        f"Made by `python -m tests.benchmarks.house --old {commit}`: the package's text before the",
        "rooms were built, and today. Late imports and those for type checkers count.",
        "",
        "| | before | today |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {before} | {after} |" for name, before, after in rows),
        "",
        "| room | files | lines |",
        "| --- | ---: | ---: |",
        *(f"| {room} | {files} | {lines} |" for room, (files, lines) in new.rooms.items()),
    ]
    return "\n".join(text) + "\n"


def _at_root(house: House) -> int:
    folders = {name.rpartition(".")[0] for name in house.files if name.count(".") > 1}
    return sum(name.count(".") == 1 and name not in folders for name in house.files)


def _medians(old: Mapping[str, int], new: Mapping[str, int]) -> tuple[float, float]:
    return median(old.values()), median(new.values())


def _largest(lines: Mapping[str, int]) -> str:
    name, most = max(lines.items(), key=lambda item: item[1])
    return f"{most} (`{name.removeprefix(PACKAGE + '.').partition(':')[0]}`)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", default="3a31115", help="the commit to compare with")
    options = parser.parse_args()
    text = page(of_commit(options.old), measured(ROOT / PACKAGE), options.old)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
