"""Remove each rule of `mutation_rules` in turn and see that a test fails.

    python -m tests.benchmarks.mutations [--only TEXT] [--no-table]

Guards the claim of docs/measurements/robustness.md: every rule that planning, checking and reading rest on has a
test that fails without it. Each rule is removed in a copy of the repository. Its tests run in a
process that is forked from one with all third-party libraries imported. A rule whose function or
place is no longer in the package is reported as stale.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import asked
from .code_changes import StaleChangeError, edit_of
from .mutation_rules import RULES, Rule
from .pages import write_check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
COPIED = (
    "memplan_cli",
    "memplan.py",
    "tests",
    "sample_models",
    "configs",
    "pyproject.toml",
    "README.md",
    "docs",
)
TIMEOUT = 900
"""Seconds after which the tests of a rule are stopped."""


def stale_rules(rules: Iterable[Rule], root: Path = ROOT) -> list[str]:
    """Return a line for each rule whose function, place or test is not in the repository."""
    stale = []
    for rule in rules:
        try:
            edit_of(root / "memplan_cli", rule.function, rule.change)
            test_ids(rule.tests, root)
        except StaleChangeError as error:
            stale.append(f"{rule.sentence}: {error}")
    return stale


def test_ids(names: Iterable[str], root: Path) -> tuple[str, ...]:
    """Return what pytest runs for names of tests and of test modules.

    Raises:
        StaleChangeError: there is no such test.
    """
    known = _named_tests(root)
    missing = [name for name in names if name not in known]
    if missing:
        raise StaleChangeError(f"there is no test {', '.join(missing)}")
    return tuple(dict.fromkeys(test for name in names for test in known[name]))


@cache
def _named_tests(root: Path) -> Mapping[str, Sequence[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted((root / "tests").rglob("test_*.py")):
        path = file.relative_to(root).as_posix()
        found[file.stem].append(path)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name].append(f"{path}::{node.name}")
    return found


def removed(rule: Rule, copy: Path) -> tuple[str, str, float]:
    """Remove a rule in the copy, run its tests, and put the rule back.

    Returns the verdict, the test that failed, and seconds.
    """
    started = time.perf_counter()
    try:
        edit = edit_of(copy / "memplan_cli", rule.function, rule.change)
        tests = test_ids(rule.tests, copy)
    except StaleChangeError as error:
        return f"STALE: {error}", "", 0.0
    edit.file.write_text(edit.after, encoding="utf-8")
    try:
        code, failed = run_tests(tests, copy)
    finally:
        edit.file.write_text(edit.before, encoding="utf-8")
    # A process that a signal ended fails no less than a test.
    killed = "killed" if code == 1 or code < 0 else f"pytest exit {code}"
    return "SURVIVED" if code == 0 else killed, failed, time.perf_counter() - started


def run_tests(tests: Sequence[str], copy: Path) -> tuple[int, str]:
    """Run tests of the copy until one fails; return pytest's exit code and the failed test."""
    with tempfile.TemporaryFile("w+") as said:
        process = os.fork()
        if not process:
            _run_here(tests, copy, said.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        # What the tests started belongs to the process group of the child.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        said.seek(0)
        failed = re.search(
            r"^(?:FAILED|ERROR) \S*?([^:\s]+?)(?:\[| |$)", said.read(), re.MULTILINE
        )
    return code, failed[1] if failed else ""


def _run_here(tests: Sequence[str], copy: Path, said: int) -> None:
    """Run tests in this forked process, and end it."""
    import pytest

    os.setsid()
    signal.alarm(TIMEOUT)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for stream, target in ((0, nowhere), (1, said), (2, said)):
        os.dup2(target, stream)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.dont_write_bytecode = True
    sys.path = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    for name in [
        name for name in sys.modules if name.split(".")[0] in {"tests", "benchmarks"}
    ]:
        del sys.modules[name]
    code = 3
    try:
        options = [
            "-q",
            "-x",
            "--tb=no",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
        ]
        code = int(pytest.main([*options, "--rootdir", str(copy), *tests]))
    except BaseException:  # noqa: BLE001 - a forked process must not go on
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Remove each rule that is asked for, and write the page."""
    words = asked(__doc__)
    lines = [
        "# Mutations",
        "",
        "Made by `make mutations`: each rule removed in turn in a copy of the repository; a test must",
        "fail. A rule is a function and a kind of change (`tests/benchmarks/mutation_rules.py`).",
        "",
        "| rule | function | verdict | test that fails | seconds |",
        "|---|---|---|---|---:|",
    ]
    alive = 0
    preload()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve()
        copy_repository(copy)
        wanted = [rule for rule in RULES if words.only in rule.sentence]
        if lost := stale_rules(wanted, copy):
            print("stale rules:", *lost, sep="\n  ", flush=True)
        for tests in dict.fromkeys(rule.tests for rule in wanted):
            with contextlib.suppress(StaleChangeError):
                if run_tests(test_ids(tests, copy), copy)[0]:
                    print(f"these fail without any mutation, so they show nothing: {tests}")
                    return 1
        for rule in wanted:
            verdict, failed, seconds = removed(rule, copy)
            alive += verdict != "killed"
            cells = (
                rule.sentence,
                f"`{rule.function}`",
                verdict,
                f"`{failed}`",
                f"{seconds:.0f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if words.writes:
        write_check(
            "make mutations", lines, f"{len(RULES)} rules, {alive} not noticed by a test"
        )
    return 1 if alive else 0


def copy_repository(copy: Path) -> None:
    """Copy what tests read."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__", "crashes")
            shutil.copytree(source, copy / name, ignore=skip)
        elif source.exists():
            shutil.copy(source, copy / name)


def preload() -> None:
    """Import what the package needs, and nothing of the package."""
    from .random_runs import preload as import_third_parties

    import_third_parties()


if __name__ == "__main__":
    raise SystemExit(main())
