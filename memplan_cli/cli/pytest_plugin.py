"""Limits for the memory of ONNX models, in a project's own tests.

```python
@pytest.mark.limit_onnx_memory("512MiB", model="detector.onnx", dims={"batch": 8})
def test_detector_fits():
    pass


@pytest.mark.limit_onnx_memory("64MiB")
def test_export(tmp_path, onnx_memory):
    export(tmp_path / "m.onnx")
    assert onnx_memory(tmp_path / "m.onnx").reuses > 0
```

Several marks on one test, or on its class or module, all hold. A mark that checks nothing, or
binds a dim that its model does not have, is a failure. What a model needs is what
`memplan report` says: it is planned, and run only for sizes that nothing else tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memplan_cli.errors import MemplanError

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

Measure = Callable[[Path | str], "Report"]

_MARK = "limit_onnx_memory"
_SIGNATURE = (
    f"{_MARK}(limit, model=None, dims=None, metric='planned'): fail when a model needs more"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a mark asks for.

    Attributes:
        written: the size, as the mark says it.
        rules: the size and the metric, judged as those of a gate.
        model: the model that is meant; None: every model of the test.
        dims: values of its dims.
    """

    written: str
    rules: Mapping[str, Any]
    model: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Checks:
    """The limits of one test, and the places of those that a model was compared with."""

    limits: tuple[Limit, ...]
    done: set[int] = field(default_factory=set)


_CHECKS = pytest.StashKey[_Checks]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", _SIGNATURE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Check the models that marks name, run the test, and refuse limits that checked nothing.

    A mark without a model holds for every model of the test, whoever names it.
    """
    try:
        checks = _checks(item)
        _hold_named(checks, item.config.rootpath)
    except MemplanError as error:
        hint = f"\nHint: {error.hint}" if error.hint else ""
        pytest.fail(f"{_MARK}: {error}{hint}", pytrace=False)
    yield
    unused = [limit for at, limit in enumerate(checks.limits) if at not in checks.done]
    if unused:
        pytest.fail(
            f"{_MARK} of {unused[0].written} checked nothing: name a model, or use the "
            "onnx_memory fixture"
        )


def _hold_named(checks: _Checks, root: Path) -> None:
    """Hold the models that marks name against their limits.

    Raises:
        MemplanError: a model, a limit or a dim is wrong, or a size is not known.
    """
    named = [limit for limit in checks.limits if limit.model is not None]
    for at, limit in enumerate(checks.limits):
        for other in named if limit.model is None else [limit]:
            dims = {**other.dims, **limit.dims}
            _checked_against(replace(limit, dims=dims), root / str(other.model))
            checks.done.add(at)


@pytest.fixture
def onnx_memory(request: pytest.FixtureRequest) -> Measure:
    """Plan a model and return its report; with marks on the test, hold it to their limits.

    Limits that name a model of their own are left out, unless all of them do.
    """
    checks = _checks(request.node)
    places = range(len(checks.limits))
    own = [at for at in places if checks.limits[at].model is None] or places

    def measure(model: Path | str) -> Report:
        reports = [_checked_against(checks.limits[at], Path(model)) for at in own]
        checks.done.update(own)
        return reports[0] if reports else _plan(Path(model), {}).report

    return measure


def _checks(item: pytest.Item) -> _Checks:
    """Return the limits of a test, closest first; the same ones whoever asks."""
    if _CHECKS not in item.stash:
        limits = tuple(_limit(mark) for mark in item.iter_markers(_MARK))
        item.stash[_CHECKS] = _Checks(limits)
    return item.stash[_CHECKS]


def _limit(mark: pytest.Mark) -> Limit:
    from memplan_cli.workflows.gate import read_rules

    if len(mark.args) != 1 or not set(mark.kwargs) <= {"model", "dims", "metric"}:
        raise pytest.UsageError(f"the mark is {_SIGNATURE}")
    given = dict(mark.kwargs)
    rules = read_rules({"max_memory": mark.args[0], "metric": given.pop("metric", "planned")})
    dims = given.pop("dims", None) or {}
    return Limit(str(mark.args[0]), rules, dims=dims, **given)


def _checked_against(limit: Limit, model: Path) -> Report:
    from memplan_cli.reporting.findings.gate import Rules, judge, rules_from
    from memplan_cli.reporting.findings.snapshot import snapshot_of
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.gate import with_process

    plan, rules = _plan(model, limit.dims), rules_from(limit.rules, Rules())
    known = snapshot_of(plan, str(model))
    snapshot = with_process(known, model, rules, lambda: Settings(dims=limit.dims))
    verdict = judge(snapshot, None, rules)
    for result in verdict.results:
        if result.fails:
            pytest.fail(f"{model}: {result.message}\n{_at_peak(plan.report)}")
        warnings.warn(f"{model}: {result.message}", stacklevel=2)
    return plan.report


def _plan(model: Path, dims: Mapping[str, int]) -> Plan:
    """Plan a model at dims that it has: a limit at others would say nothing.

    Raises:
        MemplanError: the model, a setting or the name of a dim is wrong.
    """
    from memplan_cli.workflows.report import planned, reject_unused_settings
    from memplan_cli.workflows.request import Request

    reject_unused_settings((model,), ("dim",) if dims else ())
    return planned(model, Request(overrides={"dims": dict(dims) or None}))


def _at_peak(report: Report) -> str:
    from memplan_cli.core.quantities import format_size
    from memplan_cli.reporting.escape import terminal
    from memplan_cli.reporting.findings.assumed import assumed_of

    if report.peak is None:
        return ""
    assumed = assumed_of(report)
    lines = [f"assumed dims={assumed}; the mark may say otherwise"] if assumed else []
    lines += [f"live at the peak, {terminal(report.peak.node)}:"]
    lines += [
        f"  {format_size(size):>12}  {terminal(name)}"
        for name, size in report.peak.tensors[:5]
    ]
    return "\n".join(lines)
