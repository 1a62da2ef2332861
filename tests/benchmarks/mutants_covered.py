"""Which tests run which lines, and how long each takes: collected once, for many mutants."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


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


@dataclass
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
    from coverage import Coverage  # type: ignore[import-not-found]

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
