"""Is a gradient what central differences say of the model that ONNX Runtime runs?

No evaluator of ours stands between: what the operator means, in which version, is what the
runtime makes of the model as it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from features.training.gradient_checks import REFUSALS, directions, in_float32, parsed
from memplan_cli.features.training.train_step import Recipe, make_train_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from features.training.gradient_checks import Case

    Array = NDArray[Any]


@dataclass(frozen=True)
class Precision:
    """How far apart the ends of a difference are, and how far off it may be."""

    step: float
    relative: float
    least: float


DOUBLE = Precision(1e-5, 1e-5, 1e-3)
SINGLE = Precision(4e-3, 2e-2, 2e-2)
"""For what has no kernel in float64: most such operators are linear or nearly so."""


def check_by_runtime(case: Case) -> None:
    """Assert that every wanted gradient agrees with the runtime's own central differences.

    Raises:
        Fail, NotImplemented: the runtime cannot run the model itself in any precision.
    """
    if any(value.dtype == np.float32 for value in case.inputs.values()):
        _agree(case, SINGLE)
        return
    try:
        _agree(case, DOUBLE)
    except REFUSALS:
        _agree(in_float32(case), SINGLE)


def _agree(case: Case, precision: Precision) -> None:
    """Compare loss and gradients; a step that the runtime refuses is a failure."""
    model = _with_loss(case)
    plain = _session(model)
    wanted = case.wanted or tuple(n for n, v in case.inputs.items() if v.dtype.kind == "f")
    step = make_train_step(model, Recipe("loss", None, wanted, statistics=case.statistics))
    if _is_valid(model):  # what is deprecated, the checker refuses
        onnx.checker.check_model(step.model, full_check=True)
    renamed = {p.name: p.input for p in (*step.parameters, *step.running)}
    known = {**case.constants, **case.inputs}
    trained = _session(step.model)
    given = {value.name for value in trained.get_inputs()}
    feeds = {renamed.get(name, name): value for name, value in known.items()}
    loss, *found = trained.run(None, {n: v for n, v in feeds.items() if n in given})
    before = float(plain.run(["loss"], case.inputs)[0])
    assert abs(float(loss) - before) <= precision.relative * max(abs(before), 1e-2), "loss"
    gradients = dict(zip((p.name for p in step.parameters), found, strict=False))
    for name in wanted:
        value, got = case.inputs[name], gradients[name]
        assert (got.shape, got.dtype) == (value.shape, value.dtype), name
        expected, slopes = [], []
        for direction in directions(value.shape):
            shift = (precision.step * direction).astype(value.dtype)
            ends = [
                float(plain.run(["loss"], {**case.inputs, name: moved})[0])
                for moved in (np.asarray(value + shift), np.asarray(value - shift))
            ]
            expected.append((ends[0] - ends[1]) / (2 * precision.step))
            slopes.append(float((got * direction).sum()))
        error = float(np.linalg.norm(np.subtract(slopes, expected)))
        size = max(float(np.linalg.norm(expected)), precision.least)
        assert error <= precision.relative * size, (name, slopes, expected)


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


def _with_loss(case: Case) -> onnx.ModelProto:
    """Put a random combination of all results behind the nodes, in the case's own opset."""
    terms, constants = [], {**case.constants, "flat": np.array([-1])}
    rng = np.random.default_rng(7)
    kind = next(v.dtype for v in case.inputs.values() if v.dtype.kind == "f")
    for index, (name, shape) in enumerate(zip(case.outputs, _shapes(case), strict=True)):
        constants[f"r{index}"] = rng.standard_normal(int(np.prod(shape))).astype(kind)
        terms.append(
            f"f{index} = Reshape({name}, flat) p{index} = Mul(f{index}, r{index})"
            f" t{index} = ReduceSum<keepdims=0>(p{index})"
        )
    total = ", ".join(f"t{index}" for index in range(len(case.outputs)))
    text = f"{case.body} {' '.join(terms)} loss = Sum({total})"
    return parsed(case, ["loss"], text, constants)


def _shapes(case: Case) -> list[tuple[int, ...]]:
    model = parsed(case, list(case.outputs), case.body, case.constants)
    return [value.shape for value in _session(model).run(None, case.inputs)]


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
