"""Train a small CNN for a hundred steps in plain ONNX Runtime, with and without recompute.

    python sample_models/train_cnn.py

The network is an ordinary forward model. memplan turns it into a training step; the loop
feeds each step with the weights that the last one gave. The step is run as it is, and with
parts of its forward pass computed again so that its live peak fits 0.6 of what it was: the
losses are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

from memplan_cli.analysis.phase import find_phases
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import intermediates
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.features.recompute.search import search_recomputation
from memplan_cli.features.training.first_feeds import first_feeds
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe, TrainStep, make_train_step
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.ordering.records import PlannedVars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from memplan_cli.core.program import Program

    Array = NDArray[Any]
    Feed = Callable[[int], dict[str, Array]]

SHARE = 0.6
"""Of the live peak, for the second training."""

NETWORK = """<ir_version: 10, opset_import: ["": 20]>
cnn (float[32, 1, 16, 16] image) => (float[32, 10] logits) {
    c1 = Conv<pads = [1, 1, 1, 1]>(image, conv1_weight)
    n1 = BatchNormalization(c1, bn1_scale, bn1_bias, bn1_mean, bn1_var)
    r1 = Relu(n1)
    p1 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r1)
    c2 = Conv<pads = [1, 1, 1, 1]>(p1, conv2_weight)
    n2 = BatchNormalization(c2, bn2_scale, bn2_bias, bn2_mean, bn2_var)
    r2 = Relu(n2)
    p2 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r2)
    flat = Flatten(p2)
    logits = Gemm<transB = 1>(flat, head_weight, head_bias)
}"""

SHAPES = {
    "conv1_weight": (16, 1, 3, 3),
    "bn1_scale": (16,),
    "bn1_bias": (16,),
    "bn1_mean": (16,),
    "bn1_var": (16,),
    "conv2_weight": (32, 16, 3, 3),
    "bn2_scale": (32,),
    "bn2_bias": (32,),
    "bn2_mean": (32,),
    "bn2_var": (32,),
    "head_weight": (10, 512),
    "head_bias": (10,),
}


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    losses: tuple[float, ...]
    live_peak: int


def with_weights(
    text: str, shapes: Mapping[str, tuple[int, ...]], seed: int
) -> onnx.ModelProto:
    """Parse a network and give it weights: scales are 1, biases 0, the rest normal."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        kind = name.rpartition("_")[2]
        if kind in ("scale", "var"):
            values = np.ones(shape)
        elif kind in ("bias", "mean"):
            values = np.zeros(shape)
        else:
            values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        weight = onnx.numpy_helper.from_array(values.astype(np.float32), name)
        model.graph.initializer.append(weight)
    return model


def train(step: TrainStep, state: Mapping[str, Array], feed: Feed, rate: float) -> Trained:
    """Run a hundred steps; the new weights of each are the weights of the next."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # As memplan's files with copies are run: optimization would merge copies, or fail on them.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        step.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    current, losses = dict(state), list[float]()
    for number in range(1, 101):
        scalars = {
            "learning_rate": np.array(rate, np.float32),
            "step": np.array(number, np.int64),
        }
        given = {**current, **feed(number), **scalars}
        results = dict(zip(names, session.run(names, given), strict=True))
        losses.append(float(results[step.loss]))
        current = {name: results[f"new.{name.removeprefix('in.')}"] for name in current}
    return Trained(tuple(losses), peak_of(step.model))


def peak_of(model: onnx.ModelProto) -> int:
    """Return the live peak of a model whose sizes are all numbers."""
    program = read_program(model).program
    return live_peak(program, _sizes(program))


def recomputed(step: TrainStep) -> TrainStep:
    """Return the step with forward nodes run again, so that it fits a share of its peak."""
    program = read_program(step.model).program
    phases = find_phases(program, loss=step.loss)
    budget = int(SHARE * peak_of(step.model))
    found = search_recomputation(program, PlannedVars(_sizes(program)), phases, budget)
    model = onnx.ModelProto()
    model.CopyFrom(step.model)
    del model.graph.node[:]
    for op in found.program.body.ops:
        node = model.graph.node.add()
        node.CopyFrom(step.model.graph.node[op.source])
        node.name = op.name
        node.input[:] = op.inputs
        node.output[:] = op.outputs
    return TrainStep(
        model, step.loss, step.parameters, step.running, step.state, step.gradients
    )


def _sizes(program: Program) -> dict[Any, Any]:
    sizes = {
        var: size_of(program.vars[var].shape, program.vars[var].dtype)
        for var in intermediates(program)
    }
    return {var: size for var, size in sizes.items() if size is not None}


def images(number: int) -> dict[str, Array]:
    """Return a batch: each class has a pattern, under noise."""
    patterns = np.random.default_rng(0).standard_normal((10, 1, 16, 16))
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 10, 32)
    noisy = patterns[labels] + 0.7 * rng.standard_normal((32, 1, 16, 16))
    return {"image": noisy.astype(np.float32), "labels": labels}


def compare(model: onnx.ModelProto, optimizer: Optimizer, feed: Feed, rate: float) -> None:
    """Train twice, without and with recompute, and print what both came to."""
    step = make_train_step(model, Recipe(LossFunction("softmax-cross-entropy"), optimizer))
    state = first_feeds(model, step)
    for label, made in (("as it is", step), (f"in {SHARE} of the peak", recomputed(step))):
        result = train(made, state, feed, rate)
        shown = ", ".join(f"{loss:.6f}" for loss in result.losses[::20])
        last = sum(result.losses[-10:]) / 10
        print(f"{label}: {len(made.model.graph.node)} nodes, live peak {result.live_peak} B")
        print(f"  loss {shown} ... mean of the last ten {last:.6f}")


if __name__ == "__main__":
    compare(with_weights(NETWORK, SHAPES, seed=1), Optimizer("momentum"), images, 0.02)
