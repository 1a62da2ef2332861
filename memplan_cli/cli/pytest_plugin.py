"""Limits for the memory of ONNX models, in a project's own tests.

```python
@pytest.mark.limit_onnx_memory("512MiB", model="detector.onnx", dims={"batch": 8})
def test_detector_fits():
    pass


@pytest.mark.limit_onnx_memory("64MiB")
def test_export(tmp_path, onnx_memory):
    export(tmp_path / "m.onnx")
    assert onnx_memory(tmp_path / "m.onnx").reuses > 0


@pytest.mark.limit_onnx_memory(process="300MiB", model="detector.onnx", config="edge.yaml")
def test_process():
    pass
```

``dims``, ``level``, ``inputs`` (files, or values by name) and ``config`` are settings of the
plan, as options of `memplan report` are; files are named from pytest's root folder. ``metric``
is what the limit is of; ``process`` limits the process that runs the model, as predicted.

Several marks on one test, or on its class or module, all hold. A mark that checks nothing, or
binds a dim that its model does not have, is a failure. What a model needs is what
`memplan report` says: it is planned, and run only for sizes that nothing else tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memplan_cli.errors import MemplanError, SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.request import Request
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

Measure = Callable[[Path | str], "Report"]

_MARK = "limit_onnx_memory"
_SIGNATURE = (
    f"{_MARK}(limit=None, model=None, dims=None, metric='planned', level=None, config=None, "
    "inputs=None, process=None): fail when a model needs more"
)
_KEYWORDS = (
    "limit", "model", "dims", "metric", "level", "config", "inputs", "process",
)  # fmt: skip

_PROCESS = "process.run"
"""What ``process`` limits: the highest of the process, loading and runs included."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a mark asks for.

    Attributes:
        written: the size, as the mark says it.
        rules: the size and the metric, judged as those of a gate.
        model: the model that is meant; None: every model of the test.
        options: settings of the plan by name, as options give them.
        config: a settings file.
    """

    written: str
    rules: Mapping[str, Any]
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Path | None = None

    def with_options_of(self, other: Limit) -> Limit:
        """Return the limit at what another mark says of a model, where it says nothing itself."""
        dims = {**(other.options.get("dims") or {}), **(self.options.get("dims") or {})}
        options = {**other.options, **self.options, **({"dims": dims} if dims else {})}
        return replace(self, options=options, config=self.config or other.config)


@dataclass(frozen=True, slots=True)
class _Checks:
    """The limits of one test, and the places of those that a model was compared with."""

    limits: tuple[Limit, ...]
    done: set[int] = field(default_factory=set)


_CHECKS = pytest.StashKey[_Checks]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", _SIGNATURE)


@contextmanager
def _told() -> Iterator[None]:
    """Fail a test with the message of an error of ours, once and without a traceback."""
    try:
        yield
    except MemplanError as error:
        hint = f"\nHint: {error.hint}" if error.hint else ""
        message = f"{_MARK}: {error}{hint}"
        raise pytest.fail.Exception(message, pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Check the models that marks name, run the test, and refuse limits that checked nothing.

    A mark without a model holds for every model of the test, whoever names it.
    """
    with _told():
        checks = _checks(item)
        _hold_named(checks, item.config.rootpath)
    yield
    unused = [limit for at, limit in enumerate(checks.limits) if at not in checks.done]
    if unused:
        pytest.fail(
            f"{_MARK} of {unused[0].written} checked nothing: name a model, or use the "
            "onnx_memory fixture",
            pytrace=False,
        )


def _hold_named(checks: _Checks, root: Path) -> None:
    """Hold the models that marks name against their limits.

    Raises:
        MemplanError: a model, a limit or a dim is wrong, or a size is not known.
    """
    named = [limit for limit in checks.limits if limit.model is not None]
    for at, limit in enumerate(checks.limits):
        for other in named if limit.model is None else [limit]:
            _checked_against(limit.with_options_of(other), root / str(other.model))
            checks.done.add(at)


@pytest.fixture
def onnx_memory(request: pytest.FixtureRequest) -> Measure:
    """Plan a model and return its report; with marks on the test, hold it to their limits.

    Limits that name a model of their own are left out, unless all of them do.
    """

    def measure(model: Path | str) -> Report:
        with _told():
            checks = _checks(request.node)
            places = range(len(checks.limits))
            own = [at for at in places if checks.limits[at].model is None] or places
            reports = [_checked_against(checks.limits[at], Path(model)) for at in own]
            checks.done.update(own)
            return reports[0] if reports else _plan(Path(model), _request(None, {})).report

    return measure


def _checks(item: pytest.Item) -> _Checks:
    """Return the limits of a test, closest first; the same ones whoever asks."""
    if _CHECKS not in item.stash:
        root = item.config.rootpath
        limits = [limit for mark in item.iter_markers(_MARK) for limit in _limits(mark, root)]
        item.stash[_CHECKS] = _Checks(tuple(limits))
    return item.stash[_CHECKS]


def _limits(mark: pytest.Mark, root: Path) -> Iterator[Limit]:
    """Yield what a mark asks for: a limit of its metric, one of the process, or both.

    Raises:
        SettingsError: it has a keyword that there is not, or a value that is none.
    """
    from memplan_cli.api.gate import read_rules
    from memplan_cli.settings.sources import read_overrides

    given = _keywords(mark)
    model, metric = given.get("model"), given.get("metric", "planned")
    if not isinstance(model, str | Path | None):
        raise SettingsError(f"model is a path, and not {model!r}")
    config = given.get("config")
    common = Limit(
        "",
        {},
        None if model is None else str(model),
        _options(given, root),
        None if config is None else root / config,
    )
    read_overrides(common.options)
    limits = ((given.get("limit"), metric), (given.get("process"), _PROCESS))
    for size, of in limits:
        if size is not None:
            rules = read_rules({"max_memory": size, "metric": of})
            yield replace(common, written=str(size), rules=rules)


def _keywords(mark: pytest.Mark) -> dict[str, Any]:
    """Return what a mark says, by keyword.

    Raises:
        SettingsError: it says nothing, something twice, or what there is not.
    """
    from memplan_cli.core.selection import nearest

    wrong = next((name for name in mark.kwargs if name not in _KEYWORDS), None)
    if wrong is not None:
        raise SettingsError(
            f"there is no keyword {wrong!r}; the mark is {_SIGNATURE}",
            hint=nearest(wrong, _KEYWORDS),
        )
    if len(mark.args) > 1 or (mark.args and "limit" in mark.kwargs):
        raise SettingsError(
            f"one limit is given in place, and the rest by keyword: {_SIGNATURE}"
        )
    said = {**dict(zip(_KEYWORDS, mark.args, strict=False)), **mark.kwargs}
    given = {name: value for name, value in said.items() if value is not None}
    if "limit" not in given and "process" not in given:
        raise SettingsError(f"there is no limit; the mark is {_SIGNATURE}")
    if "metric" in given and "limit" not in given:
        raise SettingsError("metric says what a limit is of, and there is none")
    return given


def _options(given: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the settings of a mark by name; files are found from pytest's root folder."""
    options = {name: given[name] for name in ("dims", "level") if name in given}
    inputs = given.get("inputs")
    if isinstance(inputs, Mapping):
        options["input"] = inputs
    elif isinstance(inputs, str | Path):
        options["inputs"] = (str(root / inputs),)
    elif inputs is not None:
        options["inputs"] = tuple(str(root / file) for file in inputs)
    return options


def _request(config: Path | None, options: Mapping[str, Any]) -> Request:
    from memplan_cli.api.request import Request

    return Request(config, dict(options))


def _checked_against(limit: Limit, model: Path) -> Report:
    from memplan_cli.api.gate import with_metrics
    from memplan_cli.reporting.commands.gate import Rules, judge, rules_from
    from memplan_cli.reporting.snapshot import snapshot_of

    request = _request(limit.config, limit.options)
    plan, rules = _plan(model, request), rules_from(limit.rules, Rules())
    known = snapshot_of(plan, str(model))
    snapshot = with_metrics(known, plan, model, rules.metrics, request)
    verdict = judge(snapshot, None, rules)
    for result in verdict.results:
        if result.fails:
            pytest.fail(f"{model}: {result.message}\n{_at_peak(plan.report)}", pytrace=False)
        warnings.warn(f"{model}: {result.message}", stacklevel=2)
    return plan.report


def _plan(model: Path, request: Request) -> Plan:
    """Plan a model at dims that it has: a limit at others would say nothing.

    Raises:
        MemplanError: the model, a setting or the name of a dim is wrong.
    """
    from memplan_cli.api.model_or_plan import planned, reject_unused_settings

    named = (*(["config"] if request.config else []), *request.overrides)
    reject_unused_settings((model,), [name.removesuffix("s") for name in named])
    return planned(model, request)


def _at_peak(report: Report) -> str:
    from memplan_cli.core.quantities import format_size
    from memplan_cli.reporting.escape import terminal
    from memplan_cli.reporting.hints import assumed_dims

    if report.peak is None:
        return ""
    assumed = assumed_dims(report)
    lines = [f"assumed dims={assumed}; the mark may say otherwise"] if assumed else []
    lines += [f"live at the peak, {terminal(report.peak.node)}:"]
    lines += [
        f"  {format_size(size):>12}  {terminal(name)}"
        for name, size in report.peak.tensors[:5]
    ]
    return "\n".join(lines)
