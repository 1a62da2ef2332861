"""Who may import whom: a module imports its own room or a lower storey, never up, in no circle.

The table of storeys is the architecture; late imports and those for type checkers count.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = Path(__file__).parents[1] / "memplan_cli"

STOREYS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "core"}),
    frozenset({"settings", "analysis", "packing", "checking"}),
    frozenset({"onnx_io"}),
    frozenset({"ordering"}),
    frozenset({"planning"}),
    frozenset({"runtime"}),
    frozenset({"reporting"}),
    frozenset({"features"}),
    frozenset({"api"}),
    frozenset({"cli"}),
    frozenset({"__init__", "__main__"}),
    frozenset({"integrations"}),
)
"""The rooms from the bottom; those of one storey know nothing of each other."""

NOT_YET_MOVED: frozenset[tuple[str, str]] = frozenset()
"""Upward imports that remain from the old layout; this list only gets shorter."""

HOMES: Mapping[str, frozenset[str]] = {
    "onnx": frozenset({"onnx_io", "features"}),
    "onnxruntime": frozenset({"runtime"}),
    "click": frozenset({"cli"}),
    "rich": frozenset({"reporting", "cli"}),
    "ortools": frozenset({"packing"}),
    "numba": frozenset({"packing"}),
    "yaml": frozenset({"settings"}),
    "pytest": frozenset({"cli"}),
    "olive": frozenset({"integrations"}),
    "optimum": frozenset({"integrations"}),
    "numpy": frozenset({"packing", "onnx_io", "features", "runtime"}),
}
"""Library -> where it may be imported; elsewhere its types may be named at most."""


@dataclass(frozen=True)
class Import:
    """One import statement: of what, by whom, and when it happens."""

    module: str
    target: str
    line: int
    when: str
    """``now`` at import, ``late`` in a function, ``typing`` never at run time."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target} ({self.when})"


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def statements(node: ast.AST, when: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        inner = when
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            inner = "typing"
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and when == "now":
            inner = "late"
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        yield from statements(child, inner)


def imports() -> Iterator[Import]:
    for name, path in MODULES.items():
        for statement, when in statements(ast.parse(path.read_text()), "now"):
            for target in targets(statement):
                yield Import(name, target, statement.lineno, when)


def targets(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield what a statement imports: our modules without the package's name."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    assert not statement.level, "imports are absolute"
    base = statement.module or ""
    if base.split(".")[0] != PACKAGE.name:
        yield base
        return
    inner = base.removeprefix(PACKAGE.name).removeprefix(".")
    for alias in statement.names:
        full = f"{inner}.{alias.name}".removeprefix(".")
        yield f"{PACKAGE.name}.{full if full in MODULES else inner or '__init__'}"


ALL = tuple(imports())
INNER = tuple(
    Import(i.module, i.target.removeprefix(f"{PACKAGE.name}."), i.line, i.when)
    for i in ALL
    if i.target.split(".")[0] == PACKAGE.name
)


def top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def storey(module: str) -> int:
    return next(
        (level for level, rooms in enumerate(STOREYS) if top(module) in rooms), len(STOREYS)
    )


def test_the_root_holds_rooms_only() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert modules == {"__init__", "__main__", "errors"}


def test_the_storeys_are_the_rooms_there_are() -> None:
    named = {room for rooms in STOREYS for room in rooms}
    assert named == {top(module) for module in MODULES}


def test_no_module_imports_upwards() -> None:
    """Late imports and those for type checkers count like all others."""
    wrong = {
        (found.module, found.target)
        for found in INNER
        if storey(found.target) > storey(found.module)
    }
    assert wrong == NOT_YET_MOVED


def test_rooms_of_one_storey_do_not_import_each_other() -> None:
    wrong = [
        str(found)
        for found in INNER
        if storey(found.target) == storey(found.module)
        and top(found.target) not in {top(found.module), "errors"}
    ]
    assert wrong == []


def test_features_do_not_import_each_other() -> None:
    wrong = [
        str(found)
        for found in INNER
        if top(found.module) == top(found.target) == "features"
        and found.module.split(".")[1:2] != found.target.split(".")[1:2]
        and found.target != "features"
    ]
    assert wrong == []


def test_what_checks_a_plan_shares_nothing_with_what_made_it() -> None:
    """Of this package, it knows the plan as data and arithmetic on sizes, and nothing else."""
    found = [each for each in INNER if top(each.module) == "checking"]
    assert {top(each.target) for each in found} == {"checking", "core"}
    known = {each.target for each in found if top(each.target) == "core"}
    assert known <= {
        "core.program",
        "core.results.memory",
        "core.results.certificate",
        "core.results.placements",
        "core.results.plan",
        "core.symbolic.bounds",
        "core.symbolic.dims",
        "core.symbolic.sizes",
    }


def test_no_two_modules_need_each_other() -> None:
    """Late imports and those for type checkers count like all others."""
    needs: dict[str, set[str]] = defaultdict(set)
    for found in INNER:
        if found.target != found.module:
            needs[found.module].add(found.target)
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, f"a circle: {' -> '.join((*way, module))}"
        if module in done:
            return
        for target in sorted(needs[module]):
            visit(target, (*way, module))
        done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


FOLDER_CYCLES: frozenset[frozenset[str]] = frozenset(
    {frozenset({"onnx_io.shapes.domains", "onnx_io.shapes.symbolic"})}
)
"""Sub-folders that still import each other in a circle; this list only gets shorter."""


def test_sub_folders_of_a_room_do_not_import_each_other_in_a_circle() -> None:
    """Inside a room, imports between sibling folders have one direction."""
    folders = {
        ".".join(name.split(".")[:depth])
        for name in MODULES
        for depth in range(1, name.count(".") + 1)
    }
    reachable: dict[str, set[str]] = {folder: set() for folder in folders}
    for statement in INNER:
        source, target = statement.module.split("."), statement.target.split(".")
        names = zip(source, target, strict=False)
        depth = next((index for index, (one, other) in enumerate(names) if one != other), 0)
        pair = ".".join(source[: depth + 1]), ".".join(target[: depth + 1])
        if depth and folders.issuperset(pair):
            reachable[pair[0]].add(pair[1])
    for middle, start in product(folders, folders):
        if middle in reachable[start]:
            reachable[start] |= reachable[middle]
    cycles = {
        frozenset(others | {folder})
        for folder in folders
        if (others := {other for other in reachable[folder] if folder in reachable[other]})
    }
    assert cycles <= FOLDER_CYCLES


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_at_home_only(library: str) -> None:
    wrong = [
        str(found)
        for found in ALL
        if top(found.target) == library
        and found.when != "typing"
        and top(found.module) not in HOMES[library]
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ["onnxruntime", "click", "rich", "yaml", "ortools"])
def test_not_even_the_types_of_a_runtime_or_a_terminal_leave_home(library: str) -> None:
    wrong = [
        str(found)
        for found in ALL
        if top(found.target) == library and top(found.module) not in HOMES[library]
    ]
    assert wrong == []


SESSIONS = "runtime.loading"


def test_onnxruntime_is_never_imported_with_a_module() -> None:
    """It takes half a second, and a process that never runs a model does without.

    The session that a caller asks for is one of its classes: that module is imported by who
    calls `load`, late.
    """
    now = [f for f in ALL if top(f.target) == "onnxruntime" and f.when == "now"]
    assert [str(f) for f in now if f.module != SESSIONS] == []
    early = [f for f in ALL if f.target.startswith(SESSIONS) and f.when == "now"]
    assert [str(f) for f in early if f.module != SESSIONS] == []


@pytest.mark.parametrize(
    "module",
    [
        "memplan_cli",
        "memplan_cli.cli",
        "memplan_cli.api",
        "memplan_cli.core.results.plan",
    ],
)
def test_importing_what_everybody_imports_is_light(module: str) -> None:
    heavy = ("onnx", "onnxruntime", "numpy", "numba", "yaml", "rich", "ortools")
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_core_speaks_no_protobuf() -> None:
    """What plans can be tested, and used, without ONNX."""
    code = (
        "import sys, memplan_cli.planning.planner\n"
        "import memplan_cli.reporting.commands.diff, memplan_cli.reporting.commands.why\n"
        "print([m for m in ('onnx', 'onnxruntime', 'rich', 'click') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_nothing_prints_but_the_command_line() -> None:
    wrong = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        if top(name) not in ("cli", "pytest_plugin") and not name.startswith("runtime.")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert wrong == []


HEAVY = ("onnxruntime", "numpy", "numba", "rich", "yaml", "onnx", "llvmlite", "ml_dtypes")

LOADS: Mapping[str, frozenset[str]] = {
    "--help": frozenset(),
    "--version": frozenset(),
    "report --help": frozenset(),
    "optimize --help": frozenset(),
    "schema plan": frozenset(),
    "report MODEL": frozenset({"rich"}),
    "report MODEL --format json": frozenset({"numpy", "onnx", "ml_dtypes"}),
    "gate MODEL --max-memory 1GiB": frozenset({"rich"}),
    "why MODEL": frozenset({"rich"}),
    "diff MODEL MODEL": frozenset({"rich"}),
    "optimize MODEL --no-validate --format json -o OUT": frozenset(),
}
"""A command on a small model -> the heavy libraries that it may load.

A report in JSON has what the runtime is predicted to need: its graph is read."""


@pytest.mark.parametrize("command", LOADS)
def test_a_command_loads_no_library_that_it_does_not_need(
    command: str, tmp_path: Path
) -> None:
    """Where no size has to be worked out by ONNX's reference evaluator, and nothing is run."""
    model = PACKAGE.parent / "sample_models" / "train_mlp.onnx"
    words = [
        {"MODEL": str(model), "OUT": str(tmp_path / "o.onnx")}.get(w, w)
        for w in command.split()
    ]
    code = (
        "import sys\nfrom memplan_cli.__main__ import main\n"
        f"sys.argv = ['memplan', *{words!r}]\n"
        "try: main()\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = ast.literal_eval(done.stderr.splitlines()[-1])
    assert set(loaded) <= LOADS[command]
