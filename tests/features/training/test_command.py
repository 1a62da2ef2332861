"""The command ``train-step``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from features.training.test_train_step import LINEAR, batch, names_of, parse, run
from memplan_cli.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(parse(LINEAR), path)
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["train-step", *map(str, arguments)])


def test_written_step_runs_with_the_written_state(model: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "step.onnx", tmp_path / "state.npz"
    how = ["--loss-fn", "mse", "--labels", "target", "--optimizer", "adam"]
    result = invoke(model, "-o", out, *how, "--state", state)
    assert result.exit_code == 0, result.output
    assert "2 parameters trained" in result.output
    feeds = {**batch(), **np.load(state)}
    assert run(onnx.load(out), feeds)["loss"] > 0


def test_gradients_are_outputs(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "gradients.onnx"
    how = ["--loss-fn", "mse", "--labels", "target", "--gradients", "--freeze", "b"]
    assert invoke(model, "-o", out, *how).exit_code == 0
    assert names_of(onnx.load(out).graph.output) == ["loss", "w_grad"]


@pytest.mark.parametrize(
    "how",
    [
        ["--optimizer", "sgd"],
        ["--loss", "y", "--loss-fn", "mse", "--optimizer", "sgd"],
        ["--loss", "y"],
        ["--loss", "y", "--gradients", "--optimizer", "sgd"],
        ["--loss", "y", "--optimizer", "sgd", "--checkpoint", "y", "--budget", "50%"],
        ["--loss", "y", "--optimizer", "sgd", "--labels", "target"],
        ["--loss", "y", "--optimizer", "sgd", "--output", "y"],
        ["--loss", "y", "--gradients", "--weight-decay", "0.1"],
    ],
)
def test_contradicting_options_are_refused(
    how: list[str], model: Path, tmp_path: Path
) -> None:
    refused = invoke(model, "-o", tmp_path / "step.onnx", *how)
    assert refused.exit_code == 2
    assert re.search(
        "Error: (give either|--.* (need|needs|cannot be combined))", refused.output
    )


def test_nothing_is_written_when_it_fails(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "step.onnx"
    result = invoke(model, "-o", out, "--loss", "cost", "--optimizer", "sgd")
    assert result.exit_code != 0
    assert not out.exists()


def test_model_is_not_overwritten(model: Path) -> None:
    before = model.read_bytes()
    result = invoke(model, "-o", model, "--loss", "y", "--optimizer", "sgd")
    assert result.exit_code == 2
    assert "would overwrite a file" in result.output
    assert model.read_bytes() == before
