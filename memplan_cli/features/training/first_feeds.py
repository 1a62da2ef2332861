"""The inputs for the first run of a training step: the model's weights, and zeros as state."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import checker, helper, numpy_helper

from memplan_cli.errors import ModelError
from memplan_cli.features.training.tensors import is_stored_in_model
from memplan_cli.onnx_io.constants import constant_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto, TensorProto

    from memplan_cli.features.training.tensors import Array
    from memplan_cli.features.training.train_step import TrainStep


def first_feeds(
    model: ModelProto, step: TrainStep, folder: Path | None = None
) -> dict[str, Array]:
    """Return the values of the ``in.*`` inputs for the first run of a training step, by name.

    Parameters that are graph inputs of the forward model are omitted: the caller has their values.

    ``model`` is the forward model, whose external data is in ``folder``.

    Raises:
        ModelError: the data file of a weight cannot be read.
    """
    weights = dict(constant_tensors(model.graph))
    feeds: dict[str, Array] = {}
    for parameter in (*step.parameters, *step.running):
        if parameter.origin in weights:
            feeds[parameter.input] = _weight_values(weights[parameter.origin], folder)
    for name, parameter in step.state.items():
        dtype = helper.tensor_dtype_to_np_dtype(parameter.dtype)
        feeds[name] = np.zeros(parameter.sizes, dtype)
    return feeds


def first_archive(model: ModelProto, step: TrainStep, folder: Path) -> bytes:
    """Return the result of `first_feeds` as the contents of an ``.npz`` file.

    Raises:
        ModelError: the data file of a weight cannot be read.
    """
    archive = io.BytesIO()
    # All names begin with ``in.``, so none is that of a parameter of `numpy.savez`, such as ``file``.
    values: dict[str, Any] = {**first_feeds(model, step, folder)}
    np.savez(archive, **values)
    return archive.getvalue()


def _weight_values(tensor: TensorProto, folder: Path | None) -> Array:
    """Return the values of an initializer, whose data may be in a file in ``folder``."""
    try:
        values: Array = numpy_helper.to_array(tensor, str(folder) if folder else "")
    except (OSError, ValueError, checker.ValidationError) as error:
        if is_stored_in_model(tensor):  # the error is not about a data file
            raise
        raise ModelError(
            f"the values of weight {tensor.name!r} are not in the model, and its data file"
            " cannot be read",
            hint="put the data file beside the model",
        ) from error
    return values
