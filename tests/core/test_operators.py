"""The registry of operators against the standard: its schemas, inference and evaluator."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, defs, helper, shape_inference
from onnx.reference import ReferenceEvaluator

from memplan_cli.core.operators import (
    CONTROL_FLOW,
    MICROSOFT,
    ONNX,
    ONNX_LONG_NAME,
    OPERATORS,
    SHAPE_QUERIES,
    Exactness,
    Family,
    Operator,
    is_random,
    lookup,
    names_of,
    operator,
    qualified_name,
)
from memplan_cli.core.program import Op, VarId

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMAS = {
    schema.name: schema
    for schema in sorted(defs.get_all_schemas_with_history(), key=lambda s: s.since_version)
    if not schema.domain
}
"""The newest schema of each operator of the standard domain."""

STANDARD = [each for each in OPERATORS if each.domain == ONNX]
BY_NAME = {each.name: each for each in STANDARD}

Attribute = defs.OpSchema.AttrType
Parameter = defs.OpSchema.FormalParameterOption

ATTRIBUTES: dict[str, dict[str, object]] = {
    "BitShift": {"direction": "LEFT"},
    "Cast": {"to": TensorProto.FLOAT},
    "GroupNormalization": {"num_groups": 1},
    "LRN": {"size": 1},
    "Multinomial": {"sample_size": 1},
}
"""Attributes that an operator cannot do without."""

ROWS = (np.arange(12, dtype=np.float32).reshape(1, 3, 4) + 1) / 4


def test_an_operator_has_one_row() -> None:
    keys = [(each.domain, each.name) for each in OPERATORS]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("traits", STANDARD, ids=lambda each: each.name)
def test_positions_are_those_of_the_schema(traits: Operator) -> None:
    schema = SCHEMAS[traits.name]
    places = [*traits.in_place, *traits.moves[:1]]
    places += [] if traits.random_with_input is None else [traits.random_with_input]
    places += [traits.shape_from] if traits.shape_from else []
    assert all(place < schema.max_input for place in places)
    assert all(
        schema.outputs[place].option == Parameter.Optional for place in traits.optional_outputs
    )


def test_operators_with_a_subgraph_are_control_flow_and_may_repeat_a_body() -> None:
    graphs = {
        name: [key for key, each in schema.attributes.items() if each.type == Attribute.GRAPH]
        for name, schema in SCHEMAS.items()
    }
    assert {name for name, found in graphs.items() if found} == CONTROL_FLOW
    assert {name for name, found in graphs.items() if found == ["body"]} == set(
        names_of(lambda each: each.repeats_body)
    )


def test_operators_with_a_seed_are_random() -> None:
    seeded = {name for name, schema in SCHEMAS.items() if "seed" in schema.attributes}
    assert seeded == set(names_of(lambda each: each.is_random))


def inferred_dims(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the dims that ONNX infers for the first result; None if it infers none."""
    schema = SCHEMAS[name]
    inputs = [f"x{at}" for at in range(max(len(shapes), schema.min_input))]
    types = [allowed_type(schema, at) for at in range(len(inputs))]
    dims = [*shapes, *[shapes[0]] * (len(inputs) - len(shapes))]
    node = helper.make_node(name, inputs, ["y"], **ATTRIBUTES.get(name, {}))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(*each)
            for each in zip(inputs, types, dims, strict=True)
        ],
        [helper.make_empty_tensor_value_info("y")],
    )
    opset = 10 if schema.deprecated else defs.onnx_opset_version()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = shape_inference.infer_shapes(model, data_prop=False).graph.output[0].type
    if not found.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value for dim in found.tensor_type.shape.dim)


def allowed_type(schema: defs.OpSchema, position: int) -> int:
    """Return the element type float if an input may have it, else one that it may have."""
    allowed = schema.inputs[min(position, len(schema.inputs) - 1)].types
    names = {"tensor(float)": "FLOAT", "tensor(bool)": "BOOL", "tensor(int64)": "INT64"}
    names["tensor(uint8)"] = "UINT8"
    return next(
        int(TensorProto.DataType.Value(kind))
        for text, kind in names.items()
        if text in allowed
    )


@pytest.mark.parametrize("name", names_of(lambda each: each.keeps_shape))
def test_a_result_keeps_the_dims_of_the_first_input(name: str) -> None:
    dims = (3, 4) if name == "EyeLike" else (2, 3, 4)
    assert inferred_dims(name, dims) in (dims, None)


def test_inference_knows_nearly_all_of_the_dims_that_are_kept() -> None:
    names = names_of(lambda each: each.keeps_shape and each.family is Family.UNARY)
    assert [name for name in names if inferred_dims(name, (2, 3)) is None] == []


@pytest.mark.parametrize("name", names_of(lambda each: each.broadcasts))
def test_operands_are_broadcast(name: str) -> None:
    shapes = ((2, 1), (1, 3)) if name != "Where" else ((2, 1), (1, 3), (1, 1))
    assert inferred_dims(name, *shapes) == (2, 3)


def test_the_standards_functions_of_each_element_all_have_a_row() -> None:
    """They take one tensor of floats and keep its dims, as do a few operators that are none."""
    kept = {
        name
        for name, schema in SCHEMAS.items()
        if not schema.deprecated
        and schema.min_input == 1
        and schema.max_input == 1
        and schema.max_output == 1
        and not any(each.required for each in schema.attributes.values())
        and "tensor(float)" in schema.inputs[0].types
        and schema.inputs[0].option != Parameter.Variadic
        and inferred_dims(name, (2, 3, 4)) == (2, 3, 4)
    }
    others = {name for name in kept if not lookup("", name).is_elementwise}
    along_an_axis = {"Hardmax", "LogSoftmax", "LpNormalization", "Softmax"}
    drawn = {"Bernoulli", "RandomNormalLike", "RandomUniformLike"}
    assert others == along_an_axis | drawn | {"OptionalGetElement"}
    assert {name for name in kept if not lookup("", name).keeps_shape} == {
        "OptionalGetElement"
    }


def test_operators_that_are_called_so_are_reductions_and_shape_queries() -> None:
    reductions = {name for name in SCHEMAS if name.startswith("Reduce")}
    assert reductions == set(names_of(lambda each: each.family is Family.REDUCTION))
    assert {"Shape", "Size"} == SHAPE_QUERIES


def evaluated(name: str, x: NDArray[Any], **inputs: NDArray[Any]) -> NDArray[Any]:
    """Return the first result of an operator; further inputs are constants."""
    arrays = {"x": x, **inputs}
    node = helper.make_node(name, list(arrays), ["y"], **ATTRIBUTES.get(name, {}))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                key, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
            )
            for key, a in arrays.items()
        ],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return np.asarray(ReferenceEvaluator(model).run(None, arrays)[0])


def numbers(*values: int) -> NDArray[Any]:
    return np.array(values, np.int64)


FURTHER_INPUTS: dict[str, dict[str, NDArray[Any]]] = {
    "Compress": {"condition": np.array([True, False, True])},
    "CumSum": {"axis": np.array(1, np.int64)},
    "Expand": {"shape": numbers(2, 3, 4)},
    "Gather": {"indices": numbers(0)},
    "Reshape": {"shape": numbers(4, 3)},
    "Slice": {"starts": numbers(1), "ends": numbers(3), "axes": numbers(1)},
    "Squeeze": {"axes": numbers(0)},
    "Tile": {"repeats": numbers(2, 1, 1)},
    "Unsqueeze": {"axes": numbers(1)},
}


@pytest.mark.parametrize("name", names_of(lambda each: each.is_view))
def test_a_view_has_every_byte_of_its_input(name: str) -> None:
    assert evaluated(name, ROWS, **FURTHER_INPUTS.get(name, {})).tobytes() == ROWS.tobytes()


@pytest.mark.parametrize("name", ["Neg", "Cast", "Transpose", "Expand", "Slice", "Tile"])
def test_an_operator_with_other_bytes_is_no_view(name: str) -> None:
    ATTRIBUTES["Cast"] = {"to": TensorProto.INT32}
    assert evaluated(name, ROWS, **FURTHER_INPUTS.get(name, {})).tobytes() != ROWS.tobytes()
    assert not BY_NAME[name].is_view


@pytest.mark.parametrize(
    "name", ["Compress", "Expand", "Gather", "Slice", "Tile", "Transpose", "Trilu"]
)
def test_a_movement_has_elements_of_its_input_alone(name: str) -> None:
    assert BY_NAME[name].moves == (0,)
    result = evaluated(name, ROWS, **FURTHER_INPUTS.get(name, {}))
    zeros = {0.0} if BY_NAME[name].family is Family.MASK else set()
    assert set(result.flat) <= set(ROWS.flat) | zeros


@pytest.mark.parametrize("name", ["Transpose", "Expand", "Tile", "CumSum", "Slice"])
def test_an_operator_that_reads_other_places_is_not_in_place(name: str) -> None:
    """The first element of the result, or a later one, depends on another place of the input."""
    inputs = FURTHER_INPUTS.get(name, {})
    usual = evaluated(name, ROWS, **inputs)
    elsewhere = False
    for place in range(ROWS.size):
        other = ROWS.copy()
        other.flat[place] += 1
        changed = evaluated(name, other, **inputs)
        places = np.flatnonzero((changed != usual).ravel())
        elsewhere |= changed.size != ROWS.size or list(places) not in ([], [place])
    assert elsewhere
    assert BY_NAME[name].in_place == ()


@pytest.mark.parametrize(
    "name",
    ["ArgMax", "Ceil", "EyeLike", "Floor", "Hardmax", "NonZero", "Shape", "Sign", "Size"],
)
def test_an_operator_whose_result_stays_for_slightly_other_values_has_no_gradient(
    name: str,
) -> None:
    x = ROWS[0] + 1 / 8
    assert (evaluated(name, x) == evaluated(name, x + 1 / 64)).all()
    assert BY_NAME[name].has_zero_gradient


@pytest.mark.parametrize("name", ["NonZero", "Unique"])
def test_the_values_of_an_input_may_decide_the_size_of_a_result(name: str) -> None:
    assert evaluated(name, numbers(0, 1, 1)).size != evaluated(name, numbers(1, 2, 3)).size
    assert BY_NAME[name].size_from_data


def test_a_dropout_is_random_if_it_is_given_a_training_mode() -> None:
    def dropout(*inputs: str) -> Op:
        return Op("", "Dropout", tuple(map(VarId, inputs)), (VarId("y"),))

    assert not is_random(dropout("x"))
    assert not is_random(dropout("x", "ratio"))
    assert not is_random(dropout("x", "ratio", ""))
    assert is_random(dropout("x", "", "training"))
    assert is_random(helper.make_node("Dropout", ["x", "", "training"], ["y"]))
    assert is_random(Op("", "RandomNormal", (), (VarId("y"),)))


def test_an_op_and_a_node_have_the_traits_of_their_domain() -> None:
    assert operator(Op("", "Gelu", (), ())) is lookup(ONNX, "Gelu")
    assert operator(helper.make_node("Gelu", [], [], domain=ONNX_LONG_NAME)) is lookup(
        "", "Gelu"
    )
    assert operator(Op("", "Gelu", (), (), domain=MICROSOFT)) is lookup(MICROSOFT, "Gelu")
    assert qualified_name(Op("", "Gelu", (), (), domain=MICROSOFT)) == "com.microsoft.Gelu"
    assert qualified_name(Op("", "Gelu", (), (), domain=ONNX_LONG_NAME)) == "Gelu"


def test_an_unknown_operator_has_no_traits() -> None:
    unknown = operator(Op("", "Relu", (VarId("x"),), (VarId("y"),), domain="local"))
    assert unknown == Operator("Relu", domain="local")
    assert not unknown.is_elementwise
    assert unknown.exact is Exactness.NONE


def test_a_new_elementwise_operator_is_one_row() -> None:
    """Storage, cost, pieces, shapes and probes take it from the registry."""
    program = """
        from dataclasses import replace
        from memplan_cli.core import operators

        row = replace(operators.lookup("", "Mish"), name="Wobble")
        operators.OPERATORS += (row,)
        operators._REGISTRY["", "Wobble"] = row

        from memplan_cli.analysis.aliasing import SHARE_SAFELY
        from memplan_cli.analysis.cost import op_cost
        from memplan_cli.core.program import Op, Origin, Var, VarId
        from tests.benchmarks.in_place_models import ONE_OPS
        from memplan_cli.features.chunking.axes.table import RULES

        x, y = VarId("x"), VarId("y")
        op = Op("", "Wobble", (x,), (y,))
        table = {var: Var(var, "float32", (3, 4), Origin.OP) for var in (x, y)}
        assert SHARE_SAFELY.in_place_inputs(op) == (0,)
        assert op_cost(op, table).flops == 120
        assert "Wobble" in RULES
        assert "Wobble" in {each.type for each in ONE_OPS}
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True)
