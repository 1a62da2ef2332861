"""``memplan soak``, and ``memplan settings`` and ``memplan gate`` within bounds of dims."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli.loading.metadata import scanned_metadata
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
agraph (float[batch,64] x) => (float[batch,64] y) {
  a = Exp(x)
  b = Concat<axis=1>(a, x, a)
  c = Softmax<axis=1>(b)
  d = ReduceMax<keepdims=1>(c)
  y = Mul(a, d)
}
"""

EXPORTED = """
agraph (int64[batch,seq] x) => (float[Reshapes_dim_0, 32] y) {
  rows = Constant<value = int64[2] {7, 32}>()
  wide = Constant<value = int64[2] {-1, 32}>()
  table = ConstantOfShape<value = float[1] {0.5}>(rows)
  taken = Gather(table, x)
  flat = Reshape(taken, wide)
  y = Softmax<axis=-1>(flat)
}
"""


TILED = """
agraph (float[batch,width] x) => (float[batch,tiles,32] y) {
  to = Constant<value = int64[3] {0, -1, 32}>()
  tiles = Reshape(x, to)
  y = Softmax<axis=-1>(tiles)
}
"""
"""The width must be a multiple of 32."""

TIED = """
agraph (float[h,64] x, float[w,64] z) => (float[h,64] y) {
  a = Exp(x)
  [add_both] y = Add(a, z)
}
"""
"""Both inputs have one length."""


def saved(folder: Path, text: str) -> Path:
    path = folder / "net.onnx"
    onnx.save(parse(text), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serving") / "net.onnx"
    onnx.save(parse(MODEL), path)
    return path


def test_a_soak_compares_configurations_and_keeps_its_bound(model: Path) -> None:
    words = ("soak", model, "--bounds", "batch=1..64", "--requests", "20", "--quiet")
    done = memplan(*words, "--format", "json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "memplan.soak/1"
    assert found["requests"] == {"asked": 20, "served": 20}
    assert found["serving"]["sizes"] == 64
    assert found["serving"]["sizes_simulated"] == 24
    courses = {one["name"]: one for one in found["configurations"]}
    assert {"defaults", "chosen", "no arena"} <= courses.keys()
    assert 0 < courses["chosen"]["held"] <= found["serving"]["bound"]
    assert len(courses["chosen"]["samples"]) >= 20


def test_a_soak_is_drawn_as_text(model: Path) -> None:
    words = ("soak", model, "--bounds", "batch=1..4", "--requests", "3", "--quiet")
    text = memplan(*words, "--sequence", "alternating").stdout
    assert "[ok] The outputs are the same." in text
    assert "[ok] The arena stayed within its bound." in text
    assert ": 3 requests, alternating, seed 0" in text


def test_a_soak_whose_time_is_over_says_how_many_requests_it_served(model: Path) -> None:
    words = ("soak", model, "--bounds", "batch=1..4", "--requests", "5000", "--quiet")
    done = memplan(*words, "--time-limit", "0.001", "--format", "json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["requests"]
    assert found["asked"] == 5000
    assert 1 <= found["served"] < 5000
    late = memplan(*words, "--timeout", "0.01")
    assert late.exit_code == 2
    assert "--timeout" in late.stderr


def test_settings_within_bounds_are_python_with_the_bound_on_top(model: Path) -> None:
    done = memplan("settings", model, "--bounds", "batch=1..64", "--quiet")
    assert done.exit_code == 0, done.stderr
    compile(done.stdout, "settings.py", "exec")
    assert "for any sequence of requests" in done.stdout.replace("\n# ", " ")
    words = ("settings", model, "--bounds", "batch=1..64", "--measure", "--format", "json")
    found = json.loads(memplan(*words, "--quiet").stdout)
    bound = found["serving"]["bound"]
    assert found["settings"]["arena"]["initial_chunk_size_bytes"] == bound
    assert found["serving"]["live_peak"] <= bound


def test_settings_of_one_size_say_so_and_name_the_option(model: Path) -> None:
    assert "--bounds batch=A..B" in memplan("settings", model, "--quiet").stdout
    bound = memplan("settings", model, "--dim", "batch=3", "--quiet").stdout
    assert "--bounds" not in bound


def test_settings_have_the_bound_of_a_model_whose_exporter_made_names_up(
    tmp_path: Path,
) -> None:
    path = tmp_path / "exported.onnx"
    onnx.save(parse(EXPORTED), path)
    words = ("settings", path, "--quiet", "--format", "json", "--bounds", "batch=1..3")
    bound = json.loads(memplan(*words, "--bounds", "seq=2..9").stdout)["serving"]["bound"]
    # What is invented is the product of both: 27 rows of 32 float32 and their softmax.
    assert 27 * 32 * 4 <= bound <= 3 * 27 * 32 * 4
    assert memplan(*words, "--dim", "seq=9").exit_code == 0
    done = memplan("settings", path, "--quiet", "--bounds", "Reshapes_dim_0=1..3")
    assert done.exit_code == 2
    assert "batch" in done.stderr
    assert "Traceback" not in done.stderr


def test_optimize_within_bounds_writes_settings_of_the_range(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    words = ("optimize", model, "-o", out, "--quiet", "--format", "json")
    done = memplan(*words, "--bounds", "batch=1..64")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    (said,) = (
        line
        for line in report["warnings"]
        if "in any sequence of them the arena holds at most " in line
    )
    assert "batch 1..64" in said
    arena = report["runtime"]["settings"]["arena"]
    # The largest request: a row of 192 twice, one of 64, and a number, for 64 rows.
    assert arena["initial_chunk_size_bytes"] > 64 * 64 * 4
    written = recorded_settings(scanned_metadata(out))
    assert written is not None
    assert written.settings.arena == arena
    one = json.loads(memplan(*words, "--dim", "batch=1").stdout)
    assert not any("in any sequence" in line for line in one["warnings"])


def test_sizes_of_a_range_have_its_step(tmp_path: Path) -> None:
    path = saved(tmp_path, TILED)
    sizes = ("--bounds", "batch=1..2", "--bounds", "width=32..320:32", "--quiet")
    done = memplan("soak", path, *sizes, "--requests", "20", "--format", "json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bounds"] == {"batch": [1, 2], "width": [32, 320, 32]}
    assert found["serving"]["sizes"] == 20
    assert not found["notes"]
    done = memplan("settings", path, *sizes, "--measure")
    assert done.exit_code == 0, done.stderr
    assert "width=32..320:32" in done.stdout


def test_without_a_step_sizes_at_which_the_model_runs_are_found(tmp_path: Path) -> None:
    path = saved(tmp_path, TILED)
    sizes = ("--bounds", "batch=1..2", "--bounds", "width=20..320", "--quiet")
    done = memplan("soak", path, *sizes, "--requests", "20", "--format", "json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    (note,) = (note for note in found["notes"] if "sizes that were tried" in note)
    assert "NAME=A..B:STEP" in note
    assert "does not run at" in note
    assert 1 < found["serving"]["sizes"] < 300


def test_optimize_within_bounds_finds_sizes_of_inputs_that_depend_on_each_other(
    tmp_path: Path,
) -> None:
    path, out = saved(tmp_path, TIED), tmp_path / "out.onnx"
    words = ("optimize", path, "-o", out, "--quiet")
    done = memplan(*words, "--bounds", "h=8..64", "--bounds", "w=16..100")
    assert done.exit_code == 0, done.stderr
    report = json.loads(memplan("report", out.with_suffix(".json"), "--format", "json").stdout)
    sizes = {name: dim["value"] for name, dim in report["bindings"].items()}
    assert {dim["source"] for dim in report["bindings"].values()} == {"bounds"}
    assert sizes["h"] == sizes["w"]
    assert report["validation"]["bit_identical"]
    assert f"at h={sizes['h']}, w={sizes['w']}, not the largest size" in done.stdout


def test_if_the_model_runs_nowhere_within_bounds_sizes_and_node_are_named(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path, TIED)
    words = ("optimize", path, "-o", tmp_path / "out.onnx", "--quiet")
    done = memplan(*words, "--bounds", "h=2..4", "--bounds", "w=16..100")
    assert done.exit_code == 2
    assert "net.onnx runs at none of" in done.stderr
    assert "at h=4, w=100" in done.stderr
    assert "add_both" in done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_a_report_within_bounds_begins_with_the_size_of_its_figures(
    model: Path, tmp_path: Path
) -> None:
    sizes = ("--bounds", "batch=1..64", "--quiet")
    done = memplan("optimize", model, "-o", tmp_path / "out.onnx", *sizes)
    size = "Process and times: at batch=64, the largest size within the bounds."
    above = done.stdout.partition("Process memory")[0].splitlines()
    assert above[above.index(size) + 1].startswith("Settings: for all sizes within the bounds")
    predicted = memplan("report", model, *sizes).stdout
    assert size in predicted.partition("Process memory")[0].splitlines()


def test_optimize_within_bounds_runs_nothing_that_is_larger_than_the_machine(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    words = ("optimize", model, "-o", out, "--quiet", "--format", "json")
    done = memplan(*words, "--bounds", "batch=1..4000000000")
    assert done.exit_code == 0, done.stderr
    (said,) = (line for line in json.loads(done.stdout)["warnings"] if "one size" in line)
    assert "was not run" in said


def test_known_sizes_larger_than_the_machine_are_enough_to_run_nothing(tmp_path: Path) -> None:
    text = "g (float[batch,64] x) => (float y) { z = NonZero(x)  y = Cast <to = 1> (z) }"
    path = tmp_path / "model.onnx"
    onnx.save(parse(text), path)
    words = ("optimize", path, "--quiet", "--format", "json")
    done = memplan(*words, "--bounds", "batch=1..4000000000")
    assert done.exit_code == 0, done.stderr
    (said,) = (line for line in json.loads(done.stdout)["warnings"] if "one size" in line)
    assert "was not run" in said


def test_optimize_within_bounds_says_where_no_run_chose_settings(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    words = ("optimize", model, "-o", out, "--quiet", "--format", "json", "--no-run")
    done = memplan(*words, "--bounds", "batch=1..64")
    assert done.exit_code == 0, done.stderr
    assert not any("whatever" in line for line in json.loads(done.stdout)["warnings"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bounds", "bach=1..8"), "did you mean 'batch'"),
        (("--bounds", "batch=8..1"), "is empty or exceeds"),
        (("--bounds", "batch=1-8"), "expected LOW..HIGH"),
        (("--bounds", "batch"), "--bounds takes NAME=A..B"),
        (("--bounds", "batch=1..8", "--dim", "batch=2"), "both a number and bounds"),
        ((), "--bounds batch=A..B"),
        (("--bounds", "batch=1..8", "--requests", "0"), "--requests"),
        (("--bounds", "batch=1..8", "--no-run"), "--no-run"),
    ],
)
def test_bad_input_is_one_message(model: Path, words: tuple[str, ...], said: str) -> None:
    done = memplan("soak", model, *words, "--quiet")
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_within_bounds_refuse_a_search_for_one_size(model: Path) -> None:
    done = memplan("settings", model, "--bounds", "batch=1..8", "--tune", "--quiet")
    assert done.exit_code == 2
    assert "--tune cannot be combined with --bounds" in done.stderr
