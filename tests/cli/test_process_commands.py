"""`why --process`, `report --format json`, `gate --metric process.*`: the predicted process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from story import memplan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(samples: Path) -> str:
    return str(samples / "train_mlp.onnx")


def test_the_parts_of_a_process_are_listed_with_what_removes_them(model: str) -> None:
    result = memplan("why", model, "--process")
    assert result.exit_code == 0, result.output
    assert "session and graph" in result.stdout
    assert "removed by" in result.stdout


def test_the_parts_are_json_too_largest_first(model: str) -> None:
    found = json.loads(memplan("why", model, "--process", "--format", "json").stdout)
    assert set(found["process"]) == {"load", "run", "private", "file"}
    sizes = [part["run"] for part in found["parts"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == found["process"]["run"]


def test_a_process_and_a_tensor_are_not_explained_at_once(model: str) -> None:
    result = memplan("why", model, "--process", "--tensor", "x")
    assert result.exit_code == 2
    assert "give one of them" in result.output


def test_a_plan_has_no_process_of_its_own(tmp_path: Path) -> None:
    result = memplan("why", str(tmp_path / "a.memplan.json"), "--process")
    assert result.exit_code == 2
    assert "a process is that of a model" in result.output


def test_a_report_in_json_predicts_both_processes_and_observes_none(model: str) -> None:
    runtime = json.loads(memplan("report", model, "--format", "json").stdout)["runtime"]
    for side in ("original", "optimized"):
        assert runtime["predicted"][side]["process"]["run"] > 0
        assert runtime["observed"][side]["first_run_peak"] is None


def test_a_gate_goes_by_the_predicted_process_of_a_model(model: str) -> None:
    passed = memplan("gate", model, "--metric", "process.run", "--max-memory", "1GiB")
    assert passed.exit_code == 0, passed.output
    failed = memplan("gate", model, "--metric", "process.load", "--max-memory", "1MiB")
    assert failed.exit_code == 1
    assert "process.load" in failed.output


def test_a_baseline_says_that_another_runtime_made_it(model: str, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    words = ("gate", model, "--metric", "process.private", "--baseline", str(baseline))
    assert memplan(*words, "--update-baseline").exit_code == 0
    document = baseline.read_text().replace("onnxruntime 1.", "onnxruntime 0.")
    baseline.write_text(document)
    result = memplan(*words)
    assert result.exit_code == 0, result.output
    assert "onnxruntime 0." in result.output
