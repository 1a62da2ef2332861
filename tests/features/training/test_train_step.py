"""Names, phases and update formulas of training steps, and errors of recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto

from memplan_cli.errors import MemplanError, ModelError, SettingsError
from memplan_cli.features.training.backward import NoRuleError
from memplan_cli.features.training.first_feeds import first_feeds
from memplan_cli.features.training.losses import (
    LossFunction,
    LossOperands,
    softmax_cross_entropy,
)
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.tape import PHASE
from memplan_cli.features.training.train_step import Recipe, Statistics, make_train_step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]

LINEAR = """<ir_version: 10, opset_import: ["": 20]>
net (float[4, 3] x, float[4, 2] target) => (float[4, 2] y)
<float[3, 2] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, float[2] b = {0.1, 0.2}>
{ h = MatMul(x, w) y = Add(h, b) }"""


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name for value in session.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in wanted}
    return dict(zip(names, session.run(names, given), strict=True))


def batch(rate: float = 0.1, step: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((4, 3)).astype(np.float32),
        "target": rng.standard_normal((4, 2)).astype(np.float32),
        "learning_rate": np.array(rate, np.float32),
        "step": np.array(step, np.int64),
    }


def mse(optimizer: Optimizer | None = None, **how: Any) -> Recipe:  # noqa: ANN401 - the fields of a recipe
    return Recipe(LossFunction("mse", "target"), optimizer or Optimizer(), **how)


def names_of(values: Iterable[Any]) -> list[str]:
    return [value.name for value in values]


def by_hand(feeds: dict[str, Array], w: Array, b: Array) -> tuple[Array, Array, float]:
    error = feeds["x"] @ w + b - feeds["target"]
    scaled = 2 * error / error.size
    return feeds["x"].T @ scaled, scaled.sum(axis=0), float((error**2).mean())


def test_trained_weights_become_inputs_and_outputs() -> None:
    step = make_train_step(parse(LINEAR), mse(Optimizer("adam")))
    inputs = names_of(step.model.graph.input)
    state = ["in.w.m", "in.w.v", "in.b.m", "in.b.v"]
    assert inputs == ["in.w", "in.b", *state, "x", "target", "learning_rate", "step"]
    outputs = names_of(step.model.graph.output)
    assert outputs[0] == "loss"
    assert set(outputs[1:]) == {f"new.{name[3:]}" for name in ("in.w", "in.b", *state)}
    assert not {"w", "b"} & set(names_of(step.model.graph.initializer))


def test_sgd_step_is_the_formula() -> None:
    model, feeds = parse(LINEAR), batch()
    step = make_train_step(model, mse())
    state = first_feeds(model, step)
    got = run(step.model, {**feeds, **state})
    dw, db, loss = by_hand(feeds, state["in.w"], state["in.b"])
    np.testing.assert_allclose(got["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(got["new.w"], state["in.w"] - 0.1 * dw, rtol=1e-5)
    np.testing.assert_allclose(got["new.b"], state["in.b"] - 0.1 * db, rtol=1e-5)


def test_momentum_with_decay_is_the_formula_over_two_steps() -> None:
    model, feeds = parse(LINEAR), batch()
    step = make_train_step(model, mse(Optimizer("momentum", weight_decay=0.3)))
    state = first_feeds(model, step)
    w, moment = state["in.w"], np.zeros((3, 2))
    for _ in range(2):
        got = run(step.model, {**feeds, **state})
        moment = 0.9 * moment + by_hand(feeds, state["in.w"], state["in.b"])[0] + 0.3 * w
        w = w - 0.1 * moment
        np.testing.assert_allclose(got["new.w"], w, rtol=1e-5)
        state = {name: got[f"new.{name[3:]}"] for name in state}


@pytest.mark.parametrize(("kind", "decay"), [("adam", 0.0), ("adamw", 0.01)])
def test_adam_is_the_formula_over_three_steps(kind: str, decay: float) -> None:
    model, feeds = parse(LINEAR), batch()
    step = make_train_step(model, mse(Optimizer(kind)))
    state = first_feeds(model, step)
    w, m, v = state["in.w"].astype(float), np.zeros((3, 2)), np.zeros((3, 2))
    for t in (1, 2, 3):
        got = run(step.model, {**feeds, **state, "step": np.array(t)})
        g = by_hand(feeds, state["in.w"], state["in.b"])[0]
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        change = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = w - 0.1 * change - 0.1 * decay * w
        np.testing.assert_allclose(got["new.w"], w, rtol=2e-5, atol=1e-6)
        state = {name: got[f"new.{name[3:]}"] for name in state}


def test_gradients_alone_are_named_after_their_parameters() -> None:
    model, feeds = parse(LINEAR), batch()
    recipe = Recipe(LossFunction("mse", "target"), None)
    step = make_train_step(model, recipe)
    assert names_of(step.model.graph.output) == ["loss", "w_grad", "b_grad"]
    assert "learning_rate" not in names_of(step.model.graph.input)
    got = run(step.model, {**feeds, **first_feeds(model, step)})
    expected = by_hand(feeds, *(first_feeds(model, step)[n] for n in ("in.w", "in.b")))
    np.testing.assert_allclose(got["w_grad"], expected[0], rtol=1e-5)


def test_every_node_has_a_phase_and_an_update_follows_its_gradient() -> None:
    step = make_train_step(parse(LINEAR), mse())
    phases = [
        next(entry.value for entry in node.metadata_props if entry.key == PHASE)
        for node in step.model.graph.node
    ]
    assert set(phases) == {"forward", "backward", "update"}
    makers = {name: node for node in step.model.graph.node for name in node.output}
    update = makers["new.w"]
    assert any(e.value == "update" for e in update.metadata_props)
    assert "w_grad" in makers


def test_same_model_gives_the_same_bytes() -> None:
    first, second = (
        make_train_step(parse(LINEAR), mse(Optimizer("adam"))).model.SerializeToString(
            deterministic=True
        )
        for _ in range(2)
    )
    assert first == second


def test_model_is_not_changed() -> None:
    model = parse(LINEAR)
    before = model.SerializeToString(deterministic=True)
    make_train_step(model, mse())
    assert model.SerializeToString(deterministic=True) == before


def test_frozen_weights_stay_in_the_model_without_gradients() -> None:
    step = make_train_step(parse(LINEAR), mse(freeze=("b",)))
    assert [parameter.name for parameter in step.parameters] == ["w"]
    assert "b" in names_of(step.model.graph.initializer)
    assert "b_grad" not in {name for node in step.model.graph.node for name in node.output}


def test_optimizer_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(SettingsError, match="no optimizer 'rmsprop'") as caught:
        Optimizer("rmsprop")
    assert "adamw" in caught.value.hint


def test_glob_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="no float weight matches 'weight'"):
        make_train_step(parse(LINEAR), mse(train=("weight",)))


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(SettingsError, match="no parameter is left"):
        make_train_step(parse(LINEAR), mse(freeze=("*",)))


@pytest.mark.parametrize(("loss", "near"), [("cost", "y"), ("hh", "h")])
def test_loss_that_does_not_exist_is_refused_with_the_nearest(loss: str, near: str) -> None:
    with pytest.raises(SettingsError, match=f"'{loss}'") as caught:
        make_train_step(parse(LINEAR), Recipe(loss))
    assert caught.value.hint == f"the nearest names are {near}"


def test_loss_with_several_elements_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"shape \[4, 2\]"):
        make_train_step(parse(LINEAR), Recipe("y"))


@pytest.mark.parametrize("shape", ["batch, 2", "batch, 1", "batch"])
def test_loss_with_an_element_for_each_of_a_batch_is_refused(shape: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    net (float[{shape}] x) => (float[{shape}] y) <float[1] w = {{0.1}}> {{ y = Mul(x, w) }}"""
    with pytest.raises(SettingsError, match=r"shape \['batch'.*a loss is one number"):
        make_train_step(parse(text), Recipe("y"))


def test_named_parameter_that_the_loss_ignores_is_refused() -> None:
    text = LINEAR.replace("float[2] b =", "float[2] unused = {1, 1}, float[2] b =")
    with pytest.raises(SettingsError, match="does not depend on unused"):
        make_train_step(parse(text), mse(train=("w", "unused")))


def test_operator_without_a_rule_is_named_with_its_node() -> None:
    text = LINEAR.replace("h = MatMul(x, w)", "[odd] g = Det(w3) h = MatMul(x, w)")
    text = text.replace("y = Add(h, b)", "k = Mul(h, g) y = Add(k, b)")
    text = text.replace("float[2] b =", "float[3, 3] w3 = {1,0,0,0,1,0,0,0,1}, float[2] b =")
    with pytest.raises(NoRuleError, match=r"Det.*'odd'"):
        make_train_step(parse(text), mse(train=("w", "w3")))
    step = make_train_step(parse(text), mse(train=("w", "b")))
    assert len(step.parameters) == 2, (
        "no rule is needed if nothing before the operator is trained"
    )


def test_weight_read_twice_gets_the_sum_of_its_gradients() -> None:
    text = LINEAR.replace("y = Add(h, b)", "k = Add(h, b) y = Add(k, b)")
    model, feeds = parse(text), batch()
    step = make_train_step(model, mse())
    state = first_feeds(model, step)
    got = run(step.model, {**feeds, **state})
    doubled = state["in.b"] * 2
    expected = 2 * by_hand(feeds, state["in.w"], doubled)[1]
    np.testing.assert_allclose(got["new.b"], state["in.b"] - 0.1 * expected, rtol=1e-5)


def test_batch_size_may_be_open() -> None:
    text = LINEAR.replace(
        "float[4, 3] x, float[4, 2] target", "float[n, 3] x, float[n, 2] target"
    )
    model, feeds = parse(text.replace("=> (float[4, 2] y)", "=> (float[n, 2] y)")), batch()
    step = make_train_step(model, mse())
    state = first_feeds(model, step)
    got = run(step.model, {**feeds, **state})
    expected = by_hand(feeds, state["in.w"], state["in.b"])[0]
    np.testing.assert_allclose(got["new.w"], state["in.w"] - 0.1 * expected, rtol=1e-5)


def test_old_opset_is_converted() -> None:
    model = parse("""<ir_version: 4, opset_import: ["": 11]>
    net (float[4, 3] x) => (float[4, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
    { h = MatMul(x, w) y = Softmax<axis = 1>(h) }""")
    step = make_train_step(model, Recipe(LossFunction("softmax-cross-entropy")))
    assert {o.domain: o.version for o in step.model.opset_import}[""] >= 18
    state = first_feeds(model, step)
    np.testing.assert_array_equal(state["in.w"].ravel(), np.arange(1, 7, dtype=np.float32))
    kinds = {node.op_type for node in step.model.graph.node}
    assert "Softmax" not in kinds, "the loss takes the logits"


def test_a_softmax_of_another_domain_is_not_skipped() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 20, "mine": 1]>
    net (float[4, 3] x) => (float[4, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
    { h = MatMul(x, w) y = mine.Softmax(h) }""")
    with pytest.raises(NoRuleError, match=r"Softmax"):
        make_train_step(model, Recipe(LossFunction("softmax-cross-entropy")))


def test_a_recurrence_without_gradient_stays_whatever_output_it_omits() -> None:
    """It has a clip, which could not be unrolled; both recurrences omit their first output."""
    model = parse("""<ir_version: 10, opset_import: ["": 20]>
    net (float[2, 1, 3] x, float[1, 2, 3] v, float[1, 2, 2] s) => (float[1, 1, 2] y)
        <float[1, 2, 3] w = {1, 2, 3, 4, 5, 6}, float[1, 2, 2] r = {1, 2, 3, 4}>
    {
        , h = RNN<hidden_size = 2>(x, w, r)
        , k = RNN<hidden_size = 2, clip = 1.0>(x, v, s)
        y = Add(h, k)
    }""")
    step = make_train_step(model, mse())
    assert [node.op_type for node in step.model.graph.node].count("RNN") == 1


def test_a_model_before_opset_11_is_refused() -> None:
    with pytest.raises(ModelError, match=r"opset 10, a training step needs 11 or later"):
        make_train_step(parse(LINEAR.replace('"": 20', '"": 10')), mse())


def test_only_older_opsets_are_converted() -> None:
    """The converter asks of this IR version that weights are inputs too."""
    text = LINEAR.replace("ir_version: 10", "ir_version: 3")
    make_train_step(parse(text.replace('"": 20', '"": 18')), mse())
    with pytest.raises(ModelError, match=r"opset 17, .* cannot be converted: Input w"):
        make_train_step(parse(text.replace('"": 20', '"": 17')), mse())


NORMALIZED = """<ir_version: 10, opset_import: ["": 20]>
net (float[4, 2, 3] x, float[4, 2, 3] target) => (float[4, 2, 3] y)
<float[2] s = {1, 2}, float[2] b = {0.1, 0.2}, float[2] m = {0.3, 0.4}, float[2] v = {1, 2}>
{ y = BatchNormalization<momentum = 0.8>(x, s, b, m, v) }"""


def test_batch_normalization_trains_by_the_batch_and_keeps_running_statistics() -> None:
    model = parse(NORMALIZED)
    step = make_train_step(model, mse())
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32)
    state = first_feeds(model, step)
    assert [parameter.name for parameter in step.running] == ["m", "v"]
    got = run(step.model, {**batch(), **state, "x": x, "target": x})
    mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    np.testing.assert_allclose(got["new.m"], 0.8 * state["in.m"] + 0.2 * mean, rtol=1e-4)
    np.testing.assert_allclose(got["new.v"], 0.8 * state["in.v"] + 0.2 * variance, rtol=1e-4)


def test_running_statistics_can_stay_unchanged() -> None:
    step = make_train_step(parse(NORMALIZED), mse(statistics=Statistics.RUNNING))
    assert step.running == ()
    assert {"m", "v"} <= set(names_of(step.model.graph.initializer))


def test_labels_to_ignore_have_no_part_in_the_loss() -> None:
    model, feeds = parse(LINEAR), batch()
    step = make_train_step(model, Recipe(LossFunction("softmax-cross-entropy")))
    state = first_feeds(model, step)
    labels = np.array([0, 1, -100, 1])
    got = run(step.model, {**feeds, **state, "labels": labels})
    logits = feeds["x"] @ state["in.w"] + state["in.b"]
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -np.mean([logs[0, 0], logs[1, 1], logs[3, 1]])
    np.testing.assert_allclose(got["loss"], expected, rtol=1e-5)


def test_repeated_indices_are_added_without_scatter_nd() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    net (int64[6] x, float[6, 3] target) => (float[6, 3] y) <float[4, 3] w =
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { y = Gather(w, x) }"""
    step = make_train_step(parse(text), mse())
    kinds = {node.op_type for node in step.model.graph.node}
    assert "ScatterElements" in kinds
    assert "ScatterND" not in kinds


def test_gradient_of_dropout_passes_where_the_mask_of_the_same_run_did() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    net (float[64] x) => (float loss) <float r = {0.25}, bool t = {1}>
    { p = Mul(x, w) y = Dropout(p, r, t) loss = ReduceSum<keepdims = 0>(y) }"""
    model = parse(text)
    weight = onnx.numpy_helper.from_array(np.ones(64, np.float32), "w")
    model.graph.initializer.append(weight)
    step = make_train_step(model, Recipe("loss", None))
    state = first_feeds(model, step)
    got = run(step.model, {"x": np.ones(64, np.float32), **state})
    passed = got["w_grad"] != 0
    np.testing.assert_allclose(got["w_grad"][passed], 1 / 0.75, rtol=1e-6)
    assert 0 < passed.sum() < 64
    np.testing.assert_allclose(got["loss"], got["w_grad"].sum(), rtol=1e-5)


def test_external_weights_are_not_read() -> None:
    model = parse(LINEAR)
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="missing.bin")
    step = make_train_step(model, mse())
    with pytest.raises(MemplanError, match="'w'"):
        first_feeds(model, step)


def test_shared_gradient_is_given_under_each_parameters_name() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    net (float[2] x) => (float loss) <float[2] a = {1, 2}, float[2] b = {3, 4}>
    { s = Add(a, b) p = Mul(s, x) loss = ReduceSum<keepdims = 0>(p) }"""
    model = parse(text)
    step = make_train_step(model, Recipe("loss", None))
    x = np.array([5, 7], np.float32)
    got = run(step.model, {"x": x, **first_feeds(model, step)})
    assert sorted(step.gradients) == ["a", "b"]
    for name in step.gradients.values():
        np.testing.assert_array_equal(got[name], x)
    assert set(step.gradients.values()) == {"a_grad", "b_grad"}


def test_input_that_nothing_reads_any_more_is_left_out() -> None:
    text = LINEAR.replace("float[4, 2] target)", "float[4, 2] target, float[1] other)")
    text = text.replace("(float[4, 2] y)", "(float[4, 2] y, float[1] z)").replace(
        "{ h", "{ z = Neg(other) h"
    )
    step = make_train_step(parse(text), mse())
    assert "other" not in names_of(step.model.graph.input)


def test_name_that_the_step_needs_is_refused_where_it_is_taken() -> None:
    text = LINEAR.replace("float[4, 3] x,", "float[4, 3] step,").replace("(x, w)", "(step, w)")
    with pytest.raises(MemplanError, match="'step'"):
        make_train_step(parse(text), mse())


@pytest.mark.parametrize(
    ("kind", "largest"),
    [
        ("bfloat16", "0x1.fep127"),
        ("float16", "0x1.ffcp15"),
        ("float", "0x1.fffffep127"),
        ("double", "0x1.fffffffffffffp1023"),
    ],
)
def test_causal_attention_of_every_float_type_can_be_trained(kind: str, largest: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 23]>
        net ({kind}[1, 2, 3, 4] x, {kind}[1, 2, 3, 4] labels) => ({kind}[1, 2, 3, 4] y)
        {{ y = Attention<is_causal = 1>(x, x, x) }}"""
    recipe = Recipe(LossFunction("mse", "target"), None, train=("x",))
    step = make_train_step(parse(text), recipe)
    assert step.gradients.keys() == {"x"}
    constants = map(onnx.numpy_helper.to_array, step.model.graph.initializer)
    assert min(float(array.min()) for array in constants) == -float.fromhex(largest)


@pytest.mark.parametrize("kind", ["softmax-cross-entropy", "mse"])
def test_result_that_is_no_float_cannot_be_compared(kind: str) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
        net (string[2] x) => (string[2] y) { y = StringConcat(x, x) }"""
    with pytest.raises(SettingsError, match="'y' is of type string"):
        make_train_step(parse(text), Recipe(LossFunction(kind, "labels"), None))


def test_labels_that_are_no_classes_are_refused() -> None:
    recipe = Recipe(LossFunction("softmax-cross-entropy", "target"), None)
    with pytest.raises(SettingsError, match="'target' are of type float"):
        make_train_step(parse(LINEAR), recipe)


def test_a_loss_is_not_made_of_a_single_number() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float total)
        { total = ReduceSum<keepdims=0>(x) }"""
    with pytest.raises(SettingsError, match="is one number"):
        make_train_step(parse(text), Recipe(LossFunction("mse"), None, train=("x",)))


def test_a_split_into_more_than_64_parts_has_a_gradient() -> None:
    parts = [f"p{index}" for index in range(80)]
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[80] x) => (float loss)
        {{ {", ".join(parts)} = Split<axis=0, num_outputs=80>(x)
          total = Sum({", ".join(parts)}) loss = ReduceSum<keepdims=0>(total) }}"""
    step = make_train_step(parse(text), Recipe("loss", None, train=("x",)))
    got = run(step.model, {"in.x": np.ones(80, np.float32)})
    np.testing.assert_array_equal(got["x_grad"], np.ones(80))


@pytest.mark.parametrize("name", ["in.w", "new.w"])
def test_a_name_of_the_steps_interface_that_the_model_uses_is_refused(name: str) -> None:
    model = parse(LINEAR)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = name
    with pytest.raises(ModelError, match=f"'{name}', and the model uses that name"):
        make_train_step(model, Recipe(LossFunction("mse"), Optimizer("sgd")))


def test_a_node_of_the_losss_name_does_not_clash_with_it() -> None:
    model = parse(LINEAR)
    model.graph.node[0].name = "loss"
    step = make_train_step(model, Recipe(LossFunction("mse"), Optimizer("sgd"))).model
    names = [node.name for node in step.graph.node if node.name]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("axis", "read"), [("", "p"), ("<axis = 1>", "x"), ("<axis = 2>", "p")]
)
def test_a_softmax_over_the_classes_is_not_applied_twice(axis: str, read: str) -> None:
    model = parse(f"""<ir_version: 10, opset_import: ["": 20]>
        g (float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] p) {{ p = Softmax{axis}(x) }}""")
    operands = LossOperands("p", TensorProto.FLOAT, (2, 3, 4, 5), "labels")
    softmax_cross_entropy(model.graph, operands)
    (node,) = (node for node in model.graph.node if node.op_type == "LogSoftmax")
    assert node.input[0] == read


def test_a_loss_of_an_unknown_length_may_be_one_number() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 20]>
        net (float[2] x, int64[1] dims) => (loss) <float[2] w = {1, 2}>
        { y = Mul(x, w) s = ReduceSum<keepdims = 0>(y) loss = Reshape(s, dims) }""")
    step = make_train_step(model, Recipe("loss", None))
    state = first_feeds(model, step)
    given = {"x": np.array([3, 4], np.float32), "dims": np.array([1])}
    got = run(step.model, {**given, **state})
    assert got["w_grad"].tolist() == [3, 4]
