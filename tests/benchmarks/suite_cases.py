"""The test models of the onnx package's backend suite, with their inputs and answers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True)
class Case:
    """One test model with its inputs and expected outputs."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    expected: list[Any]
    rtol: float
    atol: float


def names() -> list[str]:
    """Return the names of all cases, in a fixed order."""
    found = [f"node/{case.name}" for case in node_cases()]
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        found += sorted(
            f"{kind}/{path.parent.name}" for path in (DATA / kind).glob("*/model.onnx")
        )
    return found + sorted(f"light/{path.stem}" for path in (DATA / "light").glob("*.onnx"))


def node_cases() -> list[Any]:
    """Return the onnx package's cases of single nodes, as it makes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases: list[Any] = load_model_tests(kind="node")
    return cases


def cases(wanted: Sequence[str]) -> Iterator[Case]:
    """Yield the cases of these names, in their order."""
    nodes = {}
    if any(name.startswith("node/") for name in wanted):
        nodes = {f"node/{case.name}": case for case in node_cases()}
    for name in wanted:
        kind, _, stem = name.partition("/")
        if name in nodes:
            case = nodes[name]
            inputs, outputs = ([_array(v) for v in values] for values in case.data_sets[0])
            yield Case(name, case.model, inputs, outputs, case.rtol, case.atol)
        elif kind == "light":
            model = onnx.load(DATA / "light" / f"{stem}.onnx")
            yield Case(name, model, _ones(model), [], 1e-3, 1e-7)
        else:
            yield _from_files(name, DATA / kind / stem)


def _array(value: Any) -> Any:  # noqa: ANN401 - arrays, lists, None
    """Return a value of types that NumPy has not, which come as protos, as arrays too."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _from_files(name: str, folder: Path) -> Case:
    model = onnx.load(folder / "model.onnx")
    data = min(folder.glob("test_data_set_*"))
    inputs, outputs = (
        [_value(path, info) for path, info in zip(_files(data, kind), infos, strict=False)]
        for kind, infos in (("input", model.graph.input), ("output", model.graph.output))
    )
    return Case(name, model, inputs, outputs, 1e-3, 1e-7)


def _ones(model: onnx.ModelProto) -> list[Any]:
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes = [
        [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in model.graph.input
        if v.name not in weights
    ]
    return [np.ones(shape, np.float32) for shape in shapes]


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.rpartition("_")[2]))


def _value(path: Path, info: onnx.ValueInfoProto) -> Any:  # noqa: ANN401 - arrays, lists, None
    data = path.read_bytes()
    which = info.type.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
