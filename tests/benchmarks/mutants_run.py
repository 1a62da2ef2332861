"""Tests of a mutant, each mutant in a process of its own, until one test fails.

A process that has imported everything and collected all tests is forked for each mutant
inside of a function, whose code is replaced there. What is computed at import (tables,
defaults, compiled loops) is tested in a process that has imported third parties only, and
reads the mutant's text in place of the file's.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, NoReturn

import pytest

from .mutants_covered import ARGUMENTS, ROOT, Steady
from .mutants_made import mutated

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .mutants_made import Mutant

THIRD_PARTIES = ("numpy", "onnx", "onnx.reference", "onnx.parser", "hypothesis", "yaml", "click",
                 "rich.console", "numba", "hypothesis.strategies", "onnxruntime")  # fmt: skip
_PATIENCE, _SLOWER, _MORE_BYTES = 20.0, 10.0, 6 << 30


@dataclass(frozen=True)
class Job:
    """A mutant and the tests that may find it, with the seconds that each takes."""

    mutant: Mutant
    tests: Sequence[str]
    seconds: Mapping[str, float] = field(repr=False)

    def limit(self, test: str) -> float:
        """Seconds after which a test is taken to hang."""
        slower = _SLOWER * (10 if self.mutant.is_compiled else 1)
        return _PATIENCE + slower * self.seconds.get(test, 1.0)


@dataclass(frozen=True)
class Ending:
    """What became of a mutant: ``killed``, ``time-out`` or ``survived``, and by which test."""

    verdict: str
    by: str
    seconds: float


Tell = Callable[[str], None]
Work = Callable[[Tell], None]
Run = Callable[[Job], Ending]
Told = Callable[["Mutant", Ending], None]


def run_warm(jobs: Sequence[Job], paths: Sequence[str], base: Path, told: Told) -> None:
    """Run mutants of functions, in forks of one process that has collected all tests."""
    process = os.fork()
    if not process:
        _quiet()
        loop = _Loop(jobs, told)
        code = 1
        try:
            pytest.main([*ARGUMENTS, f"--basetemp={base}", *paths], plugins=[loop])
            code = 0 if loop.done else 1
        finally:
            os._exit(code)
    if os.waitpid(process, 0)[1]:
        raise ChildProcessError("the tests could not be collected")


def run_cold(job: Job, base: Path, sound: set[str]) -> Ending:
    """Run one mutant in a process that has not imported the package."""
    code = compiled(job.mutant)
    return _believed(
        job,
        lambda each: _forked(_in_cold(each, base, code)),
        lambda each: _forked(_in_cold(each, base, None)),
        sound,
    )


def _believed(job: Job, mutated: Run, usual: Run, sound: set[str]) -> Ending:
    """Run a mutant; a test that fails without it as well, run so, shows nothing."""
    while True:
        ending = mutated(job)
        if ending.verdict != "killed" or ending.by in sound:
            return ending
        alone = [ending.by] if "::" in ending.by else job.tests[:1]
        if usual(replace(job, tests=alone)).verdict == "survived":
            sound.add(ending.by)
            return ending
        print(f"fails without a mutant: {ending.by}", file=sys.stderr)
        job = replace(job, tests=[test for test in job.tests if test not in alone])
        if not job.tests:
            return replace(ending, verdict="survived", by="no test that passes without it")


def _in_cold(job: Job, base: Path, code: CodeType | None) -> Work:
    def work(tell: Tell) -> None:
        if job.mutant.is_compiled:
            os.environ["NUMBA_DISABLE_JIT"] = "1"
            sys.modules["numba"].config.reload_config()
            # Compiled loops count on in 64 bits; numpy's own numbers would warn of it.
            sys.modules["numpy"].seterr(over="ignore")
        if code is not None:
            _read_instead(code)
        files = dict.fromkeys(test.split("::")[0] for test in job.tests)
        tell("import")
        _alarm(120.0)
        plugin = _Chosen(job, tell)
        end = pytest.main([*ARGUMENTS, "-x", f"--basetemp={base}", *files], plugins=[plugin])
        os._exit(int(end not in {0, 5}))

    return work


def wanted(tests: Sequence[str], items: Mapping[str, pytest.Item]) -> list[pytest.Item]:
    """Return tests by their names, once each; the name of a file stands for all of its tests."""
    found: dict[str, pytest.Item] = {}
    for test in tests:
        if test in items:
            found[test] = items[test]
        elif test.endswith(".py"):
            found |= {
                name: item for name, item in items.items() if name.startswith(f"{test}::")
            }
    return list(found.values())


def few_files(job: Job, most: int) -> Job:
    """Return a job with the tests of so many files: each has to be collected."""
    files = list(dict.fromkeys(test.split("::")[0] for test in job.tests))[:most]
    return replace(job, tests=[test for test in job.tests if test.split("::")[0] in files])


def preload() -> None:
    """Import what the package needs, and nothing of the package."""
    for name in THIRD_PARTIES:
        importlib.import_module(name)
    assert not any(name.startswith("memplan_cli") for name in sys.modules)


def _forked(work: Work) -> Ending:
    started = time.perf_counter()
    reads, writes = os.pipe()
    process = os.fork()
    if not process:
        _child(work, writes)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    by = said[-1] if said else ""
    verdict = "survived" if code == 0 else "time-out" if code == -signal.SIGALRM else "killed"
    return Ending(verdict, by if code else "", round(time.perf_counter() - started, 2))


def _child(work: Work, writes: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.set_inheritable(writes, False)  # noqa: FBT003 - the standard library's signature
        _quiet()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_BYTES, used + _MORE_BYTES))
        work(lambda text: _write(writes, text))
        code = 0
    except SystemExit as error:
        code = int(bool(error.code))
    finally:
        os._exit(code)


def _write(pipe: int, text: str) -> None:
    os.write(pipe, (text + "\n").encode())


def _quiet() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def _alarm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


class _Loop(Steady):
    """Collects all tests, and runs mutants in place of them."""

    def __init__(self, jobs: Iterable[Job], told: Told) -> None:
        self.jobs, self.told = jobs, told
        self.done = False
        self.failed = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        for name in sorted({_module(job.mutant.file) for job in self.jobs}):
            importlib.import_module(name)
        self.functions = _functions()
        gc.collect()
        gc.freeze()
        sound = set[str]()
        for job in self.jobs:
            self.told(job.mutant, self._ending(job, sound))
        self.done = True
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def _ending(self, job: Job, sound: set[str]) -> Ending:
        """Run one mutant; its end is ``cold`` where no live function can take its code."""
        assert job.mutant.entry is not None
        new = _inner(compiled(job.mutant), *job.mutant.entry)
        live = self.functions.get((str(ROOT / job.mutant.file), *job.mutant.entry), [])
        if (
            new is None
            or not live
            or any(f.__code__.co_freevars != new.co_freevars for f in live)
        ):
            return Ending("cold", "", 0.0)
        return _believed(
            job,
            lambda each: _forked(
                lambda tell: self._work(each, tell, dict.fromkeys(live, new))
            ),
            lambda each: _forked(lambda tell: self._work(each, tell, {})),
            sound,
        )

    def _work(self, job: Job, tell: Tell, codes: Mapping[FunctionType, CodeType]) -> None:
        for function, code in codes.items():
            function.__code__ = code
        items = wanted(job.tests, self.items)
        for index, item in enumerate(items):
            tell(item.nodeid)
            _alarm(job.limit(item.nodeid))
            following = items[index + 1] if index + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                os._exit(1)
        os._exit(0)


class _Chosen(Steady):
    """Runs the tests of a job only, in their order, and says which one is running."""

    def __init__(self, job: Job, tell: Tell) -> None:
        self.job, self.tell = job, tell

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = wanted(self.job.tests, {item.nodeid: item for item in items})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.tell(item.nodeid)
        _alarm(self.job.limit(item.nodeid))
        return (yield)


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return all functions of the package that are alive, by file, name and first line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and "memplan_cli" in each.__code__.co_filename:
            code = each.__code__
            key = code.co_filename, code.co_qualname, code.co_firstlineno
            found.setdefault(key, []).append(each)
    return found


def compiled(mutant: Mutant) -> CodeType:
    """Return the code of a mutant's file."""
    path = ROOT / mutant.file
    tree: ast.Module = mutated(path.read_text(), mutant)
    return compile(tree, str(path), "exec", dont_inherit=True)


def _inner(code: CodeType, name: str, line: int) -> CodeType | None:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            at = each.co_firstlineno
            if each.co_qualname == name and at == line:
                return each
            within = _inner(each, name, line)
            if within is not None:
                return within
    return None


def _read_instead(code: CodeType) -> None:
    """Let an import of the code's file find this code."""
    usual = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        found = self.get_filename(fullname)
        return code if found == code.co_filename else usual(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
