"""Running training steps in plain ONNX Runtime: first values, feeds, some steps, the losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from memplan_cli.features.training.first_feeds import first_feeds
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe, TrainStep, make_train_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class Run:
    """How a model is trained on one batch."""

    rate: float = 0.01
    loss: str = "softmax-cross-entropy"
    optimizer: str = "sgd"
    steps: int = 3
    dims: int = 2
    """What unknown dimensions stand for."""


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    """Return a quiet session with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def train(
    model: onnx.ModelProto, run: Run, given: Mapping[str, Array] | None = None
) -> tuple[TrainStep, list[float]]:
    """Make a training step of a forward model, run it, and return it with its losses."""
    recipe = Recipe(LossFunction(run.loss), Optimizer(run.optimizer))
    step = make_train_step(model, recipe)
    onnx.checker.check_model(step.model)
    return step, losses_of(step, first_feeds(model, step), run, given or {})


def losses_of(
    step: TrainStep, state: Mapping[str, Array], run: Run, given: Mapping[str, Array]
) -> list[float]:
    """Run a step some times on one batch, each time with the values that it gave."""
    batch = {**_batch(step, run, given), **given}
    session = session_of(step.model)
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name for value in session.get_inputs()}
    current, losses = dict(state), list[float]()
    for number in range(1, run.steps + 1):
        batch["step"] = np.array(number, np.int64)
        feeds = {k: v for k, v in {**batch, **current}.items() if k in wanted}
        results = dict(zip(names, session.run(names, feeds), strict=True))
        losses.append(float(results[step.loss]))
        current = {name: results[f"new.{name[3:]}"] for name in current}
    return losses


def _batch(step: TrainStep, run: Run, given: Mapping[str, Array]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    batch: dict[str, Array] = {"learning_rate": np.array(run.rate, np.float32)}
    dims: dict[str, int] = {}
    for value in step.model.graph.input:
        if value.name in given:
            known = given[value.name].shape
            for dim, size in zip(value.type.tensor_type.shape.dim, known, strict=True):
                dims[dim.dim_param] = size
    for value in step.model.graph.input:
        if value.name.startswith("in.") or value.name in given or value.name in batch:
            continue
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [
            dim.dim_value or dims.get(dim.dim_param, run.dims)
            for dim in value.type.tensor_type.shape.dim
        ]
        if kind.kind == "f":
            batch[value.name] = rng.standard_normal(shape).astype(kind)
        else:
            batch[value.name] = rng.integers(0, 8, shape).astype(kind)
    return batch
