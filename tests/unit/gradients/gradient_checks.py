"""Is a gradient what central differences say? In float64, by an evaluator of our own choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from memplan_cli.onnx_io.gradients.train_step import Recipe, Statistics, make_train_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_TYPES = {"float64": "double", "int64": "int64", "int32": "int32", "bool": "bool"}
_STEP = 1e-5


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


class ConvTranspose(OpRun):  # type: ignore[misc] - onnx has no types
    """onnx's own fails on groups; the definition in four lines."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, **how: Any) -> tuple[Array]:
        count = x.ndim - 2
        strides = how.get("strides") or [1] * count
        dilations = how.get("dilations") or [1] * count
        pads = how.get("pads") or [0] * (2 * count)
        extra = how.get("output_padding") or [0] * count
        group = how.get("group") or 1
        if how.get("output_shape") or (how.get("auto_pad") or "NOTSET") not in ("NOTSET", "VALID"):
            pads = self._resolved(x, w, how, (strides, dilations, extra))
        full = [
            (n - 1) * s + (k - 1) * d + 1 + e
            for n, s, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)
        ]
        per_group, own = w.shape[1], x.shape[1] // group
        out = np.zeros((x.shape[0], per_group * group, *full), x.dtype)
        for g in range(group):
            xs, ws = x[:, g * own : (g + 1) * own], w[g * own : (g + 1) * own]
            for tap in product(*(range(k) for k in w.shape[2:])):
                part = np.einsum("nc...,cm->nm...", xs, ws[(slice(None), slice(None), *tap)])
                places = tuple(
                    slice(t * d, t * d + (n - 1) * s + 1, s)
                    for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
                )
                out[(slice(None), slice(g * per_group, (g + 1) * per_group), *places)] += part
        cut = tuple(slice(p, n - q) for p, q, n in zip(pads[:count], pads[count:], full, strict=True))
        out = out[(slice(None), slice(None), *cut)]
        return (out if b is None else out + b.reshape(1, -1, *[1] * count),)

    def _resolved(self, x: Array, w: Array, how: dict[str, Any], given: Any) -> list[int]:
        begins, ends = [], []
        for axis, (s, d, e) in enumerate(zip(*given, strict=True)):
            n, k = x.shape[axis + 2], w.shape[axis + 2]
            want = (how.get("output_shape") or [n * s for n, s in zip(x.shape[2:], given[0], strict=True)])
            total = max((n - 1) * s + (k - 1) * d + 1 + e - want[axis], 0)
            half = total // 2
            begin = half if how.get("auto_pad") == "SAME_UPPER" else total - half
            begins.append(begin)
            ends.append(total - begin)
        return begins + ends


class LRN(OpRun):  # type: ignore[misc] - onnx has no types
    """onnx's own reads beyond the channels."""

    op_domain = ""

    def _run(self, x: Array, **how: Any) -> tuple[Array]:
        size = how["size"]
        before, behind = (size - 1) // 2, size - 1 - (size - 1) // 2
        squares = np.stack(
            [
                (x[:, max(c - before, 0) : c + behind + 1] ** 2).sum(axis=1)
                for c in range(x.shape[1])
            ],
            axis=1,
        )
        alpha, beta, bias = how["alpha"], how["beta"], how["bias"]
        return (x / (bias + alpha / size * squares) ** beta,)


def check(case: Case) -> None:
    """Assert that every wanted gradient agrees with central differences to 1e-5."""
    wanted = case.wanted or tuple(n for n, v in case.inputs.items() if v.dtype.kind == "f")
    model = _model(case)
    recipe = Recipe("loss", None, wanted, statistics=case.statistics)
    step = make_train_step(model, recipe)
    onnx.checker.check_model(step.model)
    renamed = {p.name: p.input for p in step.parameters}
    feeds = {renamed.get(name, name): value for name, value in case.inputs.items()}
    evaluator = ReferenceEvaluator(step.model, new_ops=[ConvTranspose, LRN])
    names = [output.name for output in step.model.graph.output]
    given = {value.name for value in step.model.graph.input}
    feeds = {name: value for name, value in feeds.items() if name in given}
    results = dict(zip(names, evaluator.run(None, feeds), strict=True))
    gradients = dict(zip((p.name for p in step.parameters), names[1:], strict=False))
    plain = ReferenceEvaluator(model, new_ops=[ConvTranspose, LRN])
    for name in wanted:
        got = results[gradients[name]]
        assert got.shape == case.inputs[name].shape, name
        assert got.dtype == np.float64, name
        _compare(plain, case, name, got)


def _compare(plain: ReferenceEvaluator, case: Case, name: str, gradient: Array) -> None:
    expected, found = [], []
    for direction in _directions(case.inputs[name].shape):
        ends = [
            plain.run(["loss"], {**case.inputs, name: case.inputs[name] + side * _STEP * direction})
            for side in (1, -1)
        ]
        expected.append(float(ends[0][0] - ends[1][0]) / (2 * _STEP))
        found.append(float((gradient * direction).sum()))
    error = np.linalg.norm(np.subtract(found, expected))
    assert error <= 1e-5 * max(np.linalg.norm(expected), 1e-3), (name, found, expected)


def _directions(shape: tuple[int, ...]) -> list[Array]:
    """All unit directions of a small tensor; some random ones of a large one."""
    count = int(np.prod(shape))
    if count <= 12:
        return [np.reshape(unit, shape) for unit in np.eye(count)]
    rng = np.random.default_rng(count)
    return [rng.standard_normal(shape) / np.sqrt(count) for _ in range(5)]


def _model(case: Case) -> onnx.ModelProto:
    """Put a loss behind the nodes: a random combination of all their results."""
    signature = ", ".join(_declared(name, value) for name, value in case.inputs.items())
    terms = []
    shapes = _result_shapes(case, signature)
    constants = dict(case.constants)
    rng = np.random.default_rng(7)
    for index, (name, shape) in enumerate(zip(case.outputs, shapes, strict=True)):
        constants[f"r{index}"] = rng.standard_normal(shape)
        terms.append(f"p{index} = Mul({name}, r{index}) t{index} = ReduceSum<keepdims=0>(p{index})")
    total = ", ".join(f"t{index}" for index in range(len(shapes)))
    text = f"{case.body} {' '.join(terms)} loss = Sum({total})"
    return _parse(case, signature, "double loss", text, constants)


def _result_shapes(case: Case, signature: str) -> list[tuple[int, ...]]:
    outputs = ", ".join(f"double {name}" for name in case.outputs)
    model = _parse(case, signature, outputs, case.body, case.constants)
    values = ReferenceEvaluator(model, new_ops=[ConvTranspose, LRN]).run(None, case.inputs)
    return [value.shape for value in values]


def _parse(
    case: Case, signature: str, outputs: str, body: str, constants: dict[str, Array]
) -> onnx.ModelProto:
    header = f'<ir_version: 10, opset_import: ["": {case.opset}]>'
    model = onnx.parser.parse_model(f"{header} g ({signature}) => ({outputs}) {{ {body} }}")
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    for output in model.graph.output:
        if output.name != "loss":
            output.type.tensor_type.ClearField("shape")
    return model


def _declared(name: str, value: Array) -> str:
    return f"{_TYPES[str(value.dtype)]}[{', '.join(map(str, value.shape))}] {name}"
