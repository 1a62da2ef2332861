"""The largest dim that fits: on models, and as a command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import pytest

from builders import parse
from memplan_cli import api
from memplan_cli.api.fit import ConfirmationRuns, TakenMemory, confirm, fit
from memplan_cli.api.fit_needs import ProcessPrediction, bind_program
from memplan_cli.core.results.observations import Peaks
from memplan_cli.errors import RuntimeUnavailableError, SettingsError, UnknownSizeError
from memplan_cli.planning import fit as planning_fit
from memplan_cli.planning.fit import Need, Point, Question
from memplan_cli.runtime.run import run_model
from memplan_cli.settings.settings import Settings
from story import memplan

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).parents[2]
SAMPLE = REPOSITORY / "sample_models" / "dynamic_batch.onnx"


def test_the_largest_batch_of_a_model_is_what_exact_plans_say() -> None:
    memory = 1 << 20
    found = fit(SAMPLE, memory, "batch", overhead=0, of="tensors")
    (point,) = found.points

    def total(batch: int) -> int:
        report = api.plan(SAMPLE, Settings(dims={"batch": batch})).report
        assert report.memory.total is not None
        return report.memory.total

    assert point.total == total(point.dims["batch"])
    assert point.total <= memory < total(point.dims["batch"] + 1)
    assert found.passed


def test_overhead_is_taken_off_the_memory() -> None:
    whole = fit(SAMPLE, 1 << 20, "batch", overhead=0, of="tensors")
    less = fit(SAMPLE, 1 << 20, "batch", overhead=1 << 19, of="tensors")
    assert less.points[0].dims["batch"] < whole.points[0].dims["batch"]
    assert less.points[0].total <= 1 << 19


def test_nothing_fits_is_a_result_that_says_what_one_would_need() -> None:
    found = fit(SAMPLE, 10, "batch", overhead=0)
    assert not found.passed
    assert found.points == ()
    assert found.least is not None
    assert found.least.total > 10


def test_a_symbol_that_the_model_does_not_have_is_named_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="'bacth'") as error:
        fit(SAMPLE, 1 << 20, "bacth")
    assert "batch" in error.value.hint


def test_dims_that_shapes_name_are_listed_in_the_order_of_their_names() -> None:
    model = parse("g (float[n,m,k,l] x) => (float[n,m,k,l] y) { y = Exp (x) }")
    with pytest.raises(SettingsError) as error:
        fit(model, 1 << 20, "", shapes={"x": ("d", "b", "c", "a")})
    options = "--dim 'a=?' or --dim 'b=?' or --dim 'c=?' or --dim 'd=?'"
    assert error.value.hint.startswith(f"the model allows {options}")


DECIDED_BY_DATA = """g (float[batch,seq] x) => (y) {
        z = NonZero (x)
        f = Cast <to = 1> (z)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        places = Constant <value = float[1,4] {1, 2, 3, 4}> ()
        length = Shape <start = 1> (x)
        near = Slice (places, zero, length, one)
        h = Add (x, near)
        low = ReduceSum <keepdims = 0> (h)
        high = ReduceSum <keepdims = 0> (f)
        y = Add (low, high)
    }"""


@pytest.fixture
def decided(tmp_path: Path) -> Path:
    """A model whose sizes a run tells, and which runs with a seq of up to 4."""
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(DECIDED_BY_DATA).SerializeToString())
    return path


def test_sizes_that_data_decides_are_those_of_a_run_as_a_report_has_them(
    decided: Path,
) -> None:
    at = {"seq": 4}
    settings = Settings(dims=at)
    found = fit(decided, 10_000, "batch", settings, overhead=0, of="tensors")
    (answer,) = found.points
    batch = answer.dims["batch"]
    for total, value in ((answer.total, batch), (answer.beyond, batch + 1)):
        report = api.report(decided, Settings(dims={"batch": value, **at})).report
        assert total == report.memory.total
    assert any("learned from one run on drawn inputs" in each for each in found.warnings)
    assert not found.expressions


def test_an_output_whose_size_data_decides_is_as_large_as_in_a_run(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = "g (float[batch,2] x) => (float y) { z = Compress (x, c)  y = Identity (z) }"
    text = text.replace("=> (float y)", "=> (float[found] y) <bool[3] c = {1, 0, 1}>")
    path.write_bytes(parse(text).SerializeToString())
    found = fit(path, 1000, "batch", overhead=0, of="tensors")
    assert found.points[0].outputs == 8


def test_a_model_whose_weights_do_not_fit_is_not_run_for_unknown_sizes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.onnx"
    text = """g (float[batch,4] x) => (float y) <float[4] w = {1, 2, 3, 4}> {
        e = Add(x, w)  z = NonZero(e)  y = Cast <to = 1> (z)
    }"""
    path.write_bytes(parse(text).SerializeToString())
    found = fit(path, 10, "batch", overhead=0, of="tensors")
    assert found.points == ()
    assert found.least == Need(weights=16, inputs=16, outputs=0, planned=0)


def test_values_too_large_to_run_follow_from_those_that_were(
    decided: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_fit, "MAX_ADDED_BYTES", 1000)
    settings = Settings(dims={"seq": 4})
    found = fit(decided, 100_000, "batch", settings, overhead=0, of="tensors")
    (answer,) = found.points
    assert any("was not run: its need is extrapolated from" in each for each in found.warnings)
    report = api.report(decided, Settings(dims={**answer.dims, "seq": 4})).report
    assert report.memory.total == pytest.approx(100_000, rel=0.02)


def test_the_process_is_predicted_at_the_sizes_of_runs(decided: Path) -> None:
    found = fit(decided, 64 << 20, "seq", of="process", overhead=0)
    assert found.points[0].process
    assert found.points[0].dims == {"seq": 4}
    assert any("taken not to fit: seq=5" in each for each in found.warnings)


def test_a_value_without_a_size_of_the_output_is_taken_not_to_fit(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = DECIDED_BY_DATA.partition("low =")[0] + "y = NonZero (h) }"
    text = text.replace("z = NonZero (x)", "").replace("f = Cast <to = 1> (z)", "")
    path.write_bytes(parse(text).SerializeToString())
    settings = Settings(dims={"batch": 1})
    found = fit(path, 64 << 20, "seq", settings, overhead=0, of="tensors")
    assert found.points[0].dims == {"seq": 4}
    assert any("taken not to fit: seq=5" in each for each in found.warnings)


def test_without_a_run_sizes_that_data_decides_are_an_error(decided: Path) -> None:
    with pytest.raises(UnknownSizeError, match=r"the size of '[zf]' is not known") as error:
        fit(decided, 1 << 30, "batch", Settings(dims={"seq": 4}, run=False))
    assert error.value.hint == "--run"
    with pytest.raises(UnknownSizeError, match="does not run on drawn inputs"):
        fit(decided, 1 << 30, "batch", Settings(dims={"seq": 5}))


def test_an_excluded_tensor_is_not_named_as_one_of_unknown_size(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(DECIDED_BY_DATA.replace("near", "a")).SerializeToString())
    settings = Settings(dims={"seq": 4}, run=False, exclude=("a",))
    with pytest.raises(UnknownSizeError, match=r"the size of '[zf]' is not known"):
        fit(path, 1 << 30, "batch", settings)


def test_confirming_runs_the_answer() -> None:
    found = fit(SAMPLE, 64 << 20, "batch", provider="cpu", overhead=0)
    assert found.confirmed is not None
    assert found.confirmed.dims == found.points[0].dims
    assert found.confirmed.taken > 0
    assert found.passed


class Taken(ConfirmationRuns):
    """Runs that take a given number of bytes for each of a batch."""

    asked: ClassVar[list[int]] = []

    def taken(self, dims: Mapping[str, int]) -> TakenMemory:
        self.asked.append(dims["batch"])
        return TakenMemory(12 * dims["batch"], "process")


def test_a_run_that_takes_too_much_is_followed_by_smaller_ones_until_one_fits() -> None:
    Taken.asked.clear()
    need = Need(0, 100, 0, 900, process=900)
    point = Point.of(need, {"batch": 100}, None, 0)
    runs = Taken(SAMPLE, "CPUExecutionProvider", Settings())
    seen = confirm(Question("batch", 1000), point, runs, lambda n: Need(0, n + 1, 0, 0))
    assert Taken.asked == [100, 76]
    assert (seen.dims, seen.runs) == ({"batch": 76}, 2)
    assert (seen.inputs, seen.total) == (77, 989)


def test_a_run_of_unknown_memory_does_not_count_as_one_of_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = SimpleNamespace(peaks=Peaks(None, None))
    monkeypatch.setattr(run_model, "record_run", lambda *_, **__: record)
    with pytest.raises(RuntimeUnavailableError, match="it reports no arena"):
        ConfirmationRuns(SAMPLE, "CPUExecutionProvider", Settings()).taken({"batch": 1})


def test_a_fit_goes_by_the_predicted_process_and_the_next_value_does_not_fit() -> None:
    found = fit(SAMPLE, 144 << 20, "batch")
    (point,) = found.points
    assert found.of == "process"
    assert point.process is not None
    assert found.overhead == (48 << 20) + (64 << 20)
    assert point.total + found.overhead <= 144 << 20
    assert point.beyond is not None
    assert point.beyond > 144 << 20


def test_without_weights_tensors_are_counted_and_that_is_said(stripped: Path) -> None:
    found = fit(stripped, 64 << 20, "batch")
    assert found.of == "tensors"
    assert any("the planned tensors are counted" in warning for warning in found.warnings)
    with pytest.raises(RuntimeUnavailableError):
        fit(stripped, 64 << 20, "batch", of="process")


def test_tensors_are_counted_if_the_run_for_the_process_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def highest_bytes(prediction: ProcessPrediction, _: Mapping[str, int]) -> None:
        if prediction.model_to_run:
            raise RuntimeUnavailableError("it does not run")

    monkeypatch.setattr(ProcessPrediction, "highest_bytes", highest_bytes)
    found = fit(SAMPLE, 128 << 20, "batch")
    assert found.of == "tensors"
    assert "the planned tensors are counted: it does not run" in found.warnings


@pytest.fixture
def stripped(tmp_path: Path) -> Path:
    """Return a model whose weights lie in a file that is not there."""
    import onnx

    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[batch,64] x) => (float[batch,64] y) <float[64,64] w> { y = MatMul (x, w) }""")
    weight = model.graph.initializer.add(name="w", data_type=1, dims=(64, 64))
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="gone.data")
    path = tmp_path / "stripped.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_binding_a_program_is_binding_the_model() -> None:
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_program

    model = load_model(SAMPLE)
    late = bind_program(read_program(model).program, {"batch": 5})
    early = read_program(model, Bindings({"batch": 5})).program
    assert {v.id: v.shape for v in late.vars.values()} == {
        v.id: v.shape for v in early.vars.values()
    }


def command(*arguments: str) -> tuple[int, str]:

    result = memplan("fit", *arguments)
    return result.exit_code, result.stdout


def test_the_command_gives_pure_json_and_exit_code_zero() -> None:
    code, text = command(
        str(SAMPLE), "--memory", "128MiB", "--dim", "batch=?", "--format", "json"
    )
    document = json.loads(text)
    assert code == 0
    assert document["schema"] == "memplan.fit/1"
    assert document["points"][0]["dims"]["batch"] > 1
    assert document["of"] == "process"
    assert document["overhead"] == (48 << 20) + (64 << 20)
    assert document["other_imports"] == 64 << 20
    assert document["margin"] == 0.1
    assert document["points"][0]["process"] > 0


def test_tensors_have_an_overhead_of_their_own() -> None:
    code, text = command(
        str(SAMPLE), "--memory", "65MiB", "--dim", "batch=?", "--of", "tensors",
        "--format", "json",
    )  # fmt: skip
    document = json.loads(text)
    assert (code, document["of"]) == (0, "tensors")
    assert document["overhead"] == 64 << 20
    assert "process" not in document["points"][0]


def test_fit_of_accepts_process_and_tensors_only() -> None:
    result = memplan(
        "fit", str(SAMPLE), "--memory", "1GiB", "--dim", "batch=?", "--of", "arena"
    )
    assert result.exit_code == 2
    assert "'process', 'tensors'" in result.output


def test_the_command_ends_with_one_when_nothing_fits() -> None:
    code, text = command(str(SAMPLE), "--memory", "10", "--overhead", "0", "--dim", "batch=?")
    assert code == 1
    assert "[failed] Nothing fits: batch=1 needs " in text


def test_a_command_without_an_open_dim_is_wrong() -> None:

    result = memplan("fit", str(SAMPLE), "--memory", "1GiB")
    assert result.exit_code == 2
    assert "=?" in result.output


def test_one_dim_can_be_searched() -> None:
    result = memplan(
        "fit", str(SAMPLE), "--memory", "1GiB", "--dim", "batch=?", "--dim", "seq=?"
    )
    assert result.exit_code == 2
    assert "one dimension can be searched, not batch and seq" in result.output


def test_the_process_is_predicted_where_small_values_make_sizes_negative(
    tmp_path: Path,
) -> None:
    ones = ", ".join(["1"] * 9)
    model = parse(f"""convolved (float[1, 1, h, 8] x) => (float[1, 1, k, 6] y)
        <float[1, 1, 3, 3] w = {{{ones}}}> {{ c = Conv(x, w) y = Relu(c) }}""")
    path = tmp_path / "convolved.onnx"
    path.write_bytes(model.SerializeToString())
    found = fit(path, "1GiB", "h")
    assert found.of == "process"
    assert found.point is not None
    assert found.point.total + found.overhead <= 1 << 30
