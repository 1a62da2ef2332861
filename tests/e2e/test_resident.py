"""What a plan says is resident is what ONNX Runtime holds, and budgets are kept there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest

from memplan_cli import Settings, api
from memplan_cli.core.results.observations import CPU
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.train_step import Recipe, make_train_step
from memplan_cli.runtime.graph.offline import offline_program
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.simulate.predict import ARENA_REUSE_ONLY, ExecutedGraph, predict_peaks
from memplan_cli.runtime.workers.spec import RunConditions
from perceptrons import perceptron

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return the file of a step that gives the gradients."""
    path = tmp_path / "step.onnx"
    onnx.save(
        make_train_step(
            perceptron(width=32, rows=256), Recipe(LossFunction("mse"), None)
        ).model,
        str(path),
    )
    return path


def held(path: Path) -> tuple[int | None, int | None]:
    """Return the first run's peak of a file as it stands, predicted and measured."""
    executed = ExecutedGraph(offline_program(path, {}, CPU), {})
    predicted = predict_peaks(executed, ARENA_REUSE_ONLY).first_run_peak
    observed = record_run(path, ARENA_REUSE_ONLY, RunConditions(), "arena").peaks
    return predicted, observed.first_run_peak


@pytest.mark.parametrize("budget", [None, 0.8, 0.6])
def test_recomputing_lowers_what_the_runtime_holds_as_planned(
    step: Path, tmp_path: Path, budget: float | None
) -> None:
    out = tmp_path / "out.onnx"
    asked = Settings(recompute="auto", budget=budget)
    report = api.optimize(step, asked, out=out, check=None).plan.report
    before, after = report.original_resident, report.memory.resident
    assert before is not None
    assert after is not None
    assert after < before
    if budget is not None:
        assert after <= budget * before
    assert held(step) == (before, before)
    for found in held(out):
        assert found == pytest.approx(after, rel=0.02)
