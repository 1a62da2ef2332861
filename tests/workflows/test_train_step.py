"""A training step made small: within a budget, at checkpoints, or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memplan_cli import Settings, workflows
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.training.verbs import LossFunction, Optimizer, Recipe
from memplan_cli.workflows.train_step import Recomputation, StepFiles, train_step

SAMPLE = Path(__file__).parents[2] / "sample_models" / "branchy_cnn.onnx"
RECIPE = Recipe(LossFunction("mse", "labels", ""), Optimizer("sgd"))


def peak(path: Path) -> int:
    found = workflows.plan(path, Settings(order="keep")).report.memory.live_peak
    assert found is not None
    return found


def test_a_budget_makes_the_step_need_less(tmp_path: Path) -> None:
    whole, small = (
        StepFiles(SAMPLE, tmp_path / "a.onnx"),
        StepFiles(SAMPLE, tmp_path / "b.onnx"),
    )
    train_step(RECIPE, whole)
    train_step(RECIPE, small, Recomputation(budget=0.45))
    assert peak(small.target) <= 0.45 * peak(whole.target)


def test_checkpoints_run_the_rest_again(tmp_path: Path) -> None:
    files = StepFiles(SAMPLE, tmp_path / "c.onnx")
    train_step(RECIPE, files, Recomputation(("stem_relu", "joined")))
    outputs = [name for node in load_model(files.target).graph.node for name in node.output]
    assert any(re.search(r"__recompute\d*$", name) for name in outputs)


def test_a_budget_that_cannot_be_met_writes_nothing(tmp_path: Path) -> None:
    files = StepFiles(SAMPLE, tmp_path / "d.onnx")
    with pytest.raises(PlanError, match="cannot be met"):
        train_step(RECIPE, files, Recomputation(budget=1000))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_no_forward_tensor_is_refused(tmp_path: Path) -> None:
    files = StepFiles(SAMPLE, tmp_path / "e.onnx")
    with pytest.raises(SettingsError, match="stem_rulu"):
        train_step(RECIPE, files, Recomputation(("stem_rulu",)))
