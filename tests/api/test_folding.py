"""``--fold-constants`` from the file that is read to the files that are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from builders import parse
from memplan_cli import api
from memplan_cli.api.output.weight_files import possible_weights
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError, PlanError
from memplan_cli.planning.plan_file import checked_plan, read_plan
from memplan_cli.settings.settings import Settings
from story import memplan

if TYPE_CHECKING:
    from memplan_cli.settings.choices import Level

SAMPLE = Path(__file__).parents[2] / "sample_models" / "tied_head.onnx"
FOLD = Settings(fold_constants=True)
HEAD = 256 * 32 * 4


def saved(path: Path, text: str) -> Path:
    onnx.save(parse(text), path)
    return path


def outside(folder: Path, name: str = "net.onnx") -> Path:
    """Return the sample with its weights in another file."""
    model = onnx.load(SAMPLE)
    path = folder / name
    onnx.save(
        model, path, save_as_external_data=True, location=f"{name}.data", size_threshold=0
    )
    return path


def initializers(path: Path) -> dict[str, TensorProto]:
    model = onnx.load(path, load_external_data=False)
    return {tensor.name: tensor for tensor in model.graph.initializer}


def test_the_report_says_what_of_the_peak_is_foldable_and_the_option_that_folds_it() -> None:
    report = api.plan(SAMPLE).report
    assert report.memory.foldable == HEAD
    assert [(t.name, t.op, t.bytes, t.left) for t in report.foldable] == [
        ("head", "Transpose", HEAD, "")
    ]
    text = memplan("report", SAMPLE, "-v").output
    assert "32.00 KiB of the lower bound depend on initializers and constants only" in text
    assert "--fold-constants" in text


def test_folded_it_is_a_weight_and_the_peak_is_lower_by_it() -> None:
    before, after = api.plan(SAMPLE).report, api.plan(SAMPLE, FOLD).report
    assert after.memory.foldable == 0
    assert after.foldable == ()
    assert after.memory.weights == before.memory.weights + HEAD
    assert after.memory.live_peak == 2048
    assert (after.folded.added, after.folded.dropped) == (HEAD, 0), (
        "the table is read elsewhere"
    )


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_written_model_gives_the_same_bits_at_each_level(
    tmp_path: Path, level: Level
) -> None:
    done = api.optimize(SAMPLE, replace(FOLD, level=level), out=tmp_path / "o.onnx")
    assert done.passed
    assert done.plan.report.validation is not None
    assert done.plan.report.validation.bit_identical
    assert done.data_files == (), "a small model stays in one file"
    assert "head" in initializers(tmp_path / "o.onnx")
    read_plan(tmp_path / "o.json")
    assert api.validate(tmp_path / "o.onnx", SAMPLE, extras=["replay"]).passed


def test_external_weights_stay_where_they_are_and_new_ones_get_a_file(tmp_path: Path) -> None:
    model = outside(tmp_path)
    before = model.with_name("net.onnx.data").read_bytes()
    done = api.optimize(model, FOLD)
    assert done.passed
    assert [path.name for path in done.data_files] == ["net.memplan.folded.onnx.data"]
    assert done.data_files[0].stat().st_size == HEAD
    assert model.with_name("net.onnx.data").read_bytes() == before
    wanted = numpy_helper.to_array(onnx.load(SAMPLE).graph.initializer[0]).T
    assert done.data_files[0].read_bytes() == wanted.tobytes()


def test_the_data_file_is_replaced_and_goes_with_its_output(tmp_path: Path) -> None:
    model = outside(tmp_path)
    data = tmp_path / "net.memplan.folded.onnx.data"
    for _ in range(2):
        assert api.optimize(model, FOLD, check=None).model
        assert data.stat().st_size == HEAD
    assert api.optimize(model, check=None).model
    assert not data.exists(), "nobody would find it again"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "net.memplan.json", "net.memplan.onnx", "net.onnx", "net.onnx.data",
    ]  # fmt: skip


def test_a_file_of_somebody_elses_is_not_written_over(tmp_path: Path) -> None:
    model = outside(tmp_path)
    data = tmp_path / "net.memplan.folded.onnx.data"
    data.write_text("mine")
    with pytest.raises(ModelError, match="is in the way"):
        api.optimize(model, FOLD)
    assert data.read_text() == "mine"
    assert not (tmp_path / "net.memplan.onnx").exists()


def test_an_output_in_another_folder_has_all_its_data_there(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    done = api.optimize(outside(tmp_path), FOLD, out=tmp_path / "other" / "o.onnx")
    assert done.passed
    assert sorted(path.name for path in done.data_files) == [
        "net.onnx.data",
        "o.folded.onnx.data",
    ]


def test_nothing_is_left_behind_where_folding_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = outside(tmp_path)
    api.optimize(model, FOLD, check=None)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> None:
        raise ModelError("no more")

    from memplan_cli.onnx_io.weights import folding as folded

    monkeypatch.setattr(folded, "_declare", fail)
    with pytest.raises(ModelError, match="no more"):
        api.optimize(model, FOLD, check=None)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_other_outputs_are_a_failed_check_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = outside(tmp_path)
    from memplan_cli.onnx_io.weights import folding as constants

    monkeypatch.setattr(constants, "_restored", lambda value, _: np.asarray(value) + 1)
    done = api.optimize(model, FOLD)
    assert not done.passed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "net.onnx.data"]


def test_weights_that_are_missing_are_one_clear_error(tmp_path: Path) -> None:
    model = outside(tmp_path)
    model.with_name("net.onnx.data").unlink()
    result = memplan("optimize", model, "--fold-constants", "--no-validate")
    assert result.exit_code == 2
    assert "constants cannot be folded" in result.output
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert memplan("report", model, "--fold-constants").exit_code == 0, "a plan needs no data"


def test_an_excluded_tensor_stays_and_is_exposed(tmp_path: Path) -> None:
    chosen = replace(FOLD, exclude=("head",), expose=True)
    done = api.optimize(SAMPLE, chosen, out=tmp_path / "o.onnx")
    assert done.passed
    assert done.plan.by_id["head"].pinned == "excluded by 'head'"
    assert "head" not in initializers(tmp_path / "o.onnx")
    assert done.plan.report.memory.foldable == 0
    assert [each.reason for each in done.plan.report.folded.left] == ["'head' names it"]


def test_a_default_that_a_caller_may_replace_is_not_folded(tmp_path: Path) -> None:
    text = "a (float[3,2] x, float[2,3] w) => (float[3,2] y) <float[2,3] w = {1,2,3,4,5,6}> {"
    path = saved(tmp_path / "m.onnx", f"{text} t = Transpose(w) y = Add(x, t) }}")
    done = api.optimize(path, FOLD)
    assert done.passed
    assert done.plan.report.folded.tensors == ()
    assert list(initializers(tmp_path / "m.memplan.onnx")) == ["w"]


def test_a_constant_output_stays_a_nodes_result(tmp_path: Path) -> None:
    text = "a (float[3,2] x) => (float[3,2] y, float[3,2] t) <float[2,3] w = {1,2,3,4,5,6}> {"
    path = saved(tmp_path / "m.onnx", f"{text} u = Neg(w) t = Transpose(w) y = Add(x, t) }}")
    done = api.optimize(path, FOLD)
    assert done.passed
    assert done.plan.report.memory.outputs == 48


SUBGRAPH = """a (bool c, float[3,2] x) => (float[3,2] y) <float[2,3] w = {1,2,3,4,5,6}> {
  y = If (c) <then_branch = one () => (float[3,2] p) { t = Transpose(w) p = Add(x, t) },
              else_branch = other () => (float[3,2] q) { t2 = Transpose(w) q = Sub(x, t2) }> }"""


def test_constants_of_subgraphs_are_folded_where_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", SUBGRAPH)
    for value in ("0", "1"):
        done = api.optimize(path, replace(FOLD, inputs={"c": np.bool_(int(value))}))  # type: ignore[arg-type]
        assert done.passed
        assert [tensor.bytes for tensor in done.plan.report.folded.tensors] == [24], (
            "not taken"
        )
    done = api.optimize(path, FOLD)
    assert done.passed
    assert [tensor.bytes for tensor in done.plan.report.folded.tensors] == [24, 24]
    assert initializers(tmp_path / "m.memplan.onnx") == {}


def test_a_target_has_the_folded_graph_among_its_candidates(tmp_path: Path) -> None:
    done = api.optimize(
        outside(tmp_path), replace(FOLD, target="cpu"), out=tmp_path / "o.onnx"
    )
    assert done.passed
    assert {path.name for path in tmp_path.iterdir()} >= {"o.onnx", "o.json"}
    left = [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert left == []


def test_recomputation_and_donation_compose_with_it(tmp_path: Path) -> None:
    text = """a (float[8,8] old, float[8,8] x) => (float[8,8] fresh) <float[8,8] w> {
      t = Transpose(w) a = MatMul(x, t) b = Relu(a) c = MatMul(b, t) d = Add(c, a)
      fresh = Add(old, d) }"""
    model = parse(text)
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    model.graph.initializer.append(numpy_helper.from_array(value, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    chosen = replace(FOLD, recompute="auto", budget="90%", donate={"old": "fresh"})  # type: ignore[arg-type]
    done = api.optimize(path, replace(chosen, budget="100%"))  # type: ignore[arg-type]
    assert done.passed
    assert done.plan.report.donated.pairs == (("old", "fresh"),)
    assert [tensor.name for tensor in done.plan.report.folded.tensors] == ["t"]


def test_a_model_left_as_it_is_is_not_folded() -> None:
    from memplan_cli.settings.settings import MemParam

    left = replace(FOLD, mem_param=MemParam(optimize_test=False))
    report = api.plan(SAMPLE, left).report
    assert report.folded.tensors == ()
    assert report.memory.planned == report.memory.naive


def test_the_gate_knows_the_metric() -> None:
    kept = memplan("gate", SAMPLE, "--metric", "foldable", "--max-memory", "1KiB")
    assert kept.exit_code == 1
    line = ("--metric", "foldable", "--max-memory", "1KiB", "--fold-constants")
    assert memplan("gate", SAMPLE, *line).exit_code == 0


def wrong(change: Any, settings: Settings = Settings()) -> str:  # noqa: ANN401, B008 - a function
    data = to_json(api.plan(SAMPLE, settings))
    checked_plan(json.loads(json.dumps(data)))
    change(data["report"])
    with pytest.raises(PlanError) as error:
        checked_plan(data)
    return str(error.value)


def test_a_plan_file_that_lies_about_constants_is_refused() -> None:
    assert "foldable" in wrong(lambda r: r["memory"].update(foldable=1))
    assert "foldable" in wrong(lambda r: r["memory"].update(foldable=None))
    assert "foldable" in wrong(lambda r: r.pop("foldable"))
    assert "the peak has no such tensor" in wrong(
        lambda r: r["foldable"].append({"name": "x", "op": "Y", "bytes": 5, "left": ""})
    )
    assert "listed twice" in wrong(lambda r: r["foldable"].extend(r["foldable"]))
    assert "is missing" in wrong(lambda r: r["foldable"][0].pop("op"))
    assert "folded constants" in wrong(lambda r: r["folded"].update(added=3), FOLD)
    fresh = {"tensors": [{"name": "q", "op": "Neg", "bytes": 1, "left": ""}], "added": 1}
    assert "do not ask for" in wrong(
        lambda r: r.update(folded={**fresh, "left": [], "dropped": 0})
    )


def test_a_plan_of_before_says_nothing_of_it() -> None:
    data = to_json(api.plan(SAMPLE))
    del data["report"]["memory"]["foldable"], data["report"]["foldable"]
    assert checked_plan(data).report.memory.foldable is None


def test_dequantized_weights_are_said_with_their_growth() -> None:
    text = """a (float[1,4] x) => (float[1,4] y) <int8[4,4] q, float s = {0.5}> {
      w = DequantizeLinear(q, s) y = MatMul(x, w) }"""
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.int8), "q"))
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_program
    from memplan_cli.planning.notes import weights_notes

    (note,) = weights_notes(read_program(model, Bindings()).program)
    assert note.startswith("1 weights of 16 B are dequantized to 64 B")


def test_the_folder_of_a_folded_output_is_named_after_it(tmp_path: Path) -> None:
    assert "a.b.folded.onnx.data" in possible_weights(tmp_path / "a.b.onnx")
    done = api.optimize(outside(tmp_path), FOLD, out=tmp_path / "a.b.onnx", check=None)
    assert [path.name for path in done.data_files] == ["a.b.folded.onnx.data"]
