"""Several values of a dim: a row each, the figures of ``--dim``, and one plan for all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from builders import parse
from memplan_cli import api
from memplan_cli.api.models import profiles
from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.api.models.profiles import plan_profiles, with_bounds_of
from memplan_cli.api.schema import schema_text
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import InvalidLayoutError, SettingsError
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.formats import render
from memplan_cli.settings.settings import Settings
from story import memplan

SAMPLE = Path(__file__).parents[2] / "sample_models" / "dynamic_batch.onnx"
TWO = """g (float[batch,seq,8] x, float[8,8] w) => (float[batch,seq,8] z) {
    a = MatMul(x, w) b = Relu(a) t = Transpose<perm=[0,2,1]>(b) s = MatMul(b, t)
    p = Softmax(s) c = MatMul(p, b) d = Add(c, x) z = Neg(d) }"""
AGAIN = """g (float[batch,8] x, float[8,64] k, float[64,64] m, float[64,8] l) => (float[batch,8] z) {
    a = Exp(x) b = MatMul(a, k) c = MatMul(b, m) d = MatMul(c, l) e = Add(d, a) z = Neg(e) }"""
BATCHES = {"batch": (1, 8, 32)}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.onnx"
    onnx.save(parse(TWO), path)
    return path


def refusal(*words: object) -> str:
    result = memplan(*words)
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize("level", [0, 1, 2])
def test_each_row_has_the_figures_of_that_binding_alone(level: Any) -> None:  # noqa: ANN401 - a literal
    chosen = Settings(level=level)
    plan = api.report(SAMPLE, chosen, profiles=BATCHES)
    assert [dict(row.dims) for row in plan.report.profiles] == [
        {"batch": n} for n in (1, 8, 32)
    ]
    for row in plan.report.profiles:
        alone = api.plan(SAMPLE, replace(chosen, dims=row.dims))
        assert row.memory == alone.report.memory


def test_the_one_plan_is_that_of_the_bounds() -> None:
    plan = api.report(SAMPLE, profiles={"batch": (32, 1)})
    between = api.plan(SAMPLE, Settings(bounds={"batch": DimRange(1, 32)}))
    assert plan.digest == between.digest
    assert plan.report.memory == between.report.memory


def test_rows_of_a_model_with_sizes_that_depend_on_data_are_observed_at_their_binding(
    tmp_path: Path,
) -> None:
    text = """g (float[batch,4] x) => (int64[2,n] y) {
        z = Abs(x) s = Exp(z) q = NonZero(s) p = Add(q, q) y = Add(p, q) }"""
    path = tmp_path / "data.onnx"
    onnx.save(parse(text), path)
    rows = api.report(path, profiles={"batch": (1, 8)}).report.profiles
    alone = [api.plan(path, Settings(dims=row.dims)).report.memory for row in rows]
    assert [row.memory for row in rows] == alone
    assert rows[0].memory.planned != rows[1].memory.planned


def test_two_dims_give_a_row_for_every_combination(two: Path) -> None:
    plan = api.report(two, profiles={"batch": (1, 4), "seq": (16, 2)})
    assert [tuple(row.dims.values()) for row in plan.report.profiles] == [
        (1, 16), (1, 2), (4, 16), (4, 2),
    ]  # fmt: skip
    largest = api.plan(two, Settings(dims={"batch": 4, "seq": 16})).report.memory
    assert plan.report.memory.naive == largest.naive


def test_a_dim_with_one_value_is_bound_beside_those_with_several(two: Path) -> None:
    plan = api.report(two, Settings(dims={"seq": 16}), profiles={"batch": (1, 4)})
    wanted = api.plan(two, Settings(dims={"batch": 4, "seq": 16})).report.memory
    assert plan.report.profiles[1].memory == wanted


def test_a_plan_that_is_too_small_for_a_binding_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checker believes neither the bounds nor the arithmetic on expressions."""
    monkeypatch.setattr(
        profiles,
        "with_bounds_of",
        lambda chosen, _: replace(chosen, bounds={"batch": (1, 31)}),
    )
    with pytest.raises(InvalidLayoutError, match=r"bytes for .* at batch=32"):
        api.report(SAMPLE, profiles=BATCHES)


def test_a_plan_in_which_tensors_overlap_at_a_binding_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = plan_model

    def overlapping(file: Any, settings: Settings, progress: Any = None) -> Any:  # noqa: ANN401 - as the function
        planned = honest(file, settings, progress)
        if settings.bounds:
            low = tuple(t._replace(offset=0) for t in planned.plan.tensors)
            planned = replace(planned, plan=replace(planned.plan, tensors=low))
        return planned

    monkeypatch.setattr(profiles, "plan_model", overlapping)
    with pytest.raises(InvalidLayoutError, match="not safe: overlap"):
        api.report(SAMPLE, profiles=BATCHES)


def test_what_runs_again_is_checked_at_each_binding_too(tmp_path: Path) -> None:
    path = tmp_path / "again.onnx"
    onnx.save(parse(AGAIN), path)
    settings = Settings(recompute="auto", budget=0.95)
    plan = api.report(path, settings, profiles={"batch": (2, 8)})
    assert any("__recompute" in tensor.id for tensor in plan.tensors)
    assert [row.memory.live_peak for row in plan.report.profiles] == [1024, 4096]


def test_optimize_writes_one_model_and_the_rows_are_in_its_plan(tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    result = memplan("optimize", SAMPLE, "--dim", "batch=1,8,32", "--no-validate", "-o", out,
                 "--format", "json", "--quiet")  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [row["dims"]["batch"] for row in report["profiles"]] == [1, 8, 32]
    totals = [row["memory"]["planned"] for row in report["profiles"]]
    assert totals == sorted(totals)
    assert totals[-1] <= report["memory"]["planned"]
    again = read_plan(out.with_suffix(".json"))
    assert to_json(again.report) == report
    assert again.settings["bounds"] == {"batch": "1..32"}


def test_the_written_model_gives_the_same_bits_at_the_largest_binding(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = api.optimize(
        SAMPLE, Settings(), profiles={"batch": (1, 4)}, out=tmp_path / "net.onnx"
    )
    assert done.passed
    assert done.plan.report.validation is not None
    assert done.plan.report.validation.bit_identical


def test_the_schema_knows_the_rows() -> None:
    from jsonschema import Draft202012Validator

    data = to_json(api.report(SAMPLE, profiles=BATCHES).report)
    schema = Draft202012Validator(json.loads(schema_text("report")))
    assert not list(schema.iter_errors(data))
    data["profiles"][0]["dims"]["batch"] = "one"
    assert list(schema.iter_errors(data))


def test_a_report_for_one_binding_has_no_rows() -> None:
    assert "profiles" not in to_json(api.plan(SAMPLE, Settings(dims={"batch": 8})).report)


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_rows_are_shown(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plan = api.report(SAMPLE, profiles=BATCHES)
    shown = render(plan, form, detail="details" if form == "text" else "answer")
    assert all(f"batch={n}" in shown for n in (1, 8, 32))
    assert "checked at each" in shown


def test_a_value_that_is_given_twice_is_one_value() -> None:
    twice = memplan("report", SAMPLE, "--dim", "batch=8,8", "--format", "json", "--quiet")
    once = memplan("report", SAMPLE, "--dim", "batch=8", "--format", "json", "--quiet")
    assert twice.stdout == once.stdout


def test_the_library_says_what_it_cannot_take(two: Path) -> None:
    file = read_model(two)
    with pytest.raises(SettingsError, match="'batch' has both numbers and bounds"):
        plan_profiles(file, Settings(bounds={"batch": DimRange(1, 4)}), BATCHES)
    assert with_bounds_of(Settings(dims={"batch": 2, "seq": 3}), BATCHES).dims == {"seq": 3}


@pytest.mark.parametrize("command", ["optimize", "report"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dim", "batsch=1,8"), "the model has no dim 'batsch'"),
        (("--dim", "batch=1,8", "--dim", "batch=4"), "--dim gives 'batch' twice"),
        (("--dim", "batch=1,8", "--dim", "batch=2,4"), "--dim gives 'batch' twice"),
        (("--dim", "batch=1,8", "--bounds", "batch=1..4"), "has both numbers and bounds"),
        (("--dim", "batch=1,"), "--dim takes NAME=N or NAME=N,N,.."),
        (("--dim", "batch=-1,8"), "--dim takes NAME=N or NAME=N,N,.."),
        (("--dim", "=1,8"), "--dim takes NAME=N or NAME=N,N,.."),
    ],
)
def test_wrong_numbers_of_dims_are_refused(
    command: str, words: tuple[str, ...], said: str
) -> None:
    assert said in refusal(command, SAMPLE, *words)


def test_the_nearest_dim_is_named() -> None:
    assert "batch" in refusal("report", SAMPLE, "--dim", "batsch=1,8").split("Hint:")[1]


def test_a_graph_of_one_provider_is_for_one_size() -> None:
    said = refusal("optimize", SAMPLE, "--dim", "batch=1,8", "--target", "cpu")
    assert "--target cpu orders the runtime's graph of one size" in said


def test_a_plan_is_for_the_dims_that_it_was_made_for(tmp_path: Path) -> None:
    assert (
        memplan("optimize", SAMPLE, "--no-validate", "-o", tmp_path / "a.onnx").exit_code == 0
    )
    said = refusal("report", tmp_path / "a.json", "--dim", "batch=1,8")
    assert "--dim has no effect: " in said
    assert "a.json is a finished plan" in said


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", SAMPLE, "--dim", "batch=1,2", "--dim", "batch=8"),
        ("sweep", SAMPLE, "--dim", "batch=1", "--dim", "batch=1"),
        ("fit", SAMPLE, "--memory", "1GiB", "--dim", "batch=?", "--dim", "batch=4"),
    ],
)
def test_a_dim_is_named_once_where_it_has_several_values_or_none(
    words: tuple[object, ...],
) -> None:
    assert "--dim gives 'batch' twice" in refusal(*words)
