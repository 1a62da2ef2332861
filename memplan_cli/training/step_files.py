"""A training step, from a model's file to files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.files import write_files
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.weights.external_data import (
    copy_along,
    external_tensors,
    locations,
    remove,
)
from memplan_cli.training.forward.initial import first_feeds
from memplan_cli.training.train_step import make_train_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.training.train_step import Recipe, TrainStep


@dataclass(frozen=True, slots=True)
class StepFiles:
    """The model to read, the step to write, and where the first values go, if anywhere."""

    source: Path
    target: Path
    state: Path | None = None


def write_train_step(
    recipe: Recipe,
    files: StepFiles,
    recompute: Callable[[TrainStep], TrainStep] | None = None,
) -> TrainStep:
    """Make a training step of a model file and write it; nothing is written on failure.

    Trained weights are not read unless their first values are asked for; what stays as it
    is and is stored outside the model is brought along when the step goes to another folder.

    Raises:
        MemplanError: as `make_train_step`, or a file that cannot be read or written.
    """
    targets = [path for path in (files.target, files.state) if path is not None]
    if files.source.resolve() in {path.resolve() for path in targets}:
        raise ModelError(
            f"{files.source} would be overwritten by its own training step",
            hint="choose another place with -o",
        )
    model = load_model(files.source)
    step = make_train_step(model, recipe)
    step = recompute(step) if recompute else step
    contents = {files.target: step.model.SerializeToString(deterministic=True)}
    if files.state is not None:
        archive = io.BytesIO()
        values: dict[str, Any] = {**first_feeds(model, step, files.source.parent)}
        np.savez(archive, **values)
        contents[files.state] = archive.getvalue()
    data = locations(external_tensors(step.model))
    brought = copy_along(data, files.source.parent, files.target.parent)
    try:
        write_files(contents)
    except ModelError:
        remove(brought)
        raise
    return step
