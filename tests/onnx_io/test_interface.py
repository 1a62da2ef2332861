"""In which ways two models take other inputs."""

from __future__ import annotations

import pytest

from builders import parse
from memplan_cli.onnx_io.interface import (
    dim_names,
    forget_constant_inputs,
    input_differences,
    open_inputs,
)

ORIGINAL = "g (float[n,4] x, int64[2] i) => (float[n,4] y) { y = Neg(x) }"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (ORIGINAL, ()),
        (ORIGINAL.replace("float[n,4] x", "float[8,4] x"), ()),
        (ORIGINAL.replace("float[n,4] x", "float[other,w] x"), ()),
        (
            ORIGINAL.replace("float[n,4] x", "float[n,5] x"),
            ("'x' is float32[n,4] in the original and float32[n,5] in the written model",),
        ),
        (
            ORIGINAL.replace("int64[2] i", "int32[2] i"),
            ("'i' is int64[2] in the original and int32[2] in the written model",),
        ),
        (
            ORIGINAL.replace("int64[2] i", "int64[2,1] i"),
            ("'i' is int64[2] in the original and int64[2,1] in the written model",),
        ),
        (ORIGINAL.replace(", int64[2] i", ""), ("only the original takes 'i'",)),
        (
            ORIGINAL.replace("i)", "j, int64[2] k)"),
            ("only the original takes 'i'", "only the written model takes 'j', 'k'"),
        ),
    ],
)
def test_inputs_that_no_one_feed_serves_are_named(written: str, said: tuple[str, ...]) -> None:
    assert input_differences(parse(ORIGINAL), parse(written)) == said


def test_an_input_with_a_value_of_its_own_need_not_be_fed() -> None:
    weight = ORIGINAL.replace("=> (float[n,4] y)", "=> (float[n,4] y) <int64[2] k = {1,2}>")
    assert (
        input_differences(parse(ORIGINAL), parse(weight.replace("i)", "i, int64[2] k)"))) == ()
    )


def test_an_input_that_lost_its_value_must_be_fed() -> None:
    text = ORIGINAL.replace("i)", "i, int64[2] k)")
    original = text.replace("=> (float[n,4] y)", "=> (float[n,4] y) <int64[2] k = {1,2}>")
    assert input_differences(parse(original), parse(text)) == (
        "only the written model takes 'k'",
    )


def test_many_inputs_are_counted() -> None:
    many = ", ".join(f"float[1] n{number}" for number in range(9))
    found = input_differences(parse(ORIGINAL.replace("int64[2] i", many)), parse(ORIGINAL))
    assert found[0] == "only the original takes 'n0', 'n1', 'n2', 'n3', 'n4' and 4 more"


def test_dims_have_the_names_of_every_block() -> None:
    text = """g (float[n,4] x, bool c) => (float[rows,4] y) {
        y = If (c) <then_branch = t () => (float[inner,4] z) { z = Neg(x) },
                    else_branch = e () => (float[4] w) { w = Relu(x) }> }"""
    assert dim_names(parse(text)) == {"n", "rows", "inner"}


def test_dims_of_tensors_in_sequences_and_optionals_are_dims_of_the_model() -> None:
    text = """g (seq(float[n,4]) s, optional(float[m]) o, optional(seq(float[k])) q) => (int64 y) {
        y = SequenceLength (s) }"""
    assert dim_names(parse(text)) == {"n", "m", "k"}


def test_a_dim_without_a_name_gets_one_that_no_other_dim_has() -> None:
    found = open_inputs(
        parse("g (float[?] x, float[x_dim0] z) => (float[?] y) { y = Neg(x) }")
    )
    assert [each.shape for each in found] == [("x_dim0_",), ("x_dim0",)]


OLD_HEAD = '<ir_version: 3, opset_import: ["" : 9]>'

OLD = """g (bool go, float[2] w, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    z = If (go) <
        then_branch = t (float[2] a) => (float[2] p) <float[2] a = {3, 4}> { p = Add(x, a) },
        else_branch = e () => (float[2] q) { q = Neg(x) }
    >
    y = Add(z, w)
}"""


def test_before_version_4_weights_are_inputs_and_constants() -> None:
    model = parse(OLD, OLD_HEAD)
    forget_constant_inputs(model)
    then = model.graph.node[0].attribute[0].g
    assert [value.name for value in model.graph.input] == ["go", "x"]
    assert [list(then.input), [tensor.name for tensor in then.initializer]] == [[], ["a"]]
    assert model.ir_version == 4


def test_from_version_4_on_they_may_be_fed() -> None:
    model = parse(OLD, OLD_HEAD.replace("3", "4"))
    before = model.SerializeToString()
    forget_constant_inputs(model)
    assert model.SerializeToString() == before
