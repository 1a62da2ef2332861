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

A model is planned, not run. What it needs is what `memplan report` says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memplan_cli.report import Report

Measure = Callable[[Path | str], "Report"]

_MARK = "limit_onnx_memory"
_SIGNATURE = (
    f"{_MARK}(limit, model=None, dims=None, metric='planned'): fail when a model needs more"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a mark asks for: a size, of which metric, with which dims, of which model."""

    size: int
    model: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    metric: str = "planned"


_CHECKED = pytest.StashKey[list[str]]()
"""The models that were held against a test's limit."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", _SIGNATURE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Check the mark's own model, run the test, and refuse a limit that checked nothing."""
    limit = _limit(item)
    checked = item.stash.setdefault(_CHECKED, [])
    if limit is not None and limit.model is not None:
        _held_against(limit, item.config.rootpath / limit.model, checked)
    yield
    if limit is not None and not checked:
        pytest.fail(f"{_MARK} checked nothing: name a model, or use the onnx_memory fixture")


@pytest.fixture
def onnx_memory(request: pytest.FixtureRequest) -> Measure:
    """Plan a model and return its report; with a mark on the test, hold it to the limit."""
    limit = _limit(request.node)
    checked = request.node.stash.setdefault(_CHECKED, [])

    def measure(model: Path | str) -> Report:
        if limit is not None:
            return _held_against(limit, Path(model), checked)
        return _report(Path(model), {})

    return measure


def _limit(item: pytest.Item) -> Limit | None:
    from memplan_cli.quantities import parse_size

    mark = item.get_closest_marker(_MARK)
    if mark is None:
        return None
    if len(mark.args) != 1 or not set(mark.kwargs) <= {"model", "dims", "metric"}:
        raise pytest.UsageError(f"the mark is {_SIGNATURE}")
    size = mark.args[0]
    return Limit(size if isinstance(size, int) else parse_size(size), **mark.kwargs)


def _held_against(limit: Limit, model: Path, checked: list[str]) -> Report:
    from memplan_cli.gate import Rules, judge
    from memplan_cli.gating import planned
    from memplan_cli.snapshot import snapshot_of

    plan = planned(model, None, {"dims": dict(limit.dims) or None})
    checked.append(str(model))
    rules = Rules(metrics=(limit.metric,), max_memory=limit.size)
    verdict = judge(snapshot_of(plan, str(model)), None, rules)
    if not verdict.passed:
        pytest.fail(f"{model}: {verdict.results[0].message}\n{_at_peak(plan.report)}")
    return plan.report


def _report(model: Path, dims: Mapping[str, int]) -> Report:
    from memplan_cli.gating import planned

    return planned(model, None, {"dims": dict(dims) or None}).report


def _at_peak(report: Report) -> str:
    from memplan_cli.quantities import format_size
    from memplan_cli.renderers.escape import terminal

    if report.peak is None:
        return ""
    lines = [f"live at the peak, {terminal(report.peak.node)}:"]
    lines += [
        f"  {format_size(size):>12}  {terminal(name)}"
        for name, size in report.peak.tensors[:5]
    ]
    return "\n".join(lines)
