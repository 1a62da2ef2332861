"""The models of ../shared with weights, and inputs as their JSON files say."""

from __future__ import annotations

import importlib.util
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.numpy_helper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def load(name: str) -> onnx.ModelProto:
    """Return a model as it is, its stripped weights still missing."""
    return onnx.load(SHARED / f"{name}.onnx", load_external_data=False)


def filled(name: str, folder: Path) -> onnx.ModelProto:
    """Return a model with seeded weights in it."""
    path = folder / f"{name}.onnx"
    spec = importlib.util.spec_from_file_location("fill_weights", SHARED / "fill_weights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.fill(str(SHARED / f"{name}.onnx"), str(path))
    return onnx.load(path)


def with_stored_weights(source: Path) -> onnx.ModelProto:
    """Return a ``light_*`` model with its constant weights stored, which it makes with ConstantOfShape."""
    model = onnx.load(str(source))
    shapes = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "ConstantOfShape":
            (value,) = onnx.numpy_helper.to_array(node.attribute[0].t)
            data = np.full(tuple(shapes[node.input[0]]), value)
            model.graph.initializer.append(onnx.numpy_helper.from_array(data, node.output[0]))
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(
                    node.output[0], onnx.TensorProto.FLOAT, data.shape
                )
            )
        else:
            model.graph.node.append(node)
    return model


def with_random_weights(source: Path, target: Path) -> None:
    """Put seeded data where a ``light_*`` file makes constant weights with ConstantOfShape."""
    model = onnx.load(str(source))
    shapes = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    generator = np.random.default_rng(0)
    nodes = list(model.graph.node)
    variances = {node.input[4] for node in nodes if node.op_type == "BatchNormalization"}
    del model.graph.node[:]
    for node in nodes:
        if node.op_type != "ConstantOfShape":
            model.graph.node.append(node)
            continue
        shape = tuple(int(dim) for dim in shapes[node.input[0]])
        drawn = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
        data = np.abs(drawn) + np.float32(0.5) if node.output[0] in variances else drawn
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, node.output[0]))
    model.ir_version = 8
    onnx.save(model, str(target))


def draw_inputs(name: str) -> dict[str, Array]:
    """Draw the inputs that a model's JSON file describes."""
    text = (SHARED / "inputs" / f"{name}.json").read_text(encoding="utf-8")
    spec = json.loads(text)
    return {
        key: _draw(key, how, spec.get("dynamic", {})) for key, how in spec["inputs"].items()
    }


def _draw(name: str, how: dict[str, Any], dims: dict[str, int]) -> Array:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    kind, *numbers = how["gen"].split()
    shape = [dims[dim] if isinstance(dim, str) else dim for dim in how["shape"]]
    values = [float(number) for number in numbers]
    made: Array
    if kind == "normal":
        made = rng.standard_normal(shape) * (values or [1.0])[0]
    elif kind == "const":
        made = np.full(shape, values[0])
    elif kind == "zeros":
        made = np.zeros(shape)
    elif kind == "ones":
        made = np.ones(shape)
    elif kind == "randint":
        made = rng.integers(int(values[0]), int(values[1]), shape)
    else:
        raise ValueError(how["gen"])
    return made.astype(how["dtype"])


def gradient_tensors(model: onnx.ModelProto) -> dict[str, str]:
    """Return the gradient tensor of each ``in.X`` of a PyTorch-made training step.

    They are found behind the update formulas: ``new.X = in.X - lr g`` (SGD), and
    ``new.m.X = u in.m.X + g`` or ``a in.m.X + (1 - a) g`` (momentum, Adam).
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for output in model.graph.output:
        stem = output.name.removeprefix("new.")
        if stem == output.name or stem.startswith(("m.", "v.")) or ".running_" in stem:
            continue
        moment = makers.get(f"new.m.{stem}")
        if moment is None:
            scaled = makers[makers[output.name].input[1]]
            found[f"in.{stem}"] = scaled.input[0]
            continue
        addend = moment.input[1]
        maker = makers[addend]
        if maker.op_type == "Mul" and maker.input[1] in constants and "adam" in _kind(model):
            addend = maker.input[0]
        found[f"in.{stem}"] = addend
    return found


def _kind(model: onnx.ModelProto) -> str:
    squares = any(output.name.startswith("new.v.") for output in model.graph.output)
    return "adam" if squares else "momentum"
