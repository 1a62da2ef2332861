"""Forward, backward and update are told apart by structure; names only help."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from memplan_cli.analysis.phase import Phases, find_phases
from memplan_cli.core.program import Op, Program, VarId
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.reading import read_program

MODELS = Path(__file__).parents[3] / "shared" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

TWO_LAYERS = """
step (float[8,4] x, float[4,6] w1, float[6,1] w2) => ({results}) <float[1] rate = {{0.1}}> {{
   h = MatMul(x, w1)
   a = Tanh(h)
   y = MatMul(a, w2)
   {loss} = ReduceMean<keepdims=0>(y)
   dy = Expand(rate, shape)
   at = Transpose(a)
   {g2} = MatMul(at, dy)
   w2t = Transpose(w2)
   da = MatMul(dy, w2t)
   aa = Mul(a, a)
   slope = Sub(rate, aa)
   dh = Mul(da, slope)
   xt = Transpose(x)
   {g1} = MatMul(xt, dh)
   {update}
}}
"""
UPDATE = "s1 = Mul(p, rate) n1 = Sub(w1, s1) s2 = Mul(q, rate) n2 = Sub(w2, s2)"


def parse(graph: str) -> Program:
    text = f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> {graph}'
    model = onnx.parser.parse_model(text)
    made = {name for node in model.graph.node for name in node.output}
    stored = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.value_info:
        if value.name not in made | stored:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            data = np.zeros(shape, np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(data, value.name))
    return read_program(model).program


def training_step(results: str, *, loss: str = "z", update: str = UPDATE) -> Program:
    graph = TWO_LAYERS.format(results=results, loss=loss, update=update, g1="p", g2="q")
    shape = "<float[1] rate = {0.1}, int64[2] shape = {8, 1}>"
    return parse(graph.replace("<float[1] rate = {0.1}>", shape))


def parts(program: Program, phases: Phases) -> dict[str, str]:
    return {op.outputs[0]: phases.phase(op) for op in program.body.ops}


def test_a_training_step_divides_into_three_parts() -> None:
    program = training_step("float z, float[4,6] n1, float[6,1] n2")
    phases = find_phases(program)
    assert phases.kind == "train"
    assert phases.loss == "z"
    assert phases.parameters == ("w1", "w2")
    assert phases.gradients == ("p", "q")
    found = parts(program, phases)
    assert {var for var, part in found.items() if part == "forward"} == {"h", "a", "y", "z"}
    assert {var for var, part in found.items() if part == "update"} == {"s1", "n1", "s2", "n2"}


def test_gradients_may_be_the_outputs_themselves() -> None:
    program = training_step("float z, float[4,6] p, float[6,1] q", update="")
    phases = find_phases(program)
    assert phases.kind == "train"
    assert phases.gradients == ("p", "q")
    assert "update" not in parts(program, phases).values()


def test_the_parts_stay_true_when_ops_change_places() -> None:
    program = training_step("float z, float[4,6] n1, float[6,1] n2")
    phases = find_phases(program)
    turned = replace(program.body, ops=tuple(reversed(program.body.ops)))
    assert parts(replace(program, body=turned), phases) == parts(program, phases)


def test_a_copy_made_later_has_the_part_that_is_recorded_for_its_output() -> None:
    phases = Phases("train", phase_of={VarId("c"): "backward"})
    assert phases.phase(Op("", "Relu", (VarId("a"),), (VarId("c"),))) == "backward"


def test_a_loss_of_a_training_step_may_be_named() -> None:
    program = training_step("float z, float[4,6] n1, float[6,1] n2")
    assert find_phases(program, loss="z") == find_phases(program)


def test_a_loss_with_loss_in_its_name_goes_before_another_scalar() -> None:
    update = "total_loss = Neg(z) " + UPDATE
    results = "float z, float total_loss, float[4,6] n1, float[6,1] n2"
    assert find_phases(training_step(results, update=update)).loss == "total_loss"


def test_a_known_loss_goes_before_a_larger_scalar() -> None:
    update = "size = ReduceMean<keepdims=0>(p) norm = Neg(size) " + UPDATE
    results = "float norm, float my_loss, float[4,6] n1, float[6,1] n2"
    assert find_phases(training_step(results, loss="my_loss", update=update)).loss == "my_loss"


def test_an_unknown_loss_is_refused_with_the_nearest_names() -> None:
    program = training_step("float z, float[4,6] n1, float[6,1] n2")
    with pytest.raises(SettingsError, match="no value named 'slopes'") as caught:
        find_phases(program, loss="slopes")
    assert "slope" in caught.value.hint


def test_an_input_is_no_loss() -> None:
    program = training_step("float z, float[4,6] n1, float[6,1] n2")
    with pytest.raises(SettingsError):
        find_phases(program, loss="x")


@pytest.mark.parametrize(
    "graph",
    [
        # One scalar float output.
        "g (float[2,4] x) => (float s) <float[4,4] w> { h = MatMul(x, w) s = ReduceMean<keepdims=0>(h) }",
        # Two heads; one has the shape of a factor of the other, and reads the same feature.
        """g (float[1,4] x) => (float s, float[1,4] y) <float[4,4] w, float[1,4] k> {
            h = MatMul(x, w) m = Mul(h, k) s = ReduceMean<keepdims=0>(m) y = MatMul(h, w) }""",
        # Two scalars, and a scalar weight between them.
        """g (float[2,4] x, float t) => (float s, float u) {
            h = Mul(x, t) m = Relu(h) s = ReduceMean<keepdims=0>(m)
            k = Add(m, x) u = ReduceMax<keepdims=0>(k) }""",
        # A penalty beside an autoencoder whose decoder is the transposed encoder.
        """g (float[2,4] x) => (float loss, float[2,4] y) <float[4,4] w> {
            h = MatMul(x, w) a = Relu(h) loss = ReduceMean<keepdims=0>(a)
            wt = Transpose(w) y = MatMul(a, wt) }""",
        # Running statistics are updated, but nothing is trained.
        """g (float[2,4] x, float[4] mean, float[4] w) => (float loss, float[4] new_mean)
            <float[1] k = {0.1}> {
            b = ReduceMean<axes=[0], keepdims=0>(x) d = Sub(x, b) e = Mul(d, w)
            loss = ReduceMean<keepdims=0>(e) old = Mul(mean, k) add = Mul(b, k)
            new_mean = Add(old, add) }""",
        # A tensor called a gradient: an edge filter.
        """g (float[1,1,8,8] x) => (float s, float[1,1,6,6] x_grad) <float[1,1,3,3] k> {
            s = ReduceMean<keepdims=0>(x) x_grad = Conv(x, k) }""",
        # A recurrent critic: the state has the shape of the state it was given.
        """g (float[1,4] x, float[1,4] state) => (float value, float[1,4] new_state)
            <float[4,4] w, float[4,1] v> {
            a = MatMul(x, w) b = MatMul(state, w) c = Add(a, b) new_state = Tanh(c)
            d = MatMul(c, v) value = ReduceMean<keepdims=0>(d) }""",
    ],
)
def test_an_inference_graph_is_not_called_training(graph: str) -> None:
    assert find_phases(parse(graph)).kind == "test"


def test_a_forward_graph_keeps_the_loss_it_was_told() -> None:
    graph = "g (float[2,4] x) => (float s) { h = Relu(x) s = ReduceMean<keepdims=0>(h) }"
    assert find_phases(parse(graph)).loss is None
    assert find_phases(parse(graph), loss="s") == Phases(loss=VarId("s"))


def test_ops_of_onnxruntime_training_are_hints_where_shapes_are_unknown() -> None:
    graph = """g (float[2,4] x, float[4,4] w) => (float loss, float[4,4] w_grad) {
        h = MatMul(x, w) a = Relu(h) loss = ReduceMean<keepdims=0>(a)
        d = com.microsoft.ReluGrad(x, a) xt = Transpose(x) w_grad = MatMul(xt, d) }"""
    program = parse(graph)
    phases = find_phases(program)
    assert phases.kind == "train"
    assert phases.loss == "loss"
    assert phases.parameters == ("w",)
    assert phases.gradients == ("w_grad",)
    assert parts(program, phases)["d"] == "backward"


def test_an_output_that_marked_ops_compute_is_not_the_loss() -> None:
    graph = """g (float[2,4] x, float[4,4] w) => (float late, float mean) {
        h = MatMul(x, w) a = Relu(h) mean = ReduceMean<keepdims=0>(a)
        d = com.microsoft.ReluGrad(x, a) late = ReduceMean<keepdims=0>(d) }"""
    phases = find_phases(parse(graph))
    assert (phases.kind, phases.loss) == ("train", "mean")


def test_recorded_phases_replace_detected_ones() -> None:
    graph = """g (float[2,4] x) => (float[2,4] c, float[2,4] d) {
        [first] a = Relu(x) [second] b = Neg(a) [third] c = Abs(b) [fourth] d = Abs(a) }"""
    program = parse(graph)
    labels = [op.label for op in program.body.ops]
    words = ("forward", "backward", "update", "forward")
    phases = find_phases(program, recorded=dict(zip(labels, words, strict=True)))
    assert phases.kind == "train"
    assert phases.gradients == ("b",)
    assert tuple(phases.phase(op) for op in program.body.ops) == words


FORWARD_OF = {
    "train_mlp_sgd": (26, 8),
    "train_mlp_adam": (26, 8),
    "train_cnn_sgd": (82, 12),
    "train_cnn_adam": (82, 12),
    "train_bert_small_adam": (204, 74),
    "train_bert_small_dropout_adam": (271, 74),
    "train_gpt2_small_adam": (547, 148),
    "train_lstm_unrolled_128x2": (4482, 9),
    "train_resnet18_momentum": (604, 62),
}


@pytest.mark.parametrize("name", FORWARD_OF)
def test_a_real_training_step_is_divided(name: str) -> None:
    program = shared(name)
    phases = find_phases(program)
    counts = Counter(phases.phase(op) for op in program.body.ops)
    assert (phases.kind, phases.loss) == ("train", "loss")
    assert (counts["forward"], len(phases.parameters)) == FORWARD_OF[name]
    # The trained tensors are the ones with a new value of their name.
    changed = {
        var for var in phases.parameters if f"new.{var.removeprefix('in.')}" in program.vars
    }
    assert changed == set(phases.parameters)
    shapes = {program.vars[var].shape for var in phases.parameters}
    assert {program.vars[var].shape for var in phases.gradients} == shapes


def test_one_gradient_may_serve_two_parameters() -> None:
    # Two batch norms meet in an addition: the gradients of their biases are one tensor.
    phases = find_phases(shared("train_resnet18_momentum"))
    assert len(phases.gradients) == len(phases.parameters) - 3


def test_no_real_inference_graph_is_called_training() -> None:
    if not MODELS.is_dir():
        pytest.skip("the shared models are not here")
    paths = [*MODELS.glob("*.onnx"), *LIGHT.glob("*.onnx")]
    for path in paths:
        if not path.stem.startswith("train_") and path.stat().st_size < 4_000_000:
            assert find_phases(read_program(load_model(path)).program).kind == "test", path


def shared(name: str) -> Program:
    if not MODELS.is_dir():
        pytest.skip("the shared models are not here")
    return read_program(load_model(MODELS / f"{name}.onnx")).program
