"""Inputs, fixed weights and nodes of a training step."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from features.training.forms import form, single
from features.training.forms_layers import LAYERS
from features.training.forms_moves import EMPTY
from features.training.gradient_checks import parsed
from features.training.test_train_step import NORMALIZED, batch, mse, parse, run
from memplan_cli.errors import ModelError
from memplan_cli.features.training.first_feeds import first_feeds
from memplan_cli.features.training.tape import Call, ConstantPool, Tape
from memplan_cli.features.training.tensors import UNKNOWN, Tensor, infer_tensors
from memplan_cli.features.training.train_step import Recipe, Statistics, make_train_step

if TYPE_CHECKING:
    from features.training.gradient_checks import Case


def kinds_of(case: Case) -> list[str]:
    """Return the operators of the training step of a case's sum."""
    model = parsed(
        case, ["loss"], f"{case.body} loss = ReduceSum<keepdims=0>(y)", case.constants
    )
    step = make_train_step(model, Recipe("loss", None, tuple(case.inputs)))
    return [node.op_type for node in step.model.graph.node]


def test_a_statistic_that_shares_an_initializer_with_a_weight_gets_its_own_input() -> None:
    model = parse(NORMALIZED.replace("(x, s, b, m, v)", "(x, s, b, m, s)"))
    step = make_train_step(model, mse())
    assert [p.name for p in step.parameters] == ["s", "b"]
    assert [p.output for p in step.running] == ["new.m", "new.y.running_var"]
    state = first_feeds(model, step)
    np.testing.assert_array_equal(state["in.y.running_var"], state["in.s"])
    onnx.checker.check_model(step.model)


def test_layers_that_share_initial_statistics_update_them_separately() -> None:
    text = NORMALIZED.replace(
        "{ y = BatchNormalization<momentum = 0.8>(x, s, b, m, v) }",
        "{ a = BatchNormalization<momentum = 0.8>(x, s, b, m, v)  c = Relu(a)"
        "  y = BatchNormalization<momentum = 0.8>(c, s, b, m, v) }",
    )
    model = parse(text)
    step = make_train_step(model, mse())
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32)
    state = first_feeds(model, step)
    state |= {p.input: np.full(2, 3.0 + at, np.float32) for at, p in enumerate(step.running)}
    got = run(step.model, {**batch(), **state, "x": x, "target": x})
    scale, bias = state["in.s"][:, None], state["in.b"][:, None]
    mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    normed = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5)
    c = np.maximum(normed * scale + bias, 0)
    seen = [mean, variance, c.mean(axis=(0, 2)), c.var(axis=(0, 2))]
    assert len(step.running) == 4
    for parameter, batch_has in zip(step.running, seen, strict=True):
        wanted = 0.8 * state[parameter.input] + 0.2 * batch_has
        np.testing.assert_allclose(got[parameter.output], wanted, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in EMPTY if name.startswith("Conv-")])
def test_kernel_gradient_of_an_empty_batch_is_zero_without_a_convolution(name: str) -> None:
    # ONNX Runtime leaves the output of a Conv of an empty batch uninitialized, at times NaN.
    assert kinds_of(EMPTY[name]).count("Conv") == 1, "the forward pass"


HEADER = '<ir_version: 10, opset_import: ["": 20]>'


def test_a_loss_of_unknown_rank_is_declared_without_a_shape() -> None:
    model = parse(f"""{HEADER} g (float[2] x, int64[r] s) => (float[2] h) <float[2] w = {{1, 2}}> {{
        h = Mul(x, w)  y = ReduceSum<keepdims=0>(h)  loss = Reshape(y, s) }}""")
    output = make_train_step(model, Recipe("loss")).model.graph.output[0]
    assert not output.type.tensor_type.HasField("shape")


def test_fixed_weights_are_those_that_are_read_and_not_updated() -> None:
    model = parse(NORMALIZED.replace("<float[2] s", "<float[2] unread = {1, 2}, float[2] s"))
    assert make_train_step(model, mse()).fixed == {}
    kept = make_train_step(model, mse(statistics=Statistics.RUNNING))
    assert sorted(kept.fixed) == ["m", "v"]


@pytest.mark.parametrize("axes", ["", ", axes", ", axes, steps"])
def test_a_slice_with_constant_bounds_has_a_gradient_without_scatter(axes: str) -> None:
    bounds = {"starts": [1], "ends": [3]}
    more = {"axes": [0], "steps": [1]}
    given = bounds | {name: more[name] for name in more if name in axes}
    case = form(f"y = Slice(x, starts, ends{axes})", x=(4, 3), **given)
    assert not [kind for kind in kinds_of(case) if kind.startswith("Scatter")]


def test_only_resized_axes_are_multiplied() -> None:
    case = form(
        'y = Resize<mode="linear">(x, , n)', x=single(1, 2, 3, 4), n=[1.0, 1.0, 1.0, 2.0]
    )
    assert kinds_of(case).count("MatMul") == 1


@pytest.mark.parametrize("kind", ["GroupNormalization", "MeanVarianceNormalization"])
def test_shapes_of_operators_of_other_domains_are_unknown(kind: str) -> None:
    for domain, is_known in (("", True), ("other", False)):
        names = ["x", "s", "b"] if kind.startswith("Group") else ["x"]
        node = helper.make_node(kind, names, ["y"], domain=domain, num_groups=1)
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in names
        ]
        graph = helper.make_graph([node], "g", inputs, [])
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
        found = infer_tensors(helper.make_model(graph, opset_imports=opsets))
        assert found.get("y", UNKNOWN).sizes == ((2, 4) if is_known else None)


def test_a_taken_name_gets_the_next_free_number() -> None:
    pool = ConstantPool({"a", "a_2"})
    assert [pool.fresh("a") for _ in range(3)] == ["a_1", "a_3", "a_4"]
    assert pool.fresh("b") == "b"


def paddings(case: Case) -> list[tuple[list[int], list[int]]]:
    """Return output padding and strides of each ConvTranspose of a step that has output padding."""
    model = parsed(
        case, ["loss"], f"{case.body} loss = ReduceSum<keepdims=0>(y)", case.constants
    )
    floats = tuple(n for n, v in case.inputs.items() if v.dtype.kind == "f")
    with suppress(ModelError):
        step = make_train_step(model, Recipe("loss", None, case.wanted or floats))
        found = [
            {each.name: list(each.ints) for each in node.attribute}
            for node in step.model.graph.node
            if node.op_type == "ConvTranspose"
        ]
        return [(s["output_padding"], s["strides"]) for s in found if "output_padding" in s]
    return []


def test_output_padding_is_below_the_stride_as_the_standard_asks() -> None:
    cases = [LAYERS[name] for name in LAYERS if "Conv-" in name or "Pool-" in name]
    found = [pair for case in cases for pair in paddings(case)]
    assert sum(any(extra) for extra, _ in found) > 10
    for extra, strides in found:
        assert all(one < most for one, most in zip(extra, strides, strict=True))


def test_a_rule_is_called_with_the_gradients_that_are_needed() -> None:
    asked: list[tuple[bool, ...]] = []

    def add(call: Call) -> tuple[str, ...]:
        asked.append(tuple(call.wants(index) for index in range(3)))
        return ("", call.dy)

    text = """<ir_version: 10, opset_import: ["": 20]>
    net (float[2] x) => (float loss) <float[2] w = {1, 2}>
    { y = Add(x, w) loss = ReduceSum<keepdims = 0>(y) }"""
    make_train_step(parse(text), Recipe("loss", None, rules={"Add": add}))
    assert asked == [(False, True, False)]


def test_a_trained_input_that_has_the_name_of_a_step_input_keeps_it() -> None:
    model = parse(f"""{HEADER} g (float[2] x, float[2] w) => (float loss) {{
        h = Mul(x, w)  loss = ReduceSum<keepdims=0>(h) }}""")
    model.graph.input[1].name = model.graph.node[0].input[1] = "in.w"
    step = make_train_step(model, Recipe("loss", None, train=("in.w",)))
    assert [value.name for value in step.model.graph.input] == ["in.w", "x"]


COMPUTED_AGAIN = {
    "two results of one tensor": (
        "m = ReduceMean(h, r)  d = Sub(h, m)  v = ReduceMean(d, r)  n = Div(d, v)  p = Mul(n, n)",
        ["h", "d", "n"],
    ),
    "the result of a tensor that is read too": (
        "e = Exp(h)  a = Neg(e)  p = Mul(a, w)",
        ["a"],
    ),
    "operands of a product, and a result of one": (
        "e = Exp(h)  a = Neg(e)  c = MatMul(a, h)  b = Neg(a)  d = Mul(b, w)  p = Add(c, d)",
        ["a", "b", "h"],
    ),
    "not the loss": ("s = ReduceSum(h)  e = Exp(s)", []),
}


@pytest.mark.parametrize("name", COMPUTED_AGAIN)
def test_the_backward_pass_computes_cheap_tensors_again_where_fewer_are_kept(
    name: str,
) -> None:
    body, expected = COMPUTED_AGAIN[name]
    last = "loss = ReduceSum<keepdims=0>(p)" if expected else "loss = Div(e, two)"
    model = parse(f"""{HEADER} g (float[4, 4] x) => (float{"[1, 1]" * (not expected)} loss)
        <float[4] w = {{1, 2, 3, 4}}, float two = {{2}}, int64[1] r = {{1}}>
        {{ h = Mul(x, w)  {body}  {last} }}""")
    train = ("w",) if expected else ("w", "two")
    step = make_train_step(model, Recipe("loss", None, train))
    made = [output for node in step.model.graph.node for output in node.output]
    assert [output for output in made if "again" in output] == [
        f"{tensor}/again" for tensor in expected
    ]


def test_a_chain_of_cheap_tensors_may_be_longer_than_the_stack_is_deep() -> None:
    length = sys.getrecursionlimit() + 100
    chain = " ".join(f"t{n + 1} = Mul(t{n}, w)" for n in range(length))
    model = parse(f"""{HEADER} g (float[4] x) => (float loss) <float w = {{1}}>
        {{ t0 = Exp(x)  {chain}  loss = ReduceSum<keepdims=0>(t{length}) }}""")
    step = make_train_step(model, Recipe("loss", None, ("w",)))
    copies = [n.output[0] for n in step.model.graph.node if n.output[0].endswith("/again")]
    assert copies == [f"t{n + 1}/again" for n in range(length - 1)]


def test_an_output_that_a_rule_adds_to_a_node_has_a_type_on_the_tape() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2])
    tape = Tape({}, {}, ConstantPool({"x", "y"}))
    call = Call(node, ("x",), ("",), (True,), tape)
    indices = Tensor(TensorProto.INT64, (1, 1, 3))
    name = call.optional_output(1, indices)
    assert list(node.output) == ["y", name]
    assert tape.tensors == {name: indices}
    assert call.optional_output(1, indices) == name, "it is added once"
