"""``memplan train-step``: turn a forward model into a training step, and write it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.analysis.phase import find_phases
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.output.output_files import refuse_targets
from memplan_cli.api.output.weight_files import NewWeights
from memplan_cli.api.rewrites import REWRITES
from memplan_cli.core.files import write_files
from memplan_cli.core.progress import Progress, silent
from memplan_cli.core.results.rewrites import RecomputeSummary
from memplan_cli.errors import SettingsError
from memplan_cli.features.training.first_feeds import first_archive
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.report import WrittenStep
from memplan_cli.features.training.train_step import Recipe, make_train_step
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import recorded_phases
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.weights.external_data import external_tensors, locations
from memplan_cli.onnx_io.writing.structure import checked
from memplan_cli.onnx_io.writing.write import rewrite
from memplan_cli.planning.candidate import PlanningTask, Source
from memplan_cli.planning.planner import make_plan
from memplan_cli.planning.scope import find_scope, planned_vars_of
from memplan_cli.settings.keys import budget as read_budget
from memplan_cli.settings.settings import Settings
from memplan_cli.settings.values import Place, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.files import Content
    from memplan_cli.core.results.report import Report
    from memplan_cli.features.training.train_step import TrainStep


def train_step(
    model: ModelSource,
    out: FilePath,
    *,
    loss: str | None = None,
    loss_fn: str | None = None,
    optimizer: str | None = None,
    recipe: Recipe | None = None,
    checkpoints: Sequence[str] = (),
    budget: float | str | None = None,
    state: FilePath | None = None,
    progress: Progress | None = None,
) -> WrittenStep:
    """Turn a forward model into a training step in standard ONNX operators, and write it.

    Trained weights are read only for ``state``. Weights outside the model that stay as they
    are become files beside ``out``, if it is in another folder.

    Args:
        model: A model, as a file or in memory.
        out: The training step to write.
        loss: The loss tensor of the model.
        loss_fn: The loss to append to the model's first output, in place of ``loss``.
        optimizer: The optimizer whose update is appended; None: the step gives gradients.
        recipe: The loss, the optimizer and more, in place of these three.
        checkpoints: Activations to keep; the ops between them run again.
        budget: Bytes for intermediates and outputs, a share of them, or text like ``2GiB``
            or ``50%``; activations are computed again until the step fits.
        state: The file for the first value of each ``in.*`` (``.npz``).
        progress: Called with the name of each stage.

    Raises:
        MemplanError: arguments contradict each other, an operator has no gradient, or a
            file cannot be read or written. A budget that cannot be met is a result: ``missed``
            says what the best step needs, and nothing is written.
    """
    if checkpoints and budget is not None:
        raise SettingsError("checkpoints and budget cannot be combined", hint="give one")
    if recipe is not None and (loss or loss_fn or optimizer):
        raise SettingsError(
            "the recipe already contains the loss and the optimizer", hint="remove them"
        )
    recipe = recipe or _recipe(loss, loss_fn, optimizer)
    if isinstance(budget, str):
        budget = read_budget(Value(budget, Place("budget")))
    progress, target = progress or silent, Path(out)
    state_file = None if state is None else Path(state)
    with model_paths(model) as files:
        source = files.path
        refuse_targets({"-o": target, "--state": state_file}, (source,))
        progress("reading")
        forward = load_model(source)
        step, recompute = make_train_step(forward, recipe), RecomputeSummary()
        if checkpoints or budget is not None:
            step, recompute = recompute_step(step, checkpoints, budget)
        progress("planning")
        report = _report_of(step, target)
        result = WrittenStep(str(target), step, report.memory, report.symbolic, recompute)
        if not result.missed:
            _write_step(step, forward, source.parent, target, state_file)
        return files.without_temporary_folder(result)


def _write_step(
    step: TrainStep, forward: ModelProto, folder: Path, target: Path, state_file: Path | None
) -> None:
    """Write a training step, its weight files, and the first values of its inputs if asked for.

    Args:
        step: The training step.
        forward: The forward model.
        folder: The folder of the forward model's file, with its weight files.
        target: The file of the training step.
        state_file: The file for the first value of each ``in.*``, or None.
    """
    # Raises if the step is not valid ONNX, unless the forward model has the same fault.
    written_step = checked(step.model, source=lambda: forward)
    contents: dict[Path, Content] = {
        target: written_step.SerializeToString(deterministic=True)
    }
    if state_file is not None:
        contents[state_file] = first_archive(forward, step, folder)
    with NewWeights(target) as weights:
        weights.copy(locations(external_tensors(step.model)), folder)
        write_files(contents)
        weights.keep()  # without this call, the end of the block removes the copies


def _recipe(loss: str | None, loss_fn: str | None, optimizer: str | None) -> Recipe:
    """Return the recipe of a step, for the arguments of `train_step`.

    Raises:
        SettingsError: not exactly one of ``loss`` and ``loss_fn`` is given.
    """
    recipe_loss: str | LossFunction
    if loss is not None and loss_fn is None:
        recipe_loss = loss
    elif loss_fn is not None and loss is None:
        recipe_loss = LossFunction(loss_fn)
    else:
        raise SettingsError("a training step has one loss", hint="give loss or loss_fn")
    return Recipe(recipe_loss, Optimizer(optimizer) if optimizer else None)


def _report_of(step: TrainStep, target: Path) -> Report:
    """Return the report of a training step as it is written: in its own order, at level 2."""
    program = read_program(step.model).program
    source = Source(str(target), "", "", recorded_phases=recorded_phases(step.model))
    settings = Settings(order="keep", loss=step.loss)
    return make_plan(program, settings, source, REWRITES).plan.report


def recompute_step(
    step: TrainStep, checkpoints: Sequence[str] = (), budget: float | None = None
) -> tuple[TrainStep, RecomputeSummary]:
    """Return a step that recomputes activations instead of keeping them, and what was recomputed.

    With checkpoints, the ops between checkpoints run again. Without checkpoints, values are recomputed until
    intermediates and outputs fit ``budget``: bytes (int), or a share (float) of the present bytes. Without
    both, values are recomputed as long as much memory is saved for little work.

    Raises:
        SettingsError: a checkpoint is no forward tensor.
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
    planned_vars = planned_vars_of(program, scope, settings)
    recompute = REWRITES.recompute[settings.recompute]
    candidate = recompute(PlanningTask(program, planned_vars, phases, settings))
    return replace(step, model=rewrite(step.model, candidate.program)), candidate.recompute
