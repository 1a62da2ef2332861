"""Is a gradient what central differences say? In float64, by an evaluator of our own choice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from features.training.reference_ops import OPERATORS
from memplan_cli.features.training.train_step import Recipe, Statistics, make_train_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memplan_cli.features.training.tape import Rule

    Array = NDArray[Any]

_STEP = 1e-5

REFUSALS = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.NotImplemented,
)
"""What ONNX Runtime says of what the standard allows and its kernels cannot."""


@dataclass(frozen=True)
class Case:
    """Nodes in ONNX text that make ``outputs``, the values they read, what is varied."""

    body: str
    inputs: dict[str, Array]
    outputs: tuple[str, ...] = ("y",)
    constants: dict[str, Array] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    opset: int = 20
    statistics: Statistics = Statistics.BATCH
    rules: dict[str, Rule] = field(default_factory=dict)


def check(case: Case) -> None:
    """Assert that every wanted gradient agrees with central differences to 1e-5."""
    wanted = case.wanted or tuple(n for n, v in case.inputs.items() if v.dtype.kind == "f")
    model = _model(case)
    recipe = Recipe("loss", None, wanted, (), case.statistics, case.rules)
    step = make_train_step(model, recipe)
    onnx.checker.check_model(step.model)
    renamed = {p.name: p.input for p in (*step.parameters, *step.running)}
    feeds = {
        renamed.get(name, name): value
        for name, value in {**case.constants, **case.inputs}.items()
    }
    evaluator = ReferenceEvaluator(step.model, new_ops=OPERATORS)
    names = [output.name for output in step.model.graph.output]
    given = {value.name for value in step.model.graph.input}
    feeds = {name: value for name, value in feeds.items() if name in given}
    results = dict(zip(names, evaluator.run(None, feeds), strict=True))
    gradients = dict(zip((p.name for p in step.parameters), names[1:], strict=False))
    plain = ReferenceEvaluator(model, new_ops=OPERATORS)
    for name in wanted:
        got = results[gradients[name]]
        assert got.shape == case.inputs[name].shape, name
        assert got.dtype == np.float64, name
        _compare(plain, case, name, got)


def opened(case: Case, only: Sequence[str] = ()) -> Case:
    """Return the case with all sizes of what its operators read unknown until it runs.

    Each float input goes through a Reshape to a shape that is an input itself.
    """
    floats = [name for name, value in case.inputs.items() if value.dtype.kind == "f"]
    names = [name for name in floats if not only or name in only]
    inputs = {f"{name}_given" if name in names else name: v for name, v in case.inputs.items()}
    shapes = {f"{name}_shape": np.array(case.inputs[name].shape, np.int64) for name in names}
    moves = " ".join(f"{name} = Reshape({name}_given, {name}_shape)" for name in names)
    wanted = tuple(
        f"{name}_given" if name in names else name for name in (case.wanted or floats)
    )
    body = f"{moves} {case.body}"
    return replace(case, body=body, inputs={**inputs, **shapes}, wanted=wanted)


def check_in_runtime(case: Case) -> None:
    """Assert that ONNX Runtime runs the step in float32 and agrees with the evaluator."""
    single = in_float32(case)
    wanted = case.wanted or tuple(n for n, v in case.inputs.items() if v.dtype.kind == "f")
    model = _model(single)
    step = make_train_step(model, Recipe("loss", None, wanted, statistics=case.statistics))
    renamed = {p.name: p.input for p in (*step.parameters, *step.running)}
    known = {**single.constants, **single.inputs}
    given = {value.name for value in step.model.graph.input}
    feeds = {renamed.get(name, name): value for name, value in known.items()}
    feeds = {name: value for name, value in feeds.items() if name in given}
    _assert_alike(step.model, feeds)


def check_evaluator(case: Case) -> None:
    """Assert that ONNX Runtime and the evaluator agree on a case without any gradient."""
    single = in_float32(case)
    model = parsed(single, list(single.outputs), single.body, single.constants)
    _assert_alike(model, single.inputs)


def _assert_alike(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    got = session.run(None, feeds)
    expected = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, feeds)
    names = [output.name for output in model.graph.output]
    for name, one, other in zip(names, got, expected, strict=True):
        error = float(np.linalg.norm(np.subtract(one, other)))
        assert one.shape == other.shape, name
        assert error <= 1e-3 * max(float(np.linalg.norm(other)), 1e-2), (name, one, other)


def in_float32(case: Case) -> Case:
    """Return the case with float32 for float64."""
    return replace(
        case,
        inputs={name: narrowed(value) for name, value in case.inputs.items()},
        constants={name: narrowed(value) for name, value in case.constants.items()},
        body=case.body.replace("double", "float").replace("to=11", "to=1"),
    )


def narrowed(value: Array) -> Array:
    """Return float64 values as float32, others as they are."""
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _compare(plain: ReferenceEvaluator, case: Case, name: str, gradient: Array) -> None:
    expected, found = [], []
    for direction in directions(case.inputs[name].shape):
        ends = [
            plain.run(
                ["loss"], {**case.inputs, name: case.inputs[name] + side * _STEP * direction}
            )
            for side in (1, -1)
        ]
        expected.append(float(ends[0][0] - ends[1][0]) / (2 * _STEP))
        found.append(float((gradient * direction).sum()))
    error = np.linalg.norm(np.subtract(found, expected))
    assert error <= 1e-5 * max(float(np.linalg.norm(expected)), 1e-3), (name, found, expected)


def directions(shape: tuple[int, ...]) -> list[Array]:
    """All unit directions of a small tensor; some random ones of a large one."""
    count = int(np.prod(shape))
    if count <= 12:
        return [np.reshape(unit, shape) for unit in np.eye(count)]
    rng = np.random.default_rng(count)
    return [rng.standard_normal(shape) / np.sqrt(count) for _ in range(5)]


def _model(case: Case) -> onnx.ModelProto:
    """Put a loss behind the nodes: a random combination of all their results."""
    terms = []
    shapes = _result_shapes(case)
    constants = dict(case.constants)
    rng = np.random.default_rng(7)
    for index, (name, shape) in enumerate(zip(case.outputs, shapes, strict=True)):
        kind = next(iter(v.dtype for v in case.inputs.values() if v.dtype.kind == "f"))
        constants[f"r{index}"] = rng.standard_normal(shape).astype(kind)
        terms.append(
            f"p{index} = Mul({name}, r{index}) t{index} = ReduceSum<keepdims=0>(p{index})"
        )
    total = ", ".join(f"t{index}" for index in range(len(shapes)))
    text = f"{case.body} {' '.join(terms)} loss = Sum({total})"
    return parsed(case, ["loss"], text, constants)


def _result_shapes(case: Case) -> list[tuple[int, ...]]:
    model = parsed(case, list(case.outputs), case.body, case.constants)
    values = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, case.inputs)
    return [value.shape for value in values]


def parsed(
    case: Case, outputs: list[str], body: str, constants: dict[str, Array]
) -> onnx.ModelProto:
    """Return a body as a model that reads the case's inputs and gives ``outputs``."""
    header = f'<ir_version: 10, opset_import: ["": {case.opset}]>'
    model = onnx.parser.parse_model(f"{header} g () => () {{ {body} }}")
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    for name, value in case.inputs.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, kind, list(value.shape))
        )
    for name in outputs:
        shape: list[int] | None = [] if name == "loss" else None
        kind = next(v.dtype for v in case.inputs.values() if v.dtype.kind == "f")
        element = onnx.helper.np_dtype_to_tensor_dtype(kind)
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, element, shape))
    return model
