"""``report --dry-run``: what training a forward model would take, by planning its training step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.errors import MemplanError
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.train_step import Recipe, make_train_step
from memplan_cli.onnx_io.load import load_model
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report


def with_dry_run(
    plan: Plan, model: FilePath, settings: Settings, progress: Progress | None = None
) -> Plan:
    """Return a plan whose report has the memory of its model's training step, or a warning why not.

    The step is that of ``train-step --gradients`` with the loss that the settings name, otherwise
    the mean squared error of the first output. Nothing is run, and external weights are not read.
    """
    if plan.report.phase == "train":
        return plan.with_warnings("dry run: the model is a training step already")
    if progress is not None:
        progress("making a training step")
    try:
        step = _plan_training_step(Path(model), settings, plan.report)
    except MemplanError as error:
        return plan.with_warnings(
            f"dry run: what training takes is not known: {error.message}"
        )
    memory = step.report.memory
    if memory.naive is None or memory.planned is None:
        reason = f"sizes of the step are not known ({step.report.coverage:.0%} are)"
        return plan.with_warnings(f"dry run: what training takes is not known: {reason}")
    estimate = {"raw": memory.naive, "optimized": memory.planned}
    return plan.with_report(replace(plan.report, training_estimate=estimate))


def _plan_training_step(model: Path, settings: Settings, report: Report) -> Plan:
    """Plan the training step of a forward model, in its own order, at the dims of its report.

    The step outputs gradients and updates no weights.
    """
    recipe = Recipe(loss=settings.loss or LossFunction("mse"), optimizer=None)
    step = make_train_step(load_model(model), recipe)
    # Besides the dims of the settings, the report has those that input data gave or that were assumed.
    report_dims = {name: dim.value for name, dim in report.bindings.items()}
    dims = {**report_dims, **settings.dims}
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{model.stem}.step.onnx"
        path.write_bytes(step.model.SerializeToString(deterministic=True))
        step_settings = Settings(level=settings.level, order="keep", dims=dims)
        return plan_model(read_model(path), step_settings).plan
