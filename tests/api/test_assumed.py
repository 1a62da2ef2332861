"""What nobody bound is assumed, found by a run where there may be one, and said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import parse
from memplan_cli import Settings, plan, report
from memplan_cli.cli import main
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.planning.plan_file import read_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDED = """g (float[b,s,8] x, int64[2] to) => (y)
    <int64[4] heads = {-1, 12, 2, 4}> { e = Exp(x) r = Reshape(e, heads) y = Neg(r) }"""
"""A length that an exporter wrote down: only 12, or what 12 divides, runs."""

RATE = """g (float[b,n] x, int64 sr) => (y) <int64 known = {16000}, int64[2] to = {-1, 64}> {
    fast = Equal(sr, known)
    a = Exp(x)
    f = If (fast) <
        then_branch = t () => (p) { n1 = Neg(a) p = Reshape(n1, to) },
        else_branch = e () => (q) { q = Gather(a, sr) }>
    y = Neg(f) }"""
"""A branch for one sample rate; with other numbers the model fails."""

TURNS = """g (int64 turns, float[b,4] x) => (y) <bool go = {1}> {
    e = Exp(x)
    l = Loop (turns, go, e) <
        body = t (int64 i, bool c, float[m,4] h) => (k, n)
        { k = Identity(c) n = Concat<axis = 0>(h, h) }>
    y = Neg(l) }"""
"""How often a loop turns, and so how much there is, an input says."""

PICKED = """g (float[n] x) => (y) { found = NonZero(x) moved = Abs(found) y = Neg(moved) }"""


def written(folder: Path, text: str) -> Path:
    path = folder / "m.onnx"
    onnx.save(parse(text), path)
    return path


def said(*words: object, code: int = 0) -> Any:  # noqa: ANN401 - JSON, or words
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done.stderr


def assumed(path: Path, given: Settings | None = None) -> Mapping[str, int]:
    found = plan(path, given).report
    assert found.memory.total is not None
    assert {dim.source for dim in found.bindings.values()} <= {"assumed"}
    return {name: dim.value for name, dim in found.bindings.items()}


def test_a_length_that_only_runs_show_is_found(tmp_path: Path) -> None:
    text = FOLDED.replace(", int64[2] to", "")
    assert assumed(written(tmp_path, text)) == {"b": 1, "s": 12}


def test_a_value_that_decides_a_branch_is_drawn_as_it_is_compared(tmp_path: Path) -> None:
    found = assumed(written(tmp_path, RATE))
    assert found == {"b": 1, "n": 64}


def test_how_often_a_loop_turns_is_drawn_and_what_it_makes_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path, TURNS)
    few = plan(path, Settings(inputs={"turns": 2})).report  # type: ignore[arg-type]
    many = plan(path, Settings(inputs={"turns": 6})).report  # type: ignore[arg-type]
    assert few.coverage == many.coverage == plan(path).report.coverage == 1.0
    assert few.memory.planned is not None
    assert many.memory.planned is not None
    assert few.memory.planned < many.memory.planned


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        (
            "g (float[6] x) => (float[6] y, int64[1,n] z) { a = Exp(x) y = Neg(a) z = NonZero(a) }",
            "observed",
        ),
        (
            "g (float[6] x) => (float[6] y) { n = NonZero(x) s = Cast<to = 1>(n) m = ReduceMax(s) y = Add(x, m) }",
            "exact",
        ),
    ],
    ids=["decides a result", "decides what lies between"],
)
def test_a_result_whose_size_a_run_alone_told_is_not_called_exact(
    tmp_path: Path, text: str, outputs: str
) -> None:
    found = plan(written(tmp_path, text)).report.certainty
    assert (found["inputs"], found["outputs"]) == ("exact", outputs)
    assert found["total"] == "observed"


def test_what_data_decides_is_read_off_a_run_without_an_option(tmp_path: Path) -> None:
    path = written(tmp_path, PICKED)
    found = plan(path).report
    assert found.certainty["planned"] == "observed"
    assert any("learned from one run" in warning for warning in found.warnings)
    silent = plan(path, Settings(run=False)).report
    assert silent.memory.total is None
    assert silent.bindings == {"n": BoundDim(1, "assumed")}


def test_a_branch_that_is_not_taken_hides_no_total(
    tmp_path: Path,
) -> None:
    text = """g (float[b,4] x, bool many) => (y) {
        a = Exp(x)
        f = If (many) <
            then_branch = t () => (p) { n1 = NonZero(a) p = Cast<to = 1>(n1) },
            else_branch = e () => (q) { n2 = NonZero(x) q = Cast<to = 1>(n2) }>
        y = Neg(f) }"""
    path = written(tmp_path, text)
    for taken in (1, 0):
        found = plan(path, Settings(inputs={"many": taken})).report  # type: ignore[arg-type]
        assert found.memory.total is not None
        assert found.coverage == 1.0


@pytest.mark.parametrize("batch", ["b", "2"])
def test_what_cannot_load_is_planned_and_asks_for_no_inputs(
    tmp_path: Path, batch: str
) -> None:
    text = """g (float[b,4] x) => (float[b,4] y, z) {
        i = mine.Unheard(x) e = Exp(x) y = Neg(e) w = NonZero(i) z = Neg(w) }"""
    warnings = plan(written(tmp_path, text.replace("[b,", f"[{batch},"))).report.warnings
    (told,) = [w for w in warnings if "the model does not load in ONNX Runtime" in w]
    assert "--inputs" not in told


def test_what_cannot_load_is_called_by_the_name_of_its_file(tmp_path: Path) -> None:
    text = """g (float[b,4] x) => (float[b,4] y, z) {
        i = mine.Unheard(x) e = Exp(x) y = Neg(e) w = NonZero(i) z = Neg(w) }"""
    path = written(tmp_path, text)
    (told,) = [w for w in plan(path).report.warnings if "does not load" in w]
    assert f"Load model from {path.name} failed" in told


def test_a_node_without_a_name_that_fails_is_named_by_its_output(tmp_path: Path) -> None:
    text = """g (float[n,4] x) => (y) <float[3,4] t = {1,2,3,4,5,6,7,8,9,10,11,12}> {
        e = Exp(x) a = Add(e, t) f = Neg(a) y = Neg(f) }"""
    (told,) = plan(written(tmp_path, text), Settings(dims={"n": 2})).report.warnings
    assert "Add node. Name:'computes a'" in told


def test_what_cannot_run_is_planned_and_says_what_to_give(tmp_path: Path) -> None:
    text = """g (float[b,4] x, int64 at) => (y, z) <float[3] table = {1, 2, 3}, int64 far = {99}> {
        i = Add(at, far) p = Gather(table, i) e = Exp(x) y = Neg(e) w = NonZero(p) z = Neg(w) }"""
    path = written(tmp_path, text)
    found = plan(path).report
    assert found.bindings["b"] == BoundDim(1, "assumed")
    (told,) = [w for w in found.warnings if "does not run on drawn inputs at b=1" in w]
    assert "--input at=N or --inputs FILE" in told
    whole = plan(path, Settings(inputs={"at": -98})).report  # type: ignore[arg-type]
    assert whole.memory.total is not None
    with pytest.raises(RuntimeUnavailableError, match="'at'"):
        plan(path, Settings(inputs={"at": 5}))  # type: ignore[arg-type]


def test_a_model_that_does_not_run_on_given_inputs_is_not_said_to_run_on_drawn_ones(
    tmp_path: Path,
) -> None:
    text = """g (float[b,4] x, int64 at) => (y, p) <float[3] table = {1, 2, 3}, int64 far = {99}> {
        i = Add(at, far) p = Gather(table, i) e = Exp(x) y = Neg(e) }"""
    settings = Settings(inputs={"at": 5})  # type: ignore[arg-type]
    warnings = plan(written(tmp_path, text), settings).report.warnings
    (warning,) = [w for w in warnings if "does not run" in w]
    assert "does not run on the inputs given at b=1" in warning
    assert "--inputs" not in warning


def test_a_plan_in_a_file_has_the_numbers_and_the_formula(tmp_path: Path) -> None:
    path = written(tmp_path, "g (float[b,8] x) => (y) { e = Exp(x) f = Neg(e) y = Abs(f) }")
    out = tmp_path / "out.onnx"
    found = said("optimize", path, "-o", out, "--no-validate", "--format", "json")
    assert found["bindings"] == {"b": {"value": 1, "source": "assumed"}}
    kept = read_plan(out.with_suffix(".json")).report
    assert kept.memory.total == unit_value(kept.symbolic["total"], {"b": 1})
    text = CliRunner().invoke(main, ["report", str(out.with_suffix(".json")), "-v"]).stdout
    assert "Sizes are guessed: b=1; set them with --dim b=N" in text
    assert "For all dims" in text


def test_a_plan_that_claims_other_numbers_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "g (float[b,8] x) => (y) { e = Exp(x) f = Neg(e) y = Abs(f) }")
    out = tmp_path / "out.onnx"
    said("optimize", path, "-o", out, "--no-validate", "--format", "json")
    file = out.with_suffix(".json")
    whole = json.loads(file.read_text())
    for value, message in ((-1, "expected a whole number from 0"), (2, "is recorded as")):
        whole["report"]["bindings"]["b"]["value"] = value
        file.write_text(json.dumps(whole))
        assert message in said("report", file, code=2)


def test_all_that_runs_is_at_the_sizes_that_were_assumed(tmp_path: Path) -> None:
    text = FOLDED.replace(", int64[2] to", "")
    found = said(
        "optimize", written(tmp_path, text), "--provider", "cpu", "--format", "json",
        "-o", tmp_path / "out.onnx",
    )  # fmt: skip
    assert found["validation"]["status"] == "passed"
    predicted = found["runtime"]["predicted"]["original"]["first_run_peak"]
    assert found["runtime"]["observed"]["original"]["first_run_peak"] == predicted
    done = said("validate", tmp_path / "out.onnx", "--original", tmp_path / "m.onnx",
                "--provider", "cpu", "--replay", "--format", "json")  # fmt: skip
    assert done["replay"] == "passed"


NO_RUN = (
    ("report",),
    ("gate", "--max-memory", "1GiB"),
    ("why",),
    ("settings",),
    ("simulate", "--allocator", "bfc"),
    ("sweep", "--jobs", "1"),
    ("fit", "--memory", "1GiB", "--dim", "s=?"),
    ("optimize", "--no-validate"),
)


@pytest.mark.parametrize("command", NO_RUN, ids=" ".join)
@pytest.mark.parametrize("option", ["--no-run", "--run"])
def test_every_command_has_a_number_with_and_without_a_run(
    tmp_path: Path, command: tuple[str, ...], option: str
) -> None:
    path = written(tmp_path, "g (float[b,s,8] x) => (y) { e = Exp(x) f = Neg(e) y = Abs(f) }")
    name, *options = command
    done = CliRunner().invoke(main, [name, str(path), *options, option])
    assert done.exit_code == 0, done.output
    sizes = "b=1, s=1" if name != "fit" else "b=1"
    start = "assumed" if name == "sweep" else "Sizes are guessed:"  # a cell of its table
    assert f"{start} {sizes}" in " ".join(done.output.split())


@pytest.mark.parametrize(
    "command",
    [
        ("settings", "--measure"),
        ("simulate", "--allocator", "bfc"),
        ("fit", "--memory", "1GiB", "--dim", "n=?", "--confirm"),
    ],
    ids=" ".join,
)
def test_commands_that_run_the_model_are_refused_with_no_run(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    message = said(name, written(tmp_path, PICKED), *options, "--no-run", code=2)
    assert "and --no-run forbids it" in message


def test_optimize_without_a_run_compares_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "g (float[b,8] x) => (y) { e = Exp(x) f = Neg(e) y = Abs(f) }")
    found = said("optimize", path, "--no-run", "--format", "json")
    assert found["validation"] is None
    for side in found["runtime"]["observed"].values():
        assert set(side.values()) == {None}
    assert found["memory"]["total"] is not None


def test_a_model_in_a_folder_that_takes_no_file_is_run(tmp_path: Path) -> None:
    path = written(tmp_path, PICKED)
    tmp_path.chmod(0o500)
    try:
        assert plan(path).report.memory.total is not None
    finally:
        tmp_path.chmod(0o700)


def test_external_data_is_found_by_the_copy_that_is_looked_at(tmp_path: Path) -> None:
    model = parse("""g (float[n,4] x, float[4] w) => (y) {
        m = Mul(x, w) found = NonZero(m) moved = Abs(found) y = Neg(moved) }""")
    weight = np.array([1, 0, 0, 1], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    del model.graph.input[1]
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    found = plan(path).report
    assert found.memory.outputs == 2 * 2 * 8
    (tmp_path / "w.bin").unlink()
    assert plan(path).report.memory.total is None, "nothing runs without its weights"


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    length=st.sampled_from([1, 2, 3, 5, 12, 16, 30, 77, 224]),
    stride=st.sampled_from([1, 2, 4]),
    kind=st.sampled_from(["Add", "Reshape", "MatMul"]),
)
def test_the_assumed_size_is_one_with_which_the_model_runs(
    tmp_path: Path, length: int, stride: int, kind: str
) -> None:
    import onnxruntime as ort

    ends = {
        "Add": "y = Add(p, t)",
        "Reshape": "y = Reshape(p, to)",
        "MatMul": "y = MatMul(p, t)",
    }
    shape = {"Add": [1, 4, length], "Reshape": [1, 4, length], "MatMul": [length, 3]}[kind]
    text = f"""g (float[b,4,n] x, float[{",".join(map(str, shape))}] t) => (y)
        <int64[3] to = {{-1, {length}, 4}}> {{
        e = Exp(x) p = MaxPool<kernel_shape = [1], strides = [{stride}]>(e) {ends[kind]} }}"""
    path = written(tmp_path, text)
    found = report(path).report
    dims = {name: dim.value for name, dim in found.bindings.items()}
    assert dims["b"] == 1
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {"x": np.ones((1, 4, dims["n"]), np.float32), "t": np.ones(shape, np.float32)}
    session.run(None, feed)
    for name, text in found.symbolic.items():
        if name in ("naive", "planned", "total", "live_peak"):
            assert unit_value(text, dims) == getattr(found.memory, name)


def test_a_past_that_must_be_longer_than_what_is_added_gets_a_length_of_its_own(
    tmp_path: Path,
) -> None:
    text = """g (float[1,p] past, float[1,s] x) => (y) <int64[1] two = {2}, float[1] table = {7}> {
        past_length = Shape<start = 1, end = 2>(past)
        added_length = Shape<start = 1, end = 2>(x)
        twice = Mul(added_length, two)
        index = Sub(twice, past_length)
        picked = Gather(table, index)
        a = Mul(x, picked)
        b = Concat<axis = 1>(past, a)
        y = Neg(b) }"""
    found = report(written(tmp_path, text)).report
    assert {name: dim.value for name, dim in found.bindings.items()} == {"p": 2, "s": 1}
    assert not found.warnings


def test_sizes_at_which_a_window_fits_nowhere_are_not_assumed(tmp_path: Path) -> None:
    """A kernel makes one place there; the formula rounds down to none."""
    text = """g (float[b,3,n] x) => (y) {
        p = AveragePool<kernel_shape = [4], strides = [8]>(x) q = Exp(p) y = Neg(q) }"""
    model = written(tmp_path, text)
    found = said("report", model, "--format", "json")
    dims = {name: dim["value"] for name, dim in found["bindings"].items()}
    bound = said(
        "report", model, "--format", "json", *(f"--dim={n}={v}" for n, v in dims.items())
    )
    assert dims["n"] >= 4
    assert found["memory"]["naive"] == bound["memory"]["naive"] > 0


def test_a_weight_that_is_an_input_too_is_not_folded_after_a_run(tmp_path: Path) -> None:
    model = """g (float[4] x, float[4] w) => (y, z) <float[4] w = {1, 2, 3, 4}, float least = {-1}> {
        c = Transpose(w)  y = Mul(c, x)
        sum = ReduceSum<keepdims = 0>(x)  size = Abs(sum)  never = Less(size, least)
        z = If (never) <
            then_branch = t () => (p) { f = NonZero(x) p = Cast<to = 1>(f) },
            else_branch = e () => (q) { q = Cast<to = 1>(x) }> }"""
    result = plan(written(tmp_path, model), fold_constants=True).report
    assert any("this run did not execute" in warning for warning in result.warnings)
    assert result.folded.tensors == ()
