"""An order is called proved where its live peak is at a bound, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import plan_of_text
from memplan_cli import Settings
from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.errors import PlanError
from memplan_cli.planning.plan_file import checked_plan

SAMPLES = Path(__file__).parents[2] / "sample_models"
SHORT = "g (float[8] x) => (float[8] z) { a = Exp(x) z = Neg(a) }"


def test_an_order_above_its_bound_is_not_proved() -> None:
    planned = plan_model(read_model(SAMPLES / "nested_if_loop.onnx"), Settings())
    memory = planned.plan.report.memory
    assert memory.order_bound is not None
    assert memory.live_peak is not None
    assert memory.order_bound < memory.live_peak
    assert not memory.order_proved


def test_an_order_without_a_bound_is_not_proved() -> None:
    text = SHORT.replace("float[8]", "float[batch]")
    memory = plan_of_text(text, Settings()).report.memory
    assert memory.order_bound is None
    assert not memory.order_proved


def test_a_file_does_not_call_an_order_proved_above_its_bound() -> None:
    data = json.loads(plan_of_text(SHORT).dumps())
    assert data["report"]["memory"]["order_proved"]
    data["report"]["memory"]["order_bound"] -= 1
    with pytest.raises(PlanError):
        checked_plan(data)
