"""A training step made small: within a budget, at checkpoints, or refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from builders import parse
from memplan_cli import Settings, api
from memplan_cli.api.train_step import train_step
from memplan_cli.errors import MemplanError, SettingsError
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.report import TRAIN_STEP
from memplan_cli.features.training.train_step import Recipe
from memplan_cli.onnx_io.load import load_model
from perceptrons import perceptron

SAMPLE = Path(__file__).parents[2] / "sample_models" / "branchy_cnn.onnx"
RECIPE = Recipe(LossFunction("mse", "labels", ""), Optimizer("sgd"))


def peak(path: Path) -> int:
    found = api.plan(path, Settings(order="keep")).report.memory.resident
    assert found is not None
    return found


def test_a_budget_makes_the_step_need_less(tmp_path: Path) -> None:
    whole, small = tmp_path / "a.onnx", tmp_path / "b.onnx"
    train_step(SAMPLE, whole, recipe=RECIPE)
    train_step(SAMPLE, small, recipe=RECIPE, budget=0.45)
    assert peak(small) <= 0.45 * peak(whole)


def test_checkpoints_run_the_rest_again(tmp_path: Path) -> None:
    out = tmp_path / "c.onnx"
    train_step(SAMPLE, out, recipe=RECIPE, checkpoints=("stem_relu", "joined"))
    outputs = [name for node in load_model(out).graph.node for name in node.output]
    assert any(re.search(r"__recompute\d*$", name) for name in outputs)


def test_a_budget_that_cannot_be_met_writes_nothing(tmp_path: Path) -> None:
    onnx.save(perceptron(8, 64), tmp_path / "net.onnx")
    made = train_step(tmp_path / "net.onnx", tmp_path / "d.onnx", recipe=RECIPE, budget=1000)
    assert "the budget of 1000 B cannot be met" in made.missed
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert "memplan optimize" not in TRAIN_STEP["text"](made)
    assert json.loads(TRAIN_STEP["json"](made))["written"] is False


def test_an_empty_name_of_the_loss_is_no_loss_function(tmp_path: Path) -> None:
    with pytest.raises(MemplanError) as refusal:
        train_step(SAMPLE, tmp_path / "step.onnx", loss="")
    assert "None" not in str(refusal.value)


def test_a_checkpoint_that_is_no_forward_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="stem_rulu"):
        train_step(SAMPLE, tmp_path / "e.onnx", recipe=RECIPE, checkpoints=("stem_rulu",))


_NUMBERS = "{" + ", ".join(["1"] * 16) + "}"

TIED = f"""g (float[2,4] x) => (float y)
    <float[4,4] W = {_NUMBERS}, float[4,4] U = {_NUMBERS}, float[4,4] rest = {_NUMBERS},
     float[1] low = {{0}}> {{
        h = MatMul(x, W)  flat = Transpose<perm=[1,0]>(W)  k = MatMul(h, flat)
        l = MatMul(k, U)  c = Max(l, low)  aside = MatMul(x, rest)
        y = ReduceMean<keepdims=0>(c) }}"""


def test_a_step_says_what_it_leaves_and_why_and_what_is_tied(tmp_path: Path) -> None:
    (tmp_path / "tied.onnx").write_bytes(parse(TIED).SerializeToString())
    recipe = Recipe("y", Optimizer("adam"), freeze=("U",))
    written = train_step(tmp_path / "tied.onnx", tmp_path / "step.onnx", recipe=recipe)
    assert [weight.name for weight in written.step.parameters] == ["W"]
    assert dict(written.step.shared) == {"W": 2}
    assert dict(written.step.fixed) == {
        "U": "frozen",
        "rest": "the loss does not depend on it",
        "low": "no operator reads it as a trainable weight",
    }
    assert written.memory.resident == peak(tmp_path / "step.onnx")
    text = TRAIN_STEP["text"](written)
    assert "tied: 2 nodes read it, 2 tensors of state" in text
    assert "16 elements" in text
