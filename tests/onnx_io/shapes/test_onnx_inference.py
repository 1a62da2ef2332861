"""ONNX's own inference is asked in a way that it survives, and loses nothing by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser

from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes

if TYPE_CHECKING:
    from onnx import ModelProto

HEAD = '<ir_version: 10, opset_import: ["" : 22, "nobody" : 1]>'


def inferred(body: str) -> ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} g (float[3,4] x) => (y) {{ {body} }}")
    return infer_shapes(model.SerializeToString())


def shapes(model: ModelProto) -> dict[str, list[int]]:
    return {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.value_info, *model.graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def test_operator_that_needs_its_inputs_type_is_inferred_once_that_is_known() -> None:
    found = inferred("a = Relu(x) b = EyeLike<k=1>(a) c = EyeLike<k=1>(b) y = Neg(c)")
    assert shapes(found) == {name: [3, 4] for name in "abcy"}
    assert [node.op_type for node in found.graph.node] == ["Relu", "EyeLike", "EyeLike", "Neg"]


def test_operator_whose_inputs_type_nobody_knows_is_passed_over() -> None:
    found = inferred("a = nobody.Foo(x) b = EyeLike<k=1>(a) y = Relu(x)")
    assert shapes(found) == {"y": [3, 4]}
    assert [node.op_type for node in found.graph.node] == ["Foo", "EyeLike", "Relu"]


def test_body_sees_the_types_around_it() -> None:
    then = "then_branch = t () => (u) { u = EyeLike<k=1>(x) }"
    other = "else_branch = e () => (v) { v = EyeLike<k=1>(ghost) }"
    found = inferred(
        f"ghost = nobody.Foo(x) c = Constant<value = bool {{1}}>() y = If(c) <{then}, {other}>"
    )
    (owner,) = (node for node in found.graph.node if node.op_type == "If")
    types = {a.name: a.g.output[0].type.WhichOneof("value") for a in owner.attribute}
    assert types == {"then_branch": "tensor_type", "else_branch": None}
