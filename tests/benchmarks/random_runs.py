"""Which tests run which lines, and the tests of a mutant in a process of its own, until one fails.

A process that has imported everything and collected all tests is forked for each mutant
inside of a function, whose code is replaced there. What is computed at import (tables,
defaults, compiled loops) is tested in a process that has imported third parties only, and
reads the mutant's text in place of the file's.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, NoReturn

import pytest

from .random_edits import mutated

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .random_edits import Mutant

ROOT = Path(__file__).parents[2]
ARGUMENTS = ("-o", "addopts=",
    "--assert=plain", "--import-mode=importlib", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler",
             "-p", "no:terminal", "-m", "not slow and not bench and not cuda")  # fmt: skip


class Steady:
    """Examples of properties are the same in each run, and no failing one is stored or shrunk."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "steady",
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("steady")
        import warm_workers

        warm_workers.start = _NoWorkers  # type: ignore[assignment]


class _NoWorkers:
    """Stands for a server of workers: a job that a test needs starts anew, and most need none."""

    server = None

    def close(self) -> None:
        pass


@dataclass(eq=False)
class _Collecting(Steady):
    switch: object
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failed: set[str] = field(default_factory=set)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.switch(item.nodeid)  # type: ignore[operator]
        try:
            return (yield)
        finally:
            self.switch("")  # type: ignore[operator]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def collect(folder: Path, paths: Sequence[str]) -> None:
    """Run tests once under coverage; store the lines of each, and its seconds.

    What other tests were found to run stays; the lines of a changed file do not.
    """
    from coverage import Coverage  # type: ignore[import-not-found, unused-ignore]

    folder.mkdir(parents=True, exist_ok=True)
    data, times = folder / "coverage.sqlite", folder / "seconds.json"
    cover = Coverage(
        data_file=str(data),
        config_file=False,
        source=[str(ROOT / "memplan_cli")],
        messages=False,
    )
    if data.exists():
        cover.load()
    cover.start()
    plugin = _Collecting(cover.switch_context)
    pytest.main([*ARGUMENTS, *paths], plugins=[plugin])
    cover.stop()
    cover.save()
    passed = {test: took for test, took in plugin.seconds.items() if test not in plugin.failed}
    known = json.loads(times.read_text()) if times.exists() else {}
    times.write_text(json.dumps(known | passed))
    print(f"{len(passed)} tests, {sum(passed.values()):.0f} seconds; failed: {plugin.failed}")


class Covered:
    """Answers which tests run a line, the quickest of each file of tests first."""

    def __init__(self, folder: Path, importers: Mapping[str, frozenset[str]]) -> None:
        from coverage import CoverageData

        self._data = CoverageData(str(folder / "coverage.sqlite"))
        self._data.read()
        self.seconds: dict[str, float] = json.loads((folder / "seconds.json").read_text())
        self._files: dict[str, Mapping[int, Sequence[str]]] = {}
        self._importers = importers

    def _lines(self, file: str) -> Mapping[int, Sequence[str]]:
        if file not in self._files:
            self._files[file] = self._data.contexts_by_lineno(str(ROOT / file))
        return self._files[file]

    def of_lines(self, file: str, lines: tuple[int, int]) -> set[str]:
        """Return the tests that run any of these lines."""
        known = self._lines(file)
        return {test for line in range(lines[0], lines[1] + 1) for test in known.get(line, ())}

    def near(self, file: str) -> set[str]:
        """Return the tests that run a file, or files that import it, at any depth if need be."""
        reached, found = {file}, set[str]()
        while True:
            for each in reached:
                found.update(test for tests in self._lines(each).values() for test in tests)
            wider = reached.union(
                *(self._importers.get(each, frozenset()) for each in reached)
            )
            if found - {""} or wider == reached:
                break
            reached = wider
        for each in self._importers.get(file, ()):
            found.update(test for tests in self._lines(each).values() for test in tests)
        return found - {""}

    def first(self, tests: Iterable[str], file: str, most: float) -> list[str]:
        """Return tests in the order in which they are to be run, within so many seconds.

        Files of tests that are called like the file, then those of its room, then others;
        quick tests first. Of the files called like it all tests come before the others',
        whose files take turns.
        """
        own: defaultdict[str, list[str]] = defaultdict(list)
        for test in sorted(set(tests) & set(self.seconds), key=lambda t: (self.seconds[t], t)):
            own[test.split("::")[0]].append(test)
        parts = Path(file).with_suffix("").parts
        room = parts[1]
        alike = {name for name in own if parts[-1].strip("_") in Path(name).stem}
        order = sorted(own, key=lambda name: (f"/{room}/" not in name, -len(own[name]), name))
        turns = sorted(
            (name not in alike, 0 if name in alike else turn, rank, test)
            for rank, name in enumerate(order)
            for turn, test in enumerate(own[name])
        )
        chosen, spent = list[str](), 0.0
        for *_, test in turns:
            if spent + self.seconds[test] <= most or not chosen:
                chosen.append(test)
                spent += self.seconds[test]
        return chosen


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
