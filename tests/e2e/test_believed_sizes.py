"""Sizes that nobody said are believed where the original runs in any case, and tried where not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import pytest

from builders import parse
from memplan_cli import Check, Settings, api
from memplan_cli.errors import MemplanError

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.output.optimized import Optimized

FREE = "g (float[b,n] x) => (y) { e = Exp(x) m = Add(e, x) y = Neg(m) }"

FAR = """g (float[b,n] x) => (y) <int64[1] far = {3}> {
    e = Exp(x) p = Gather<axis = 1>(e, far) y = Neg(p) }"""
"""At fewer than four columns a kernel fails, and no inference says so."""

PICKED = """g (float[8,8] x) => (y, z) {
    found = NonZero(x) moved = Cast<to = 1>(found) y = Neg(moved)
    a = Exp(x) b = Exp(a) c = Add(a, b) z = Neg(c) }"""
"""How many entries are not zero, only data says."""


def write(path: Path, text: str) -> Path:
    onnx.save(parse(text), str(path))
    return path


def assumed(done: Optimized) -> dict[str, int]:
    bindings = done.plan.report.bindings
    return {name: dim.value for name, dim in bindings.items() if dim.source == "assumed"}


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_model_that_runs_at_the_least_sizes_is_not_run_for_them(
    target: Any,  # noqa: ANN401 - one of the choices
    tmp_path: Path,
    started_jobs: list[str],
) -> None:
    model = write(tmp_path / "net.onnx", FREE)
    done = api.optimize(model, Settings(target=target), check=Check("cpu"))
    assert done.passed
    assert assumed(done) == {"b": 1, "n": 1}
    dumps = ["write_offline_graphs"] if target == "cpu" else []
    assert sorted(started_jobs) == ["measured run", "measured run", *dumps]


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_sizes_are_tried_where_the_model_does_not_run_at_the_least_ones(
    target: Any,  # noqa: ANN401 - one of the choices
    tmp_path: Path,
    started_jobs: list[str],
) -> None:
    model = write(tmp_path / "net.onnx", FAR)
    done = api.optimize(model, Settings(target=target), check=Check("cpu"))
    assert done.passed
    assert assumed(done)["n"] >= 4
    assert "run" in started_jobs
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".tmp") == []


def test_a_failure_that_no_size_mends_is_told_once(tmp_path: Path) -> None:
    text = FAR.replace("{3}", "{1000000}")
    model = write(tmp_path / "net.onnx", text)
    with pytest.raises(MemplanError, match="does not run"):
        api.optimize(model, check=Check("cpu"))
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_the_runtimes_graph_is_planned_at_the_sizes_that_a_run_showed(tmp_path: Path) -> None:
    model = write(tmp_path / "net.onnx", PICKED)
    done = api.optimize(model, Settings(target="cpu"), check=Check("cpu"))
    assert done.passed
    report = done.plan.report
    assert report.memory.planned is not None
    assert any("learned from" in warning for warning in report.warnings)
