"""What each kind of op demands of its dims, and what it leaves open."""

from __future__ import annotations

import pytest

from builders import parse
from memplan_cli.analysis.dim_constraints import DimConstraint, dim_constraints
from memplan_cli.onnx_io.shapes.reading import read_program


def asked(text: str) -> set[tuple[str, tuple[tuple[object, ...], ...]]]:
    """Return what the ops of a model demand, lengths of names left out."""
    found = dim_constraints(read_program(parse(text)).program)
    return {
        (demand.relation, demand.products) for demand in found if demand.relation != "positive"
    }


def test_a_constraint_with_an_unknown_length_holds() -> None:
    demand = DimConstraint("equal", (("u0", "a"), (4,)))
    assert demand.is_satisfied({"a": 3})
    assert not demand.is_satisfied({"a": 3, "u0": 1})


def test_a_reshape_to_the_same_shape_demands_nothing() -> None:
    text = """g (float[b,8] x) => (y) <int64[2] to = {0, 8}>
        { e = Exp(x) r = Reshape(e, to) y = Neg(r) }"""
    assert asked(text) == set()


def test_a_reshape_keeps_the_number_of_elements() -> None:
    text = """g (float[b,n] x) => (y) <int64[2] to = {4, 6}>
        { e = Exp(x) r = Reshape(e, to) y = Neg(r) }"""
    assert asked(text) == {("equal", (("b", "n"), (4, 6)))}


@pytest.mark.parametrize("op", ["Reshape(k, to)", "MatMul(k, x)", "MatMul(x, k)"])
def test_an_operand_of_unknown_rank_demands_nothing(op: str) -> None:
    text = f"""g (float[b,8] x, int64[n] s) => (y) <int64[2] to = {{-1, 8}}>
        {{ o = ConstantOfShape(s) k = Exp(o) y = {op} }}"""
    assert asked(text) == set()


def test_numbers_alone_demand_nothing() -> None:
    text = "g (float[2,8] x) => (y) <int64[2] to = {4, 4}> { y = Reshape(x, to) }"
    assert asked(text) == set()


def test_a_vector_times_a_matrix_is_as_long_as_the_matrix_is_high() -> None:
    text = "g (float[n] x, float[m,4] w) => (y) { y = MatMul(x, w) }"
    assert asked(text) == {("equal", (("n",), ("m",)))}


def test_batches_of_products_broadcast() -> None:
    text = "g (float[b,2,8] x, float[c,8,4] w) => (y) { y = MatMul(x, w) }"
    assert asked(text) == {("broadcastable", (("b",), ("c",)))}


def test_what_is_joined_agrees_in_all_other_dims() -> None:
    text = "g (float[a,b,c] x, float[d,e,c] w) => (y) { y = Concat<axis = -2>(x, w) }"
    assert asked(text) == {("equal", (("a",), ("d",)))}


def test_what_is_joined_along_no_axis_demands_nothing() -> None:
    text = "g (float[a,b] x, float[d,b] w) => (y) { y = Concat(x, w) }"
    assert asked(text) == set()


def test_what_cannot_be_joined_for_its_ranks_demands_nothing() -> None:
    text = "g (float[a,b] x, float[d,e,b] w) => (y) { y = Concat<axis = 0>(x, w) }"
    assert asked(text) == set()


@pytest.mark.parametrize(
    "kind", ["Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean"]
)
def test_operands_of_an_elementwise_op_broadcast(kind: str) -> None:
    text = f"g (float[a,8] x, float[b,8] w) => (y) {{ y = {kind}(x, w) }}"
    assert asked(text) == {("broadcastable", (("a",), ("b",)))}


@pytest.mark.parametrize("kind", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_operands_of_a_comparison_broadcast(kind: str) -> None:
    text = f"g (float[a,8] x, float[b,8] w, float[c,8] v) => (y) {{ k = {kind}(x, w) y = Where(k, x, v) }}"
    assert ("broadcastable", (("a",), ("b",))) in asked(text)


@pytest.mark.parametrize("kind", ["Add", "Less", "Max", "Mod", "Sum"])
def test_operands_of_an_elementwise_operator_broadcast(kind: str) -> None:
    text = f"g (float[n] x, float[m] y) => (z) {{ z = {kind}(x, y) }}"
    assert ("broadcastable", (("n",), ("m",))) in asked(text)


def test_the_operands_of_a_choice_broadcast() -> None:
    text = "g (bool[k] c, int64[n] x, int64[m] y) => (z) { z = Where(c, x, y) }"
    assert ("broadcastable", (("k",), ("n",), ("m",))) in asked(text)
