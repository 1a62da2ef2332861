"""What a file declares of its values: read once for each type, and believed where complete."""

from __future__ import annotations

from unittest.mock import Mock

import onnx
import pytest
from onnx import TensorProto, helper

from builders import parse
from memplan_cli.core.program import VarId
from memplan_cli.onnx_io.shapes import infer as inferred_shapes
from memplan_cli.onnx_io.shapes import reading as read
from memplan_cli.onnx_io.shapes.infer import infer
from memplan_cli.onnx_io.types import declared_types

CHAIN = "g (float[4,5] x) => (float[4,5] z) { t = Relu(x) z = Neg(t) }"


def declared(text: str, *values: onnx.ValueInfoProto) -> onnx.ModelProto:
    model = parse(text)
    model.graph.value_info.extend(values)
    return model


def value(
    name: str, *dims: int | str | None, dtype: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(dims))


def test_types_are_told_apart_by_dtype_dims_and_kind() -> None:
    model = declared(
        CHAIN,
        value("a", 2, 3),
        value("b", 2, 3),
        value("c", 3, 2),
        value("d", 2, 3, dtype=TensorProto.INT8),
        value("e", "n", None),
        helper.make_tensor_sequence_value_info("f", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("h", TensorProto.FLOAT, None),
    )
    found = declared_types(model.graph)
    assert found["a"] == found["b"] == ("float32", (2, 3))
    assert found["c"] == ("float32", (3, 2))
    assert found["d"] == ("int8", (2, 3))
    assert found["e"] == ("float32", ("n", None))
    assert found["f"] == ("sequence(float32)", None)
    assert found["h"] == ("float32", None)


def is_inferred(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> bool:
    asked = Mock(side_effect=infer)
    monkeypatch.setattr(inferred_shapes, "infer", asked)
    read.read_program(model)
    return asked.called


def test_a_file_that_says_every_shape_in_numbers_is_not_inferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_inferred(declared(CHAIN, value("t", 4, 5)), monkeypatch)


@pytest.mark.parametrize(
    "model",
    [
        declared(CHAIN),
        declared(CHAIN, value("t", 4, "n")),
        declared(CHAIN, value("t", 4, None)),
        declared(CHAIN, value("t", 4, 5, dtype=TensorProto.UNDEFINED)),
        declared(CHAIN, helper.make_tensor_value_info("t", TensorProto.FLOAT, None)),
        declared(CHAIN.replace("x)", "x, float[n] unused)", 1), value("t", 4, 5)),
        declared(CHAIN.replace("=> (float[4,5] z", "=> (float[m] z"), value("t", 4, 5)),
    ],
    ids=["none", "symbol", "hole", "no dtype", "no rank", "free input", "free output"],
)
def test_a_model_with_incomplete_declarations_is_inferred(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_inferred(model, monkeypatch)


def test_a_second_result_that_is_not_declared_is_inferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "g (float[4,4] x) => (float[2,4] y) { y, z = Split<axis=0, num_outputs=2>(x) }"
    model = declared(text, value("unused", 1))
    assert is_inferred(model, monkeypatch)
    assert read.read_program(model).program.vars[VarId("z")].shape == (2, 4)


@pytest.mark.parametrize(
    "wrong",
    [value("t", 2, 3), value("t", 4, 5, 1), value("t", 4, 5, dtype=TensorProto.DOUBLE)],
    ids=["dims", "rank", "dtype"],
)
def test_inference_would_have_kept_what_the_file_says(wrong: onnx.ValueInfoProto) -> None:
    """The reason why nothing is lost: what is declared in numbers stays, right or wrong."""
    model = declared(CHAIN, wrong)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    assert declared_types(inferred.graph)["t"] == declared_types(model.graph)["t"]
    assert (
        read.read_program(model).program.vars[VarId("t")].shape
        == declared_types(model.graph)["t"][1]
    )


def test_bodies_are_inferred_although_the_top_is_complete() -> None:
    model = parse("""g (bool c, float[4] x) => (float[4] z) {
        z = If (c) <then_branch = t () => (float[4] a) { u = Exp(x) a = Neg(u) },
                    else_branch = e () => (float[4] b) { b = Neg(x) }> }""")
    program = read.read_program(model).program
    inner = next(var for var in program.vars.values() if var.name == "u")
    assert inner.shape == (4,)
