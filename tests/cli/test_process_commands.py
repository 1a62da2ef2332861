"""`why --process`, `report --format json`, `gate --metric process.*`: the predicted process."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from story import memplan, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(samples: Path) -> str:
    return str(samples / "train_mlp.onnx")


def test_the_parts_of_a_process_are_listed_with_what_removes_them(model: str) -> None:
    result = memplan("why", model, "--process")
    assert result.exit_code == 0, result.output
    assert "session and graph" in result.stdout
    for number, command in enumerate(("optimize", "settings"), 1):
        assert re.search(rf"^\[\d\]:  memplan {command} ", result.stdout, re.MULTILINE)
        assert re.search(rf" \[{number}\]$", result.stdout, re.MULTILINE)


def test_the_parts_are_json_too_largest_first(model: str) -> None:
    found = json.loads(memplan("why", model, "--process", "--format", "json").stdout)
    assert set(found["process"]) == {"load", "run", "private", "file", "kept"}
    sizes = [part["run"] for part in found["parts"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == found["process"]["run"]


ASKED = (
    ("why", "--process"),
    ("gate", "--metric", "process.run", "--max-memory", "1GiB"),
    ("fit", "--of", "process", "--memory", "200MiB", "--dim", "side=?"),
)


def _in_blocks(folder: Path, made_up: str) -> str:
    """Write a convolution over pictures of any size, its result's dims named by an exporter."""
    filters = np.ones((16, 3, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "pictures",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "side", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [made_up, 16, made_up, 32])],
        [numpy_helper.from_array(filters, "w")],
    )
    version = helper.make_opsetid("", 17)
    path = folder / "pictures.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[version], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize("words", ASKED, ids=lambda words: words[0])
def test_a_process_is_predicted_at_the_sizes_that_are_assumed(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    path = _in_blocks(tmp_path, "Convy_dim_0")
    result = memplan(words[0], path, *words[1:])
    assert result.exit_code == 0, result.output
    assert "batch=1" in result.output


def test_a_report_in_json_predicts_at_the_sizes_that_are_bound(tmp_path: Path) -> None:
    path = _in_blocks(tmp_path, "Convy_dim_0")

    def at(*words: str) -> int:
        document = json.loads(memplan("report", path, "--format", "json", *words).stdout)
        return int(document["runtime"]["predicted"]["original"]["process"]["run"])

    assert at("--dim", "batch=64", "--dim", "side=64") > at("--dim", "side=64") + 10_000_000


def _counting(folder: Path) -> str:
    path = folder / "counting.onnx"
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        counting (float[8] x) => (float[n] y) { i = NonZero(x)
            r = Squeeze(i) y = Gather(x, r) }"""
    )
    onnx.save(model, path)
    return str(path)


def test_sizes_that_data_decides_are_those_of_a_run(tmp_path: Path) -> None:
    path = _counting(tmp_path)
    assert memplan("why", path, "--process").exit_code == 0
    gate = ("gate", path, "--metric", "process.run", "--max-memory", "1GiB")
    assert memplan(*gate).exit_code == 0


def test_without_a_run_the_tensor_that_data_decides_is_named(tmp_path: Path) -> None:
    result = memplan("why", _counting(tmp_path), "--process", "--no-run")
    assert result.exit_code == 2
    assert "data decides the size of 'i'" in result.output
    assert "memplan optimize" in result.output


def test_a_process_and_a_tensor_are_not_explained_at_once(model: str) -> None:
    result = memplan("why", model, "--process", "--tensor", "x")
    assert result.exit_code == 2
    assert "remove one of them" in result.output


def test_a_plan_has_no_process_of_its_own(tmp_path: Path) -> None:
    result = memplan("why", str(tmp_path / "a.memplan.json"), "--process")
    assert result.exit_code == 2
    assert "a process can only be predicted for a model" in result.output


def test_a_report_in_json_predicts_both_processes_and_observes_none(model: str) -> None:
    runtime = json.loads(memplan("report", model, "--format", "json").stdout)["runtime"]
    for side in ("original", "optimized"):
        assert runtime["predicted"][side]["process"]["run"] > 0
        assert runtime["observed"][side]["first_run_peak"] is None
        assert runtime["observed"][side]["process"] is None


def test_a_report_in_json_is_the_same_bytes_whenever_it_is_made(model: str) -> None:
    first, second = (memplan("report", model, "--format", "json").stdout for _ in range(2))
    assert first == second
    assert json.loads(first)["runtime"]["predicted"]["original"]["process"]["load"]


def test_a_gate_goes_by_the_predicted_process_of_a_model(model: str) -> None:
    passed = memplan("gate", model, "--metric", "process.run", "--max-memory", "1GiB")
    assert passed.exit_code == 0, passed.output
    failed = memplan("gate", model, "--metric", "process.load", "--max-memory", "1MiB")
    assert failed.exit_code == 1
    assert "process.load" in failed.output


def test_a_gate_takes_every_size_of_a_models_report_and_what_is_predicted_without_a_run(
    model: str,
) -> None:
    shown = json.loads(memplan("report", model, "--format", "json", "--no-run").stdout)
    foreseen = shown["runtime"]["predicted"]
    sizes = {
        **{k: size for k, size in shown["memory"].items() if type(size) is int},
        **{f"original.{name}": size for name, size in shown["original"].items()},
        **{f"levels.{level}": size for level, size in shown["levels"].items()},
        **{f"predicted.{k}": v for k, v in foreseen["optimized"].items() if k != "process"},
    }
    process = {f"process.{name}" for name in foreseen["original"]["process"]}
    asked = [word for name in (*sizes, *process) for word in ("--metric", name)]
    words = ("--no-run", "--max-memory", "1GiB", "--format", "json", *asked)
    result = memplan("gate", model, *words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["models"][0]["metrics"]
    assert {name: found[name] for name in sizes} == sizes
    assert set(found) == set(sizes) | process


def test_a_gate_says_what_makes_a_plan_where_nothing_was_observed(model: str) -> None:
    result = memplan("gate", model, "--metric", "observed.weights", "--max-memory", "1GiB")
    assert result.exit_code == 2
    assert "observed.weights of" in result.stderr
    assert "memplan optimize" in result.stderr


def test_a_baseline_of_another_runtime_is_compared_only_if_that_is_allowed(
    model: str, tmp_path: Path
) -> None:
    baseline = tmp_path / "baseline.json"
    words = ("gate", model, "--metric", "process.private", "--baseline", str(baseline))
    assert memplan(*words, "--update-baseline").exit_code == 0
    document = baseline.read_text().replace("onnxruntime 1.", "onnxruntime 0.")
    baseline.write_text(document)
    refused = memplan(*words)
    assert refused.exit_code == 2
    assert "the baseline was made with runtime onnxruntime 0." in refused.stderr
    assert "this check with onnxruntime 1." in refused.stderr
    assert "--allow-version-change compares them" in refused.stderr
    compared = memplan(*words, "--allow-version-change")
    assert compared.exit_code == 0, compared.output
    assert "onnxruntime 0." in compared.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("report",),
        ("gate", "--max-memory", "1GiB"),
        ("diff", "train_mlp.onnx"),
        ("why", "--process"),
    ],
    ids=lambda words: words[0],
)
def test_a_model_with_free_dims_is_run_once_for_their_sizes_and_loaded_once(
    words: tuple[str, ...],
    samples: Path,
    started_jobs: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(samples)
    result = memplan(words[0], "dynamic_batch.onnx", *words[1:])
    assert result.exit_code == 0, result.output
    other_models = ["write_light_dump"] if words[0] == "diff" else []
    assert started_jobs == ["run", "write_light_dump", *other_models]


def test_a_written_model_with_the_default_graph_is_loaded_once_for_its_report(
    samples: Path, tmp_path: Path, started_jobs: list[str]
) -> None:
    written = tmp_path / "written.onnx"
    optimized = memplan("optimize", samples / "train_mlp.onnx", "-o", written)
    assert optimized.exit_code == 0, optimized.output
    started_jobs.clear()
    assert memplan("report", written).exit_code == 0
    assert started_jobs == ["write_light_dump"]


def test_a_model_whose_sizes_depend_on_data_is_loaded_once_before_it_is_run(
    tmp_path: Path, started_jobs: list[str]
) -> None:
    text = """m (float[64] x) => (int64[1,u] z)
        { a = Relu(x) i = NonZero(a) j = Neg(i) z = Neg(j) }"""
    model = write(tmp_path / "data.onnx", text)
    assert memplan("why", model, "--process").exit_code == 0
    assert started_jobs.count("write_light_dump") == 1
