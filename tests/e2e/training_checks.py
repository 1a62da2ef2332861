"""Training steps beside those that PyTorch made: gradients and live peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from memplan_cli.analysis.phase import find_phases
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import intermediates
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.features.recompute.search import search_recomputation
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe, make_train_step
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.ordering.records import PlannedVars
from shared_models import draw_inputs, filled, gradient_tensors, load
from training_runs import session_of

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.program import Program

MADE_BY_PYTORCH = {
    "train_mlp_sgd": "sgd",
    "train_cnn_sgd": "sgd",
    "train_resnet18_momentum": "momentum",
    "train_bert_small_adam": "adam",
}


def gradient_errors(name: str, folder: Path) -> dict[str, float]:
    """Return, for each parameter, how far its gradient is from PyTorch's, by norm."""
    model, inputs = filled(name, folder), draw_inputs(name)
    theirs = gradient_tensors(model)
    step = make_train_step(model, Recipe("loss", None, tuple(theirs)))
    expected = _run(_with_outputs(model, list(dict.fromkeys(theirs.values()))), inputs)
    got = _run(step.model, inputs)
    ours = [output.name for output in step.model.graph.output][1:]
    assert len(ours) == len(theirs)
    whole = np.sqrt(sum(np.linalg.norm(expected[g]) ** 2 for g in theirs.values()))
    errors = {}
    for parameter, name_of_ours in zip(step.parameters, ours, strict=True):
        reference = expected[theirs[parameter.name]]
        # A key's bias shifts all scores alike: its gradient is zero but for rounding.
        norm = max(float(np.linalg.norm(reference)), 1e-6 * float(whole))
        difference = float(np.linalg.norm(got[name_of_ours] - reference))
        errors[parameter.name] = difference / norm
    return errors


def live_peaks(name: str) -> tuple[int, int]:
    """Return the live peak of PyTorch's step and of ours."""
    theirs, ours = _programs(name)
    return live_peak(theirs, _sizes(theirs)), live_peak(ours, _sizes(ours))


def recomputed_peak(name: str, share: float) -> int:
    """Return what is resident of ours with a budget of a share of PyTorch's live peak."""
    theirs, ours = _programs(name)
    budget = int(share * live_peak(theirs, _sizes(theirs)))
    phases = find_phases(ours, loss="loss")
    return search_recomputation(ours, PlannedVars(_sizes(ours)), phases, budget).chosen.peak


def _programs(name: str) -> tuple[Program, Program]:
    model = load(name)
    kind = name.rpartition("_")[2]
    recipe = Recipe("loss", Optimizer(kind), tuple(gradient_tensors(model)))
    step = make_train_step(model, recipe)
    return read_program(model).program, read_program(step.model).program


def _sizes(program: Program) -> dict[Any, Any]:
    sizes = {
        var: size_of(program.vars[var].shape, program.vars[var].dtype)
        for var in intermediates(program)
    }
    assert all(size is not None for size in sizes.values())
    return sizes


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(
        onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names
    )
    return copy


def _run(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    session = session_of(model)
    names = [output.name for output in session.get_outputs()]
    feeds = {value.name: inputs[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))
