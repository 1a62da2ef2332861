"""The directions of imports: a module imports its own room or rooms of lower layers, without cycles.

`LAYERS` is the architecture. Imports inside functions and imports for type checkers count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = Path(__file__).parents[1] / "memplan_cli"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "core", "loading"}),
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
"""The rooms from the bottom. Rooms of one layer do not import each other."""

HOMES: Mapping[str, frozenset[str]] = {
    "onnx": frozenset({"onnx_io", "features"}),
    "onnxruntime": frozenset({"loading", "runtime"}),
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
"""Library -> the rooms that may import it. Others may import its types for type checkers."""


@dataclass(frozen=True)
class Import:
    """One import statement.

    Attributes:
        module: the module that contains it.
        target: the imported module.
        line: its line.
        when: ``now`` at import, ``late`` in a function, ``typing`` for type checkers only.
    """

    module: str
    target: str
    line: int
    when: str

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
    """Yield the modules that a statement imports."""
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


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(imports())


@cache
def inner_imports() -> tuple[Import, ...]:
    """Return the imports of modules of the package, without its name."""
    prefix = f"{PACKAGE.name}."
    return tuple(
        Import(found.module, found.target.removeprefix(prefix), found.line, found.when)
        for found in all_imports()
        if found.target.startswith(prefix)
    )


def top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def layer(module: str) -> int:
    return next(
        (index for index, rooms in enumerate(LAYERS) if top(module) in rooms), len(LAYERS)
    )


def test_the_root_holds_rooms_only() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert modules == {"__init__", "__main__", "errors"}


def test_every_room_has_a_layer() -> None:
    named = {room for rooms in LAYERS for room in rooms}
    assert named == {top(module) for module in MODULES}


def test_no_module_imports_upwards() -> None:
    wrong = [str(each) for each in inner_imports() if layer(each.target) > layer(each.module)]
    assert wrong == []


def test_rooms_of_one_layer_do_not_import_each_other() -> None:
    wrong = [
        str(found)
        for found in inner_imports()
        if layer(found.target) == layer(found.module)
        and top(found.target) not in {top(found.module), "errors"}
    ]
    assert wrong == []


def test_features_do_not_import_each_other() -> None:
    wrong = [
        str(found)
        for found in inner_imports()
        if top(found.module) == top(found.target) == "features"
        and found.module.split(".")[1:2] != found.target.split(".")[1:2]
        and found.target != "features"
    ]
    assert wrong == []


def test_checking_imports_only_records_and_arithmetic_on_sizes() -> None:
    """It must share no code with what makes plans."""
    found = [each for each in inner_imports() if top(each.module) == "checking"]
    assert {top(each.target) for each in found} == {"checking", "core"}
    known = {each.target for each in found if top(each.target) == "core"}
    assert known <= {
        "core.binding_options",  # a record of an input's shape
        "core.deserialization",
        "core.program",
        "core.results.memory",
        "core.results.certificate",
        "core.results.observations",
        "core.results.placements",
        "core.results.plan",
        "core.results.report",
        "core.results.rewrites",
        "core.serialization",
        "core.symbolic.bounds",
        "core.symbolic.dims",
        "core.symbolic.sizes",
    }


def test_loading_imports_errors_only() -> None:
    """Programs that only run a model import it."""
    found = [each for each in inner_imports() if top(each.module) == "loading"]
    assert {top(each.target) for each in found} == {"loading", "errors"}


def test_load_imports_onnxruntime_and_its_own_room_only(tmp_path: Path) -> None:
    """Of a file with settings too."""
    from memplan_cli.core.results.observations import CPU
    from memplan_cli.onnx_io.settings_metadata import RecordedSettings, settings_entry
    from memplan_cli.runtime.simulate.predict import ARENA_REUSE_ONLY

    model = tmp_path / "model.onnx"
    model.write_bytes(
        (PACKAGE.parent / "sample_models" / "train_mlp.onnx").read_bytes()
        + settings_entry(RecordedSettings(CPU, ARENA_REUSE_ONLY))
    )
    code = (
        "import sys, onnxruntime, json, __future__\nbefore = set(sys.modules)\n"
        f"import memplan\nmemplan.load({str(model)!r})\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    rooms = [
        f"memplan_cli.loading.{name}" for name in ("heap", "metadata", "session", "settings")
    ]
    assert ast.literal_eval(done.stdout) == [
        "gc",
        "memplan",
        "memplan_cli",
        "memplan_cli.errors",
        "memplan_cli.loading",
        *rooms,
    ]


def test_modules_have_no_import_cycle() -> None:
    needs: dict[str, set[str]] = defaultdict(set)
    for found in inner_imports():
        if found.target != found.module:
            needs[found.module].add(found.target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"an import cycle: {' -> '.join((*path, module))}"
        if module in done:
            return
        for target in sorted(needs[module]):
            visit(target, (*path, module))
        done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


def test_sub_folders_of_a_room_have_no_import_cycle() -> None:
    """Inside a room, imports between sibling folders have one direction."""
    folders = {
        ".".join(name.split(".")[:depth])
        for name in MODULES
        for depth in range(1, name.count(".") + 1)
    }
    reachable: dict[str, set[str]] = {folder: set() for folder in folders}
    for statement in inner_imports():
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
    assert not cycles


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_by_its_rooms_only(library: str) -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if top(found.target) == library
        and found.when != "typing"
        and top(found.module) not in HOMES[library]
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ["onnxruntime", "click", "rich", "yaml", "ortools"])
def test_types_of_a_runtime_or_a_terminal_are_imported_by_its_rooms_only(library: str) -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if top(found.target) == library and top(found.module) not in HOMES[library]
    ]
    assert wrong == []


SESSIONS = "loading.session"


def test_onnxruntime_is_never_imported_with_a_module() -> None:
    """Importing it takes half a second, which commands that run no model do not need.

    `loading.session` subclasses its session, so that module is imported by `load` only.
    """
    now = [f for f in all_imports() if top(f.target) == "onnxruntime" and f.when == "now"]
    assert [str(f) for f in now if f.module != SESSIONS] == []
    early = [f for f in all_imports() if f.target.startswith(SESSIONS) and f.when == "now"]
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
def test_importing_the_package_loads_no_heavy_library(module: str) -> None:
    heavy = ("onnx", "onnxruntime", "numpy", "numba", "yaml", "rich", "ortools")
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_planning_and_reporting_need_no_onnx() -> None:
    code = (
        "import sys, memplan_cli.planning.planner\n"
        "import memplan_cli.reporting.commands.diff, memplan_cli.reporting.commands.why\n"
        "print([m for m in ('onnx', 'onnxruntime', 'rich', 'click') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        if top(name) not in ("cli", "pytest_plugin") and not name.startswith("runtime.")
        if "print" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
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
    "report MODEL": frozenset({"rich", "numpy", "onnx", "ml_dtypes"}),
    "report MODEL --format json": frozenset({"numpy", "onnx", "ml_dtypes"}),
    "gate MODEL --max-memory 1GiB": frozenset({"rich", "numpy", "onnx", "ml_dtypes"}),
    "why MODEL": frozenset({"rich"}),
    "diff MODEL MODEL": frozenset({"rich", "numpy", "onnx", "ml_dtypes"}),
    "optimize MODEL --no-validate --format json -o OUT": frozenset(
        {"numpy", "onnx", "ml_dtypes"}
    ),
}
"""A command on a small model -> the heavy libraries that it may load.

Where a process is predicted, the graph that the runtime executes is read."""


@pytest.mark.parametrize(
    "command",
    [
        # A comparison loads what two reports load, in twice their time.
        pytest.param(line, marks=pytest.mark.slow) if line.startswith("diff") else line
        for line in LOADS
    ],
)
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
