"""The first values of what a training step is fed: the model's weights, and state of zeros."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import checker, helper, numpy_helper

from memplan_cli.errors import ModelError
from memplan_cli.features.training.forward.tensors import is_inside
from memplan_cli.onnx_io.constants import constant_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import GraphProto, ModelProto, TensorProto

    from memplan_cli.features.training.forward.tensors import Array
    from memplan_cli.features.training.train_step import TrainStep


def first_feeds(
    model: ModelProto, step: TrainStep, folder: Path | None = None
) -> dict[str, Array]:
    """Return the values of every ``in.*`` input for the first run of a training step.

    Args:
        model: The forward model that the step was made from.
        step: The step.
        folder: Where the model's external data is.

    Returns:
        By input name. Parameters that were graph inputs of the model are left out: only
        the caller knows their values.

    Raises:
        ModelError: a weight's data is in a file that is not there.
    """
    graph = model.graph
    weights = dict(constant_tensors(graph))
    fills = _fills(graph, weights)
    found: dict[str, Array] = {}
    for parameter in (*step.parameters, *step.running):
        if parameter.origin in weights:
            found[parameter.input] = _values(weights[parameter.origin], folder)
        elif parameter.origin in fills:
            filler = fills[parameter.origin]
            found[parameter.input] = np.full(parameter.sizes, filler, filler.dtype)
    for name, parameter in step.state.items():
        kind = helper.tensor_dtype_to_np_dtype(parameter.dtype)
        found[name] = np.zeros(parameter.sizes, kind)
    return found


def first_archive(model: ModelProto, step: TrainStep, folder: Path) -> bytes:
    """Return what `first_feeds` gives as an ``.npz`` archive.

    Raises:
        ModelError: a weight's data is in a file that is not there.
    """
    archive = io.BytesIO()
    values: dict[str, Any] = {**first_feeds(model, step, folder)}
    np.savez(archive, **values)
    return archive.getvalue()


def _values(tensor: TensorProto, folder: Path | None) -> Array:
    try:
        values: Array = numpy_helper.to_array(tensor, str(folder) if folder else "")
    except (OSError, ValueError, checker.ValidationError) as error:
        if is_inside(tensor):
            raise
        raise ModelError(
            f"the values of weight {tensor.name!r} are not in the model, and its data file"
            " cannot be read",
            hint="put the data file beside the model",
        ) from error
    return values


def _fills(graph: GraphProto, weights: dict[str, TensorProto]) -> dict[str, Array]:
    """Return what each ConstantOfShape node of known shape repeats."""
    found: dict[str, Array] = {}
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in weights:
            continue
        filler: Array = np.zeros((), np.float32)
        for attribute in node.attribute:
            filler = numpy_helper.to_array(attribute.t).reshape(())
        found[node.output[0]] = filler
    return found
