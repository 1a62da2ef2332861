"""A pytest plugin: limits for the memory of ONNX models in a project's own tests.

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

``limit`` limits ``metric``, a number of the report, which is ``planned`` by default. ``process``
limits the predicted memory of the process that runs the model. ``dims``, ``level``, ``inputs``
(files, or values by name) and ``config`` are settings of the plan, as for `memplan report`. File
names are relative to pytest's root folder.

All marks of a test, its class and its module apply. A mark without a model applies to every model that the
test passes to the fixture. A mark that checked no model fails the test, and so does a mark that binds a dim
that its model does not have. The model is planned; it is run only if data decides sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memplan_cli.errors import MemplanError, SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.request import Request
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

Measure = Callable[[Path | str], "Report"]
"""What the fixture `onnx_memory` is: it plans a model, checks the limits, and returns the report."""

_MARK = "limit_onnx_memory"
_SIGNATURE = (
    f"{_MARK}(limit=None, model=None, dims=None, metric='planned', level=None, config=None, "
    "inputs=None, process=None): fail if a model needs more memory"
)
_KEYWORDS = (
    "limit", "model", "dims", "metric", "level", "config", "inputs", "process",
)  # fmt: skip

_PROCESS_METRIC = "process.total"
"""The metric that ``process`` limits: the whole process at its highest, with interpreter and runtime."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a mark, which has one for the mark's metric, one for the process, or both.

    Attributes:
        size_text: the size as it stands in the mark.
        rules: the size and the metric, in the form of the rules of ``memplan gate``.
        model: the model to check; None: every model that the test passes to `onnx_memory`.
        options: settings of the plan by name.
        config: a settings file.
    """

    size_text: str
    rules: Mapping[str, Any]
    model: Path | None
    options: Mapping[str, Any]
    config: Path | None

    def applies_to(self, model: Path) -> bool:
        """Return whether the mark names this model or none."""
        return self.model is None or self.model.resolve() == model.resolve()


@dataclass(frozen=True, slots=True)
class _TestLimits:
    """The limits of one test; ``checked`` collects the indices of those that were checked."""

    limits: tuple[Limit, ...]
    checked: set[int] = field(default_factory=set)


_TEST_LIMITS = pytest.StashKey[_TestLimits]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", _SIGNATURE)


@contextmanager
def _errors_as_failures() -> Iterator[None]:
    """Turn a `MemplanError` into a test failure with its message and without a traceback."""
    try:
        yield
    except MemplanError as error:
        raise pytest.fail.Exception(f"{_MARK}: {error}", pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Check the models named by marks, run the test, and fail if a limit checked no model."""
    with _errors_as_failures():
        test = _limits_of_test(item)
        for index, limit in enumerate(test.limits):
            if limit.model is not None:
                _check_model(limit, limit.model)
                test.checked.add(index)
    yield
    unchecked = [limit for index, limit in enumerate(test.limits) if index not in test.checked]
    if unchecked:
        pytest.fail(
            f"{_MARK} of {unchecked[0].size_text} checked no model: name one in the mark, or use "
            "the fixture onnx_memory",
            pytrace=False,
        )


@pytest.fixture
def onnx_memory(request: pytest.FixtureRequest) -> Measure:
    """Return a function that plans a model, checks the limits of the test, and returns the report.

    Limits that name another model do not apply to it. Without any that applies, it only gets a report.
    """

    def measure(model: Path | str) -> Report:
        """Plan a model, check the limits that apply to it, and return its report.

        The report is that of the settings of the first limit that applies: the closest mark's.
        """
        with _errors_as_failures():
            test, path = _limits_of_test(request.node), Path(model)
            reports = []
            for index, limit in enumerate(test.limits):
                if limit.applies_to(path):
                    reports.append(_check_model(limit, path))
                    test.checked.add(index)  # else `pytest_runtest_call` fails the test
            return reports[0] if reports else _plan(path, _request(None, {})).report

    return measure


def _limits_of_test(item: pytest.Item) -> _TestLimits:
    """Return the limits of a test, those of the closest mark first; kept in the item's stash."""
    if _TEST_LIMITS not in item.stash:
        root = item.config.rootpath
        marks = item.iter_markers(_MARK)
        limits = tuple(limit for mark in marks for limit in _limits_of_mark(mark, root))
        item.stash[_TEST_LIMITS] = _TestLimits(limits)
    return item.stash[_TEST_LIMITS]


def _limits_of_mark(mark: pytest.Mark, root: Path) -> Iterator[Limit]:
    """Yield the limits of a mark: one of its metric, one of the process, or both.

    Raises:
        SettingsError: a keyword is unknown, or a value is wrong.
    """
    from memplan_cli.api.gate import read_rules
    from memplan_cli.settings.sources import read_overrides

    arguments = _arguments(mark)
    options = _plan_options(arguments, root)
    read_overrides(options)  # raises for a wrong value before a model is planned
    sizes = (
        (arguments.get("limit"), arguments.get("metric", "planned")),
        (arguments.get("process"), _PROCESS_METRIC),
    )
    for size, metric in sizes:
        if size is not None:
            yield Limit(
                size_text=str(size),
                rules=read_rules({"max_memory": size, "metric": metric}),
                model=_path(arguments, "model", root),
                options=options,
                config=_path(arguments, "config", root),
            )


def _path(arguments: Mapping[str, Any], name: str, root: Path) -> Path | None:
    """Return the path in an argument of a mark, which is relative to ``root``; None without the argument.

    Raises:
        SettingsError: the argument is no path.
    """
    path = arguments.get(name)
    if not isinstance(path, str | Path | None):
        raise SettingsError(f"{name} must be a path, not {path!r}")
    return None if path is None else root / path


def _arguments(mark: pytest.Mark) -> dict[str, Any]:
    """Return the arguments of a mark by keyword, without those that are None.

    ``limit`` is the most bytes of the metric named by ``metric``, ``process`` the most bytes of the process.

    Raises:
        SettingsError: a keyword is unknown or given twice; ``limit`` and ``process`` are missing, or ``metric``
            is there without ``limit``.
    """
    from memplan_cli.core.selection import nearest

    unknown = next((name for name in mark.kwargs if name not in _KEYWORDS), None)
    if unknown is not None:
        raise SettingsError(
            f"there is no keyword {unknown!r}; the mark is {_SIGNATURE}",
            hint=nearest(unknown, _KEYWORDS),
        )
    if len(mark.args) > 1 or (mark.args and "limit" in mark.kwargs):
        raise SettingsError(
            f"only one limit may stand without a keyword; the mark is {_SIGNATURE}"
        )
    by_keyword = {**dict(zip(_KEYWORDS, mark.args, strict=False)), **mark.kwargs}
    arguments = {name: value for name, value in by_keyword.items() if value is not None}
    if "limit" not in arguments and "process" not in arguments:
        raise SettingsError(f"there is no limit; the mark is {_SIGNATURE}")
    if "metric" in arguments and "limit" not in arguments:
        raise SettingsError("metric names what limit applies to, and there is no limit")
    return arguments


def _plan_options(arguments: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the settings of the plan in the arguments of a pytest mark, by name.

    The argument ``inputs`` becomes the setting ``input`` if it has values by name. If it has files, whose names
    are relative to ``root``, it becomes ``inputs``.
    """
    options = {name: arguments[name] for name in ("dims", "level") if name in arguments}
    inputs = arguments.get("inputs")
    if isinstance(inputs, Mapping):
        options["input"] = inputs
    elif isinstance(inputs, str | Path):
        options["inputs"] = (str(root / inputs),)
    elif inputs is not None:
        options["inputs"] = tuple(str(root / file) for file in inputs)
    return options


def _request(config: Path | None, options: Mapping[str, Any]) -> Request:
    """Return the settings of a plan; the module is imported when a test has a mark or the fixture."""
    from memplan_cli.api.request import Request

    return Request(config, dict(options))


def _check_model(limit: Limit, model: Path) -> Report:
    """Plan a model, fail the test if the model exceeds the limit, and return the report."""
    from memplan_cli.api.gate import take_snapshot
    from memplan_cli.reporting.commands.gate import Rules, judge, rules_from

    request = _request(limit.config, limit.options)
    plan, rules = _plan(model, request), rules_from(limit.rules, Rules())
    snapshot = take_snapshot(model, plan, str(model), request, rules)
    for result in judge(snapshot, None, rules).results:  # failures and warnings
        if result.fails:
            peak = _peak_text(plan.report)
            pytest.fail(f"{model}: {result.message}\n{peak}", pytrace=False)
        # For example: the total lacks tensors of unknown size.
        warnings.warn(f"{model}: {result.message}", stacklevel=2)
    return plan.report


def _plan(model: Path, request: Request) -> Plan:
    """Return the plan of a model, or the plan in a finished plan file.

    Raises:
        MemplanError: the model or a setting is wrong, or the model does not have a dim.
    """
    from memplan_cli.api.model_or_plan import planned, reject_settings_of_plans

    reject_settings_of_plans((model,), request.option_names)
    return planned(model, request)


def _peak_text(report: Report) -> str:
    """Return the assumed dims, which the pytest mark of the test can bind, and the largest tensors at the peak."""
    from memplan_cli.core.quantities import format_size
    from memplan_cli.reporting.escape import printable
    from memplan_cli.reporting.hints import assumed_dims

    if report.peak is None:
        return ""
    assumed = assumed_dims(report.bindings)
    lines = [f"assumed dims={assumed}; dims= in the mark binds them"] if assumed else []
    lines += [f"live at the peak, {printable(report.peak.node)}:"]
    lines += [
        f"  {format_size(size):>12}  {printable(name)}"
        for name, size in report.peak.tensors[:5]  # sorted by size, the largest first
    ]
    return "\n".join(lines)
