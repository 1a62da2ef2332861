"""Training steps made of forward models, recomputed to fit a budget, and written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.phase import find_phases
from memplan_cli.core.results.recomputed import Recompute
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import recorded_phases
from memplan_cli.onnx_io.weights.external_data import external_tensors, locations
from memplan_cli.onnx_io.writing.write import rewrite
from memplan_cli.planning.choosing.candidate import Question
from memplan_cli.planning.choosing.candidates import transformed
from memplan_cli.planning.decided import Source
from memplan_cli.planning.planner import make_plan
from memplan_cli.planning.scope import find_scope
from memplan_cli.planning.terms import terms_of
from memplan_cli.reporting.findings.train_step import WrittenStep
from memplan_cli.settings.settings import Settings
from memplan_cli.shapes.reading import read_program
from memplan_cli.training.forward.initial import first_archive
from memplan_cli.training.train_step import make_train_step
from memplan_cli.workflows.files.output_files import OutputFiles, refuse_targets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.files import Content
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.report import Report
    from memplan_cli.training.train_step import Recipe, TrainStep


@dataclass(frozen=True, slots=True)
class StepFiles:
    """The model to read, the step to write, and where the first values go, if anywhere."""

    source: Path
    target: Path
    state: Path | None = None


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What a step keeps, or may take: checkpoints, else a budget; neither keeps all.

    Attributes:
        checkpoints: forward tensors that are kept; what lies between them runs again.
        budget: bytes for intermediates and outputs, or a share (``0.5``) of what they take
            now.
    """

    checkpoints: Sequence[str] = ()
    budget: float | None = None


def train_step(
    recipe: Recipe,
    files: StepFiles,
    recomputation: Recomputation | None = None,
    progress: Progress | None = None,
) -> WrittenStep:
    """Make a training step of a model file and write it, unless it misses the budget.

    Trained weights are not read unless their first values are asked for; what stays as it
    is and lies outside the model is brought along when the step goes to another folder.

    Raises:
        MemplanError: as `make_train_step`, or a file that cannot be read or written.
    """
    refuse_targets({"-o": files.target, "--state": files.state}, (files.source,))
    if progress:
        progress("reading")
    model = load_model(files.source)
    step = make_train_step(model, recipe)
    wanted, recompute = recomputation or Recomputation(), Recompute()
    if wanted.checkpoints or wanted.budget is not None:
        step, recompute = recompute_step(step, wanted.checkpoints, wanted.budget)
    if progress:
        progress("planning")
    report = _planned(step, files.target)
    made = WrittenStep(str(files.target), step, report.memory, report.symbolic, recompute)
    if made.missed:
        return made
    contents = _contents(model, step, files)
    weights = locations(external_tensors(step.model))
    with OutputFiles(weights, files.source.parent, files.target.parent) as written:
        written.write(contents)
    return made


def _planned(step: TrainStep, target: Path) -> Report:
    """Return what the step takes as it is written: its own order, at level 2."""
    program = read_program(step.model).program
    source = Source(str(target), "", "", recorded_phases=recorded_phases(step.model))
    return make_plan(program, Settings(order="keep", loss=step.loss), source).plan.report


def _contents(model: ModelProto, step: TrainStep, files: StepFiles) -> Mapping[Path, Content]:
    contents: dict[Path, Content] = {
        files.target: step.model.SerializeToString(deterministic=True)
    }
    if files.state is not None:
        contents[files.state] = first_archive(model, step, files.source.parent)
    return contents


def recompute_step(
    step: TrainStep, checkpoints: Sequence[str] = (), budget: float | None = None
) -> tuple[TrainStep, Recompute]:
    """Return a step whose model computes again what it would else keep, and if that is enough.

    Args:
        step: What `make_train_step` made; its phases are recorded on its nodes.
        checkpoints: Forward tensors that are kept; what lies between them runs again.
        budget: Bytes for intermediates and outputs, or a share of what they take now; used
            where no checkpoints are given.

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
    terms = terms_of(program, scope, settings)
    found = transformed(Question(program, terms, phases, settings))
    return replace(step, model=rewrite(step.model, found.program)), found.recompute
