"""Folding: which constants become weights, which stay and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builders import parse, read
from memplan_cli.core.program import Origin, VarId
from memplan_cli.features.folding.transform import fold
from memplan_cli.onnx_io.shapes.reading import read_program

if TYPE_CHECKING:
    from memplan_cli.planning.rewrites import Folding

W = "float[2,3] w = {1,2,3,4,5,6}"
HEAD = f"a (float[3,2] x) => (float[3,2] y) <{W}>"


def folding(text: str, **kept: str) -> Folding:
    return fold(read(text), {VarId(name): why for name, why in kept.items()})


def types(found: Folding) -> list[str]:
    return [op.type for op in found.program.body.ops]


def test_a_chain_leaves_its_last_value_alone() -> None:
    found = folding(f"{HEAD} {{ t = Transpose(w) u = Identity(t) y = Add(x, u) }}")
    assert types(found) == ["Add"]
    assert [(each.name, each.op, each.bytes) for each in found.facts.tensors] == [
        ("u", "Identity", 24)
    ]
    assert (found.facts.added, found.facts.dropped) == (24, 24)
    assert found.program.vars[VarId("u")].origin is Origin.WEIGHT
    assert "t" not in found.program.vars
    assert "w" not in found.program.vars


def test_floats_are_not_computed_and_what_is_before_them_is_folded() -> None:
    found = folding(f"{HEAD} {{ t = Transpose(w) s = Sqrt(t) u = Identity(s) y = Add(x, u) }}")
    assert types(found) == ["Sqrt", "Identity", "Add"]
    assert [each.name for each in found.facts.tensors] == ["t"]
    reasons = {each.name: each.reason for each in found.facts.left}
    assert reasons["s"].startswith("Sqrt of float32 is left to the runtime")
    assert reasons["u"] == "it reads 's', which stays"


def test_what_is_kept_stays_and_what_hangs_on_it_is_folded() -> None:
    found = folding(f"{HEAD} {{ t = Transpose(w) u = Identity(t) y = Add(x, u) }}", t="named")
    assert types(found) == ["Transpose", "Add"]
    assert [each.name for each in found.facts.tensors] == ["u"]
    assert [each.reason for each in found.facts.left] == ["named"]


def test_an_output_stays_what_a_node_makes() -> None:
    text = f"a (float[3,2] x) => (float[3,2] y, float[3,2] t) <{W}> {{ t = Transpose(w) y = Add(x, t) }}"
    found = folding(text)
    assert types(found) == ["Transpose", "Add"]
    assert not found.facts.tensors


def test_a_node_with_several_results_stays_as_a_whole() -> None:
    text = f"a (float[2,1] x) => (float[2,1] y, float[2,2] r) <{W}, int64[2] n = {{1,2}}>"
    found = folding(f"{text} {{ l, r = Split <axis = 1> (w, n) y = Add(x, l) }}")
    assert types(found) == ["Split", "Add"]
    assert {each.name for each in found.facts.left} == {"l", "r"}


def test_a_node_stays_if_any_of_its_results_has_no_elements() -> None:
    text = f"a (float[2,3] x) => (float[2,3] y, float[2,0] z) <{W}, int64[2] n = {{3,0}}>"
    found = folding(f"{text} {{ l, r = Split <axis = 1> (w, n) y = Add(x, l) z = Neg(r) }}")
    assert not found.facts.tensors
    reasons = {each.name: each.reason for each in found.facts.left}
    assert reasons["l"] == reasons["r"] == "it has no elements at these sizes"


def test_casts_are_folded_where_they_have_one_right_answer() -> None:
    text = "a (float[2] x) => (float[2] y) <int64[2] i = {1,2}, float[2] f = {1.5,2.5}>"
    found = folding(
        f"{text} {{ a = Cast <to = 1> (i) b = Cast <to = 6> (f) c = Cast <to = 1> (b) "
        "d = Add(x, a) y = Add(d, c) }"
    )
    assert [each.name for each in found.facts.tensors] == ["a"]


WHOLE = ("Abs(i)", "Add(i, i)", "BitwiseAnd(i, i)", "BitwiseNot(i)", "BitwiseOr(i, i)",
         "BitwiseXor(i, i)", "CumSum(i, k)", "Max(i, i)", "Min(i, i)", "Mul(i, i)", "Neg(i)",
         "Range(k, e, o)", "ReduceMax(i)", "ReduceMin(i)", "Sign(i)", "Sub(i, i)")  # fmt: skip
TRUTHS = ("And(b, b)", "Or(b, b)", "Xor(b, b)", "Not(b)")
GIVEN = """a (int64[2] x) => (int64[2] y) <int64[2] i = {1,2}, int64 k = {0}, int64 o = {1},
    int64 e = {2}, bool[2] b = {0,1}>"""


@pytest.mark.parametrize("made", [*WHOLE, *TRUTHS])
def test_operators_with_one_right_answer_are_folded(made: str) -> None:
    last = "Where(t, x, i)" if made in TRUTHS else "Add(x, t)"
    found = folding(f"{GIVEN} {{ t = {made} y = {last} }}")
    assert [each.name for each in found.facts.tensors] == ["t"]


@pytest.mark.parametrize("made", ["ReduceSum(i)", "ReduceProd(i)", "Div(i, i)", "Pow(i, i)"])
def test_operators_of_whole_numbers_that_may_differ_are_not_folded(made: str) -> None:
    assert not folding(f"{GIVEN} {{ t = {made} y = Add(x, t) }}").facts.tensors


TYPES = {"float16": 10, "float": 1, "double": 11}


@pytest.mark.parametrize("one", TYPES)
@pytest.mark.parametrize("other", TYPES)
def test_floats_are_cast_to_what_is_as_wide_or_wider(one: str, other: str) -> None:
    text = f"""a ({other}[1] x) => ({other}[1] y) <{one}[1] c = {{1}}>
        {{ t = Cast <to = {TYPES[other]}> (c) y = Add(x, t) }}"""
    names = list(TYPES)
    is_wider = names.index(other) >= names.index(one)
    assert bool(folding(text).facts.tensors) is is_wider


def test_without_constants_the_program_is_the_same_object() -> None:
    program = read("a (float[1] x) => (float[1] y) { y = Neg(x) }")
    assert fold(program, {}).program is program


def test_an_omitted_output_of_a_folded_node_has_no_type() -> None:
    model = parse(
        f"{HEAD} {{ l, r = Split <num_outputs = 2> (w) t = Transpose(l) y = Add(x, t) }}"
    )
    model.graph.node[0].output[1] = ""
    found = fold(read_program(model).program, {})
    assert types(found) == ["Add"]
