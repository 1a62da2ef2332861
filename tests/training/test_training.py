"""The ancestor's verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan_cli.errors import MemplanError
from memplan_cli.training import verbs as training
from memplan_cli.training.verbs import LossFunction, Optimizer, TrainStep
from training.test_train_step import LINEAR, names_of, parse

MSE = LossFunction("mse", "target")


def test_backward_pairs_parameters_with_their_gradients() -> None:
    made = training.backward(parse(LINEAR), MSE)
    assert made.step.gradients == {"w": "w_grad", "b": "b_grad"}


def test_no_grad_set_and_parameter_list_choose() -> None:
    listed = training.backward(parse(LINEAR), MSE, ["w"])
    assert listed.step.gradients == {"w": "w_grad"}
    others = training.backward(parse(LINEAR), MSE, (), ["w"])
    assert others.step.gradients == {"b": "b_grad"}


def test_apply_gradients_adds_the_update() -> None:
    made = training.backward(parse(LINEAR), MSE)
    step = training.apply_gradients(made, Optimizer("momentum"))
    assert "new.w.m" in names_of(step.model.graph.output)


def test_minimize_is_backward_and_apply_optimize() -> None:
    whole = training.minimize(parse(LINEAR), MSE, Optimizer("adam"))
    made = training.backward(parse(LINEAR), MSE)
    parts = training.apply_optimize(made, Optimizer("adam"))
    assert whole.model == parts.model


def test_checkpoints_go_to_recompute() -> None:
    seen: list[tuple[str, ...]] = []

    def recompute(step: TrainStep, checkpoints: tuple[str, ...]) -> TrainStep:
        seen.append(checkpoints)
        return step

    training.minimize(parse(LINEAR), MSE, checkpoints=["h"], recompute=recompute)
    assert seen == [("h",)]


def test_checkpoints_without_recompute_are_refused() -> None:
    with pytest.raises(MemplanError, match="checkpoints"):
        training.minimize(parse(LINEAR), MSE, checkpoints=["h"])


def test_load_is_not_supported() -> None:
    with pytest.raises(MemplanError, match="load is not supported"):
        training.load(Path("optimizer.onnx"))
