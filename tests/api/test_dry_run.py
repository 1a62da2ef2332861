"""A dry run says what the training step that memplan would make takes, or why nobody knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse, plan_of_text
from memplan_cli import Settings, api
from memplan_cli.api.dry_run import with_dry_run
from memplan_cli.core.bindings import Inputs
from story import memplan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.core.results.report import Report


def dry(model: Path, settings: Settings | None = None) -> Report:
    asked = settings or Settings()
    return with_dry_run(api.plan(model, asked), model, asked).report


@pytest.mark.parametrize("name", ["branchy_cnn", "tied_head"])
def test_a_dry_run_is_the_plan_of_the_step_that_train_step_writes(
    name: str, samples: Path, tmp_path: Path
) -> None:
    model, step = samples / f"{name}.onnx", tmp_path / "step.onnx"
    words = ("--gradients", "--loss-fn", "mse", "-q")
    assert memplan("train-step", model, "-o", step, *words).exit_code == 0
    planned = api.plan(step, Settings(order="keep")).report.memory
    said = dry(model).training_estimate
    assert said == {"raw": planned.naive, "optimized": planned.planned}


@pytest.mark.parametrize("level", [0, 1])
def test_the_level_asked_for_is_that_of_the_step(
    level: int, samples: Path, tmp_path: Path
) -> None:
    model, step = samples / "branchy_cnn.onnx", tmp_path / "step.onnx"
    words = ("--gradients", "--loss-fn", "mse", "-q")
    assert memplan("train-step", model, "-o", step, *words).exit_code == 0
    asked = Settings(order="keep", level=level)  # type: ignore[arg-type]
    planned = api.plan(step, asked).report.memory.planned
    assert dry(model, Settings(level=level)).training_estimate["optimized"] == planned  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dims", "batch"), [({}, 1), ({"batch": 5}, 5)], ids=["assumed", "given"]
)
def test_dims_without_a_number_are_those_of_the_report(
    dims: Mapping[str, int], batch: int, samples: Path, tmp_path: Path
) -> None:
    model, step = samples / "dynamic_batch.onnx", tmp_path / "step.onnx"
    words = ("--gradients", "--loss-fn", "mse", "-q")
    assert memplan("train-step", model, "-o", step, *words).exit_code == 0
    report = dry(model, Settings(dims=dims))
    assert report.bindings["batch"].value == batch
    at = Settings(order="keep", dims={"batch": batch})
    memory = api.plan(step, at).report.memory
    assert report.training_estimate == {"raw": memory.naive, "optimized": memory.planned}


def test_dims_that_given_inputs_have_are_those_of_the_step(samples: Path) -> None:
    model = samples / "dynamic_batch.onnx"
    given = Inputs(values={"image": [[[[0.0] * 16] * 16] * 3] * 3})
    said = dry(model, Settings(inputs=given)).training_estimate
    assert said == dry(model, Settings(dims={"batch": 3})).training_estimate != {}


def test_an_operator_without_a_gradient_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    text = """g (float[3, 2] x) => (float[3, 2] y)
        <float[2, 2] w = {1, 2, 3, 4}, int64[1, 1] at = {1}, float[1, 2] by = {2, 2}> {
        h = MatMul(x, w) y = ScatterND <reduction = "mul"> (h, at, by) }"""
    onnx.save(parse(text), path)
    report = dry(path)
    assert report.training_estimate == {}
    (said,) = (note for note in report.warnings if note.startswith("dry run: "))
    assert "ScatterND" in said


def test_a_training_step_is_none_of_a_forward_model(samples: Path) -> None:
    report = dry(samples / "train_mlp.onnx")
    assert report.training_estimate == {}
    assert "dry run: the model is a training step already" in report.warnings


def test_the_command_prints_it_and_puts_it_into_json(samples: Path) -> None:
    model = samples / "branchy_cnn.onnx"
    said = memplan("report", model, "--dry-run")
    assert said.exit_code == 0
    assert "training step, planned" in said.stdout
    found = json.loads(memplan("report", model, "--dry-run", "--format", "json").stdout)
    assert found["training_estimate"] == dry(model).training_estimate
    assert "training step" not in memplan("report", model).stdout


def test_a_plan_file_has_no_model_to_train(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    words = ("--no-validate", "--quiet")
    assert memplan("optimize", samples / "tied_head.onnx", "-o", out, *words).exit_code == 0
    refused = memplan("report", out.with_suffix(".json"), "--dry-run")
    assert refused.exit_code == 2
    assert "--dry-run" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_no_report_says_it_unasked() -> None:
    assert (
        plan_of_text("g (float[4] x) => (float[4] y) { y = Exp(x) }").report.training_estimate
        == {}
    )
