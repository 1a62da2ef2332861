"""Which weights are trained by default: what ONNX's schemas call weights, moved or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto, helper

from memplan_cli.features.training.parameters import (
    float_inputs,
    float_weights,
    select_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import GraphProto, NodeProto

WEIGHTS = ("W", "R", "P", "scale", "Scale", "bias", "slope")
"""Names of inputs that training changes, whatever the operator is."""

OPERANDS = {
    "Add": "AB",
    "Attention": "QKV",
    "Gather": ["data"],
    "Gemm": "ABC",
    "MatMul": "AB",
    "Mul": "AB",
    "Sum": ["data_0"],
}
"""Operators whose operands may be weights, and the names of these operands."""

NO_RULE = {"CausalConvWithState", "DeformConv"}
"""Layers without a gradient rule: their weights are not trained."""

FLOATING = "tensor(float)"


def schemas() -> Iterator[onnx.defs.OpSchema]:
    """Yield the newest schema of each operator of ONNX's own domain."""
    for schema in sorted(onnx.defs.get_all_schemas(), key=lambda schema: schema.name):
        if schema.domain == "" and not schema.deprecated:
            yield schema


def takes_floats(schema: onnx.defs.OpSchema, type_str: str) -> bool:
    """Whether an input of this type, or type parameter, may be float."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    return FLOATING in (type_str, *allowed.get(type_str, ()))


def inputs_of(schema: onnx.defs.OpSchema) -> list[tuple[int, str]]:
    """Return the index and name of each input that may be float, of a variadic input the first two."""
    inputs = []
    for index, formal in enumerate(schema.inputs):
        if takes_floats(schema, formal.type_str):
            inputs.append((index, formal.name))
            if formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
                inputs.append((index + 1, formal.name))
    return inputs


def is_learned(schema: onnx.defs.OpSchema, name: str) -> bool:
    if schema.name in OPERANDS:
        return name in OPERANDS[schema.name]
    if schema.name in NO_RULE or "Quantize" in schema.name:
        return False
    is_layer = not {"W", "scale", "Scale"}.isdisjoint(i.name for i in schema.inputs)
    return name in WEIGHTS or (name == "B" and is_layer)


def graph_of(nodes: list[NodeProto], *weights: str) -> GraphProto:
    """Return a graph with weights of one kind, and an input ``x`` of it."""
    tensors = [helper.make_tensor(name, 1, [2, 2], [1.0] * 4) for name in (*weights, "other")]
    extra = helper.make_node("Add", ["x", "other"], ["end"])
    result = helper.make_tensor_value_info("end", 1, None)
    given = helper.make_tensor_value_info("x", 1, [2, 2])
    return helper.make_graph([*nodes, extra], "g", [given], [result], tensors)


def trained(graph: GraphProto) -> set[str]:
    return {parameter.name for parameter in select_parameters(graph).parameters} - {"other"}


FLOAT_INPUTS = [
    (schema, index, name) for schema in schemas() for index, name in inputs_of(schema)
]


def test_inputs_that_schemas_call_weights_are_trained_and_no_others() -> None:
    wrong = []
    for schema, index, name in FLOAT_INPUTS:
        inputs = ["x"] * index + ["w"]
        graph = graph_of([helper.make_node(schema.name, inputs, ["y"])], "w")
        if trained(graph) != ({"w"} if is_learned(schema, name) else set()):
            wrong.append((schema.name, index, name))
    assert wrong == []


MOVES = ("Cast", "Concat", "Expand", "Identity", "Reshape", "Slice", "Split", "Squeeze",
         "Transpose", "Unsqueeze")  # fmt: skip


@pytest.mark.parametrize("kind", MOVES)
def test_a_weight_is_trained_behind_operators_that_move_its_elements(kind: str) -> None:
    for result in (0, 1):
        move = helper.make_node(kind, ["w"], ["a", "b"])
        use = helper.make_node("MatMul", ["x", "ab"[result]], ["y"])
        assert trained(graph_of([move, use], "w")) == {"w"}
    pair = helper.make_node("Concat", ["w", "v"], ["a"])
    again = helper.make_node(kind, ["a"], ["b"])
    use = helper.make_node("MatMul", ["x", "b"], ["y"])
    assert trained(graph_of([pair, again, use], "w", "v")) == {"w", "v"}


@pytest.mark.parametrize("kind", ["Relu", "Resize", "Exp", "Shape"])
def test_a_weight_is_not_trained_behind_operators_that_compute(kind: str) -> None:
    made = helper.make_node(kind, ["w"], ["a"])
    use = helper.make_node("MatMul", ["x", "a"], ["y"])
    assert trained(graph_of([made, use], "w")) == set()
    selection = select_parameters(graph_of([made, use], "w"))
    assert "no operator reads it" in selection.not_trained["w"]


def test_integers_are_no_weights() -> None:
    graph = graph_of([helper.make_node("Gather", ["x", "rows"], ["y"])])
    graph.initializer.append(helper.make_tensor("rows", TensorProto.INT64, [1], [0]))
    assert list(float_weights(graph)) == ["other"]


@pytest.mark.parametrize(
    ("dtype", "shape", "is_there"),
    [
        (TensorProto.FLOAT, [2, 2], True),
        (TensorProto.FLOAT16, [], True),
        (TensorProto.INT64, [2], False),
        (TensorProto.FLOAT, ["n"], False),
        (TensorProto.FLOAT, None, False),
        (TensorProto.STRING, ["n"], False),
    ],
)
def test_only_float_inputs_of_fixed_size_can_be_trained(
    dtype: int, shape: list[int | str] | None, *, is_there: bool
) -> None:
    given = helper.make_tensor_value_info("x", dtype, shape)
    found = float_inputs(helper.make_graph([], "g", [given], []))
    assert list(found) == (["x"] if is_there else [])
