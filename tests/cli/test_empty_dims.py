"""A dim of 0 is a dim: every command takes it, and what has no elements has no bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from builders import parse
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.report import Report
from memplan_cli.reporting.formats import FORMATS
from memplan_cli.reporting.plans.memory import verdict
from story import memplan

BATCH = """g (float[batch,8] x) => (float[batch,8] y) {
    a = Relu(x) b = Neg(a) c = Exp(b) d = Add(c, a) y = Exp(d) }"""
STEP = """g (float[1,2,new,8] q, float[1,2,new,8] k, float[1,2,past,8] keys)
       => (float[1,2,new,8] y, float[1,2,total,8] all)
    { joined = Concat<axis = 2>(keys, k) t = Transpose<perm = [0,1,3,2]>(joined)
      scores = MatMul(q, t) p = Softmax(scores) y = MatMul(p, joined)
      old = Neg(keys) fresh = Neg(k) all = Concat<axis = 2>(old, fresh) }"""
FIXED = """g (float[1,0,8] past, float[1,1,8] new) => (float[1,1,8] y) {
    k = Concat<axis = 1>(past, new) a = Relu(k) b = Neg(past)
    c = Concat<axis = 1>(b, a) y = Exp(c) }"""


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("batch", BATCH), ("step", STEP), ("fixed", FIXED)):
        onnx.save(parse(text), f"{name}.onnx")


def done(*words: object) -> str:
    result = memplan(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def report(*words: object) -> Report:
    return from_json(
        Report, json.loads(done("report", *words, "--format", "json")), "the report"
    )


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_plan_of_no_elements_takes_no_bytes(level: int) -> None:
    found = report("batch.onnx", "--dim", "batch=0", "--level", level)
    memory = found.memory
    assert (memory.naive, memory.planned, memory.live_peak, memory.total) == (0, 0, 0, 0)
    assert found.coverage == 1.0
    assert verdict(found) == "no intermediate has any bytes"


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"json"}))
def test_a_plan_of_no_elements_is_drawn(form: str) -> None:
    text = done("report", "batch.onnx", "--dim", "batch=0", "--format", form)
    assert text
    drawn = re.sub("(?s)<script.*?</script>", "", text)
    assert "nan" not in drawn.lower().replace("nano", "")
    assert "inf," not in text.lower()


def test_a_row_of_a_first_step_says_what_it_takes() -> None:
    words = ("sweep", "step.onnx", "--dim", "past=0,8", "--dim", "new=4", "--format", "json")
    rows = json.loads(done(*words, "--jobs", "1"))["rows"]
    planned = {row["dims"]["past"]: row["planned"] for row in rows}
    assert planned[0] < planned[8]
    assert (
        planned[0] == report("step.onnx", "--dim", "past=0", "--dim", "new=4").memory.planned
    )
    assert planned[8] <= planned["0..8"], "one plan for all values holds for the largest"


def test_bounds_and_profiles_begin_at_nothing() -> None:
    within = report("step.onnx", "--bounds", "past=0..8", "--dim", "new=4")
    several = report("step.onnx", "--dim", "past=0,8", "--dim", "new=4")
    assert within.memory.planned == several.memory.planned
    assert [dict(row.dims) for row in several.profiles] == [{"past": 0}, {"past": 8}]


def test_settings_files_and_shapes_take_a_dim_of_zero(tmp_path: Path) -> None:
    assert report("batch.onnx", "--shape", "x=0,8").memory.total == 0
    (tmp_path / "memplan.yaml").write_text("dims: {batch: 0}\n")
    assert report("batch.onnx").memory.total == 0


def test_a_gate_measures_growth_from_nothing() -> None:
    gate = ("gate", "batch.onnx", "--baseline", "base.json", "--metric", "planned")
    onnx.save(parse(BATCH.replace("batch,", "0,")), "batch.onnx")
    done(*gate, "--update-baseline")
    done(*gate, "--max-increase", "2%", "--max-memory", "0")
    onnx.save(parse(BATCH.replace("batch,", "1,")), "batch.onnx")
    grown = memplan(*gate, "--max-increase", "2%")
    assert grown.exit_code == 1
    assert "as planned: from 0 B to 64 B" in grown.stdout


@pytest.mark.parametrize("command", ["why", "simulate", "settings"])
def test_other_commands_take_a_dim_of_zero(command: str) -> None:
    done(command, "batch.onnx", "--dim", "batch=0")


@pytest.mark.parametrize(
    "words",
    [
        ("fixed.onnx",),
        pytest.param(("batch.onnx", "--dim", "batch=0"), marks=pytest.mark.slow),
        pytest.param(
            ("step.onnx", "--dim", "past=0", "--dim", "new=3"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_first_step_runs_and_is_compared(words: tuple[str, ...]) -> None:
    done("optimize", *words, "-o", "out.onnx")
    written = from_json(
        Report, json.loads(Path("out.json").read_text("utf-8"))["report"], "the report"
    )
    assert written.validation is not None
    assert written.validation.bit_identical
    assert written.runtime is not None
    assert written.runtime.predicted["optimized"] is not None
    observed, predicted = written.runtime.observed, written.runtime.predicted
    for side in ("original", "optimized"):
        assert observed[side].first_run_peak == predicted[side].first_run_peak
