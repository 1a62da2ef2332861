"""A training step in less memory: its forward ops run again, by checkpoints or a budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.phase import find_phases
from memplan_cli.errors import PlanError
from memplan_cli.onnx_io.metadata import recorded_phases
from memplan_cli.onnx_io.writing.write import rewrite
from memplan_cli.planning.allocation import aliasing_of
from memplan_cli.planning.candidate import Question
from memplan_cli.planning.candidates import transformed
from memplan_cli.planning.scope import find_scope
from memplan_cli.settings.settings import Settings
from memplan_cli.shapes.reading import read_program
from memplan_cli.transforms.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.training.train_step import TrainStep


def recompute_step(
    step: TrainStep, checkpoints: Sequence[str] = (), budget: float | None = None
) -> TrainStep:
    """Return a step whose model computes again what it would else have to keep.

    Args:
        step: What `make_train_step` made; its phases are recorded on its nodes.
        checkpoints: Forward tensors that are kept; what lies between them runs again.
        budget: Bytes for the intermediates, or a share of what they take now; used where
            no checkpoints are given.

    Raises:
        SettingsError: a checkpoint is no forward tensor.
        PlanError: the budget cannot be met.
    """
    settings = Settings(
        recompute="checkpoints" if checkpoints else "auto",
        checkpoints=tuple(checkpoints),
        budget=None if checkpoints else budget,
    )
    program = read_program(step.model).program
    recorded = recorded_phases(step.model)
    phases = find_phases(program, loss=step.loss, recorded=recorded)
    scope = find_scope(program, settings, phases)
    terms = Terms(scope.sizes, frozenset(scope.pinned), aliasing_of(settings.level))
    found = transformed(Question(program, terms, phases, settings))
    if not found.recompute.met:
        raise PlanError(
            f"the budget of {found.recompute.budget} bytes cannot be met: the best found "
            f"takes {found.peaks['recompute']}",
            hint="allow more, or train fewer parameters",
        )
    return replace(step, model=rewrite(step.model, found.program))
