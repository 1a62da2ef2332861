"""What training a forward model would take: its training step is made and planned, not written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from memplan_cli.api.files.model_file import plan_model, read_model
from memplan_cli.api.optimized import warned
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
    found: Plan, model: FilePath, settings: Settings, progress: Progress | None = None
) -> Plan:
    """Return a plan whose report says what a training step of its model takes, or why not.

    The step is that of ``train-step --gradients`` with the loss that the settings name, else
    the mean squared error of the first output. Nothing is run, and external weights are not
    read.

    Args:
        found: The plan of the forward model.
        model: Its file.
        settings: What the plan was made with; dims are as in its report.
        progress: Told what is being done.
    """
    if found.report.phase == "train":
        return warned(found, "dry run: the model is a training step already")
    if progress is not None:
        progress("making a training step")
    try:
        step = _planned_step(Path(model), settings, found.report)
    except MemplanError as error:
        return warned(found, f"dry run: what training takes is not known: {error}")
    memory = step.report.memory
    if memory.naive is None or memory.planned is None:
        why = f"sizes of the step are not known ({step.report.coverage:.0%} are)"
        return warned(found, f"dry run: what training takes is not known: {why}")
    estimate = {"raw": memory.naive, "optimized": memory.planned}
    return found.with_report(replace(found.report, training_estimate=estimate))


def _planned_step(model: Path, settings: Settings, report: Report) -> Plan:
    recipe = Recipe(settings.loss or LossFunction("mse"), None)
    step = make_train_step(load_model(model), recipe)
    dims = {name: dim.value for name, dim in report.bindings.items()}
    asked = Settings(level=settings.level, order="keep", dims={**dims, **settings.dims})
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{model.stem}.step.onnx"
        path.write_bytes(step.model.SerializeToString(deterministic=True))
        return plan_model(read_model(path), asked).plan
