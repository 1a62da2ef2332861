"""Loops that were unrolled are loops again: fewer nodes, and no bit of a result changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli import Check, Settings, workflows
from memplan_cli.onnx_io.load import graphs, load_model
from memplan_cli.onnx_io.rerolling import exports
from memplan_cli.onnx_io.rerolling.reroll import Rerolled, may_repeat, reroll
from unrolled_graphs import BATCH, WIDTH, Net, Unrolled, feeds, recurrent

if TYPE_CHECKING:
    from pathlib import Path


def types_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return what ONNX infers of values."""
    found = {}
    for value in (*model.graph.value_info, *model.graph.output):
        kind = value.type.tensor_type
        dims = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        found[value.name] = [f"{np.dtype(dtype)}", dims]
    return found


def rerolled(model: onnx.ModelProto, **dims: int) -> Rerolled | None:
    """Return a model with loops, by ONNX's own types."""
    return reroll(model, types_of(model), dims)


def results(model: onnx.ModelProto, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what a model gives as it stands."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, fed)]


def same(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether two models give the same bits."""
    onnx.checker.check_model(other, full_check=True)
    fed = feeds(one)
    pairs = zip(results(one, fed), results(other, fed), strict=True)
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def nodes(model: onnx.ModelProto) -> int:
    """Return how many nodes a model has, subgraphs included."""
    return sum(len(graph.node) for graph in graphs(model.graph))


def kinds(model: onnx.ModelProto) -> Counter[str]:
    """Return how often each operator stands at a model's top."""
    return Counter(node.op_type for node in model.graph.node)


NETS = {
    "an index of each step": Net(),
    "the parts of a split": Net(reads="Split"),
    "the bounds of slices": Net(reads="Slice"),
    "nothing of its own": Net(reads="nothing", steps=60),
    "parts from the back": Net(reads="Split", backwards=True),
    "an index, backwards": Net(backwards=True),
    "a free batch": Net(batch="batch", reads="Split"),
    "a free batch, joined first": Net(batch="batch", axis=0),
    "a free batch, features in a row": Net(batch="batch", joins="features"),
    "features in a row": Net(joins="features"),
    "joined along the first axis": Net(axis=0),
    "joined along the last axis": Net(axis=2),
    "several states": Net(states=3),
    "each step's result given": Net(joins="outputs"),
    "the last result alone": Net(joins="last", steps=60),
    "opset 11": Net(opset=11, reads="Split"),
    "opset 13": Net(opset=13, reads="Split", batch="batch"),
    "few steps": Net(steps=12, states=8),
}


@pytest.mark.parametrize("name", NETS)
def test_written_out_steps_are_one_scan_with_the_same_bits(name: str) -> None:
    model = recurrent(NETS[name])
    found = rerolled(model)
    assert found is not None
    assert found.loops == kinds(found.model)["Scan"] == 1
    assert nodes(found.model) < nodes(model) / 3
    assert same(model, found.model)


def test_the_model_that_is_given_stays_as_it_is() -> None:
    model = recurrent(Net())
    before = model.SerializeToString(deterministic=True)
    rerolled(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("net", [Net(axis=0), Net(batch="batch", joins="features")])
def test_what_a_concat_joins_is_written_where_it_is_read(net: Net) -> None:
    """All values of a step are in the Scan's own result: no node takes one of them out."""
    found = rerolled(recurrent(net))
    assert found is not None
    assert not {"Concat", "Gather"} & kinds(found.model).keys()


def test_results_of_few_last_steps_are_made_behind_the_loop() -> None:
    """A projection whose result only the last step gives is in no other step."""
    found = rerolled(recurrent(Net(joins="last", steps=60)))
    assert found is not None
    (scan,) = (node for node in found.model.graph.node if node.op_type == "Scan")
    (body,) = (attribute.g for attribute in scan.attribute if attribute.name == "body")
    assert "Relu" not in {node.op_type for node in body.node}


def test_types_of_new_values_are_told() -> None:
    model = recurrent(Net(batch="batch", reads="Split"))
    found = rerolled(model)
    assert found is not None
    told = types_of(onnx.shape_inference.infer_shapes(found.model, strict_mode=True))
    new = {name: kind for name, kind in told.items() if name in found.types}
    assert new
    for name, (dtype, dims) in new.items():
        assert [dtype, list(dims)] == [found.types[name][0], list(found.types[name][1])], name


def layers(weights: int, count: int = 40) -> onnx.ModelProto:
    """Return layers one behind the other; every so many share their weights."""
    graph = Unrolled()
    value = graph.given("x", BATCH, WIDTH)
    names = [graph.weight(f"W{at}", WIDTH, WIDTH) for at in range(weights)]
    for at in range(count):
        moved = graph.node("MatMul", value, names[at % weights])
        for kind in ("Tanh", "Sigmoid", "Neg", "Relu", "Sin"):
            moved = graph.node(kind, moved)
        value = graph.node("Add", value, moved)
    graph.result(value, "y", BATCH, WIDTH)
    return graph.model()


def test_layers_with_weights_of_their_own_are_no_steps() -> None:
    assert rerolled(layers(40)) is None


def test_two_layers_in_turn_are_one_step() -> None:
    model = layers(2)
    found = rerolled(model)
    assert found is not None
    assert same(model, found.model)
    assert nodes(found.model) < 60


def test_a_small_graph_stays_as_it_is() -> None:
    assert rerolled(recurrent(Net(steps=8))) is None


def test_steps_that_draw_random_numbers_stay_apart() -> None:
    """One node that runs 40 times draws other numbers than 40 that run once."""
    graph = Unrolled()
    value, weight = graph.given("x", BATCH, WIDTH), graph.weight("W", WIDTH, WIDTH)
    for _ in range(40):
        noise = graph.node("RandomNormal", shape=[BATCH, WIDTH], seed=1.0)
        value = graph.node("MatMul", graph.node("Add", value, noise), weight)
        for kind in ("Tanh", "Neg", "Sin", "Relu"):
            value = graph.node(kind, value)
    graph.result(value, "y", BATCH, WIDTH)
    found = rerolled(graph.model())
    assert found is None or kinds(found.model)["RandomNormal"] == 40


def test_a_step_that_reads_what_an_earlier_one_led_to_is_no_circle() -> None:
    """Every step reads a value that is made of the first one's, outside."""
    graph = Unrolled()
    value, weight = graph.given("x", BATCH, WIDTH), graph.weight("W", WIDTH, WIDTH)
    context = ""
    for step in range(50):
        value = graph.node("Tanh", graph.node("MatMul", value, weight))
        if not step:
            context = graph.node("Exp", value)
        value = graph.node("Neg", graph.node("Add", value, context))
        value = graph.node("Sin", value)
    graph.result(value, "y", BATCH, WIDTH)
    model = graph.model()
    found = rerolled(model)
    assert found is not None
    assert same(model, found.model)


def test_a_value_of_two_steps_before_is_not_mistaken_for_the_last() -> None:
    graph = Unrolled()
    older, old = graph.given("x", BATCH, WIDTH), graph.given("z", BATCH, WIDTH)
    weight = graph.weight("W", WIDTH, WIDTH)
    for _ in range(60):
        moved = graph.node("Tanh", graph.node("MatMul", old, weight))
        new = graph.node("Neg", graph.node("Sin", graph.node("Add", moved, older)))
        older, old = old, new
    graph.result(old, "y", BATCH, WIDTH)
    model = graph.model()
    found = rerolled(model)
    assert found is None or same(model, found.model)


def test_what_two_steps_before_have_made_is_no_value_of_the_last() -> None:
    """``u = sin(v + h)``, where v is two steps older, beside a plain recurrence."""
    graph = Unrolled()
    hidden, weight = graph.given("h0", BATCH, WIDTH), graph.weight("W", WIDTH, WIDTH)
    older, old = graph.given("u0", BATCH, WIDTH), graph.given("u1", BATCH, WIDTH)
    for _ in range(60):
        hidden = graph.node("Tanh", graph.node("MatMul", hidden, weight))
        for kind in ("Neg", "Exp", "Sigmoid"):
            hidden = graph.node(kind, hidden)
        older, old = old, graph.node("Sin", graph.node("Add", older, hidden))
    graph.result(old, "y", BATCH, WIDTH)
    model = graph.model()
    found = rerolled(model)
    assert found is not None
    assert same(model, found.model)


def test_a_first_state_of_other_dims_is_read_by_a_step_outside() -> None:
    """A row that is broadcast is none of the rows that a loop carries."""
    graph = Unrolled()
    graph.given("x", BATCH, 60, WIDTH)
    hidden = graph.given("h0", 1, WIDTH)
    for step in range(60):
        hidden = graph.node(
            "Add", graph.node("Gather", "x", graph.scalar(step), axis=1), hidden
        )
        for kind in ("Tanh", "Sin", "Neg"):
            hidden = graph.node(kind, hidden)
    graph.result(hidden, "y", BATCH, WIDTH)
    model = graph.model()
    found = rerolled(model)
    assert found is not None
    assert same(model, found.model)


def test_a_loop_never_reads_what_is_made_of_what_it_gives() -> None:
    """Each step's result is scaled by what the middle step led to: not in the loop, then."""
    graph = Unrolled()
    value, weight = graph.given("x", BATCH, WIDTH), graph.weight("W", WIDTH, WIDTH)
    made = []
    for _ in range(60):
        value = graph.node("Tanh", graph.node("MatMul", value, weight))
        for kind in ("Neg", "Sin", "Sigmoid"):
            value = graph.node(kind, value)
        made.append(value)
    context = graph.node("Exp", made[30])
    scaled = [graph.node("Mul", each, context) for each in made]
    graph.result(graph.node("Concat", *scaled, axis=0), "y", 60 * BATCH, WIDTH)
    model = graph.model()
    found = rerolled(model)
    assert found is None or same(model, found.model)


def test_what_reads_the_values_from_the_back_is_a_loop_of_its_own() -> None:
    """Two directions, the second over results of the first."""
    graph = Unrolled()
    hidden, weight = graph.given("h0", BATCH, WIDTH), graph.weight("W", WIDTH, WIDTH)
    made = []
    for _ in range(60):
        hidden = graph.node("Tanh", graph.node("MatMul", hidden, weight))
        for kind in ("Neg", "Sin", "Sigmoid"):
            hidden = graph.node(kind, hidden)
        made.append(hidden)
    back, other = graph.given("b0", BATCH, WIDTH), graph.weight("V", WIDTH, WIDTH)
    for value in reversed(made):
        back = graph.node("Relu", graph.node("MatMul", graph.node("Mul", value, back), other))
        back = graph.node("Sin", graph.node("Neg", back))
    graph.result(back, "y", BATCH, WIDTH)
    model = graph.model()
    found = rerolled(model)
    assert found is not None
    assert found.loops == 2
    assert same(model, found.model)


def test_a_product_of_each_step_that_is_read_later_is_not_kept_but_what_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Squares of states, added from the back: of each step a state is kept, which is smaller."""
    monkeypatch.setattr(exports, "NODE", 1)
    graph = Unrolled()
    hidden, weight = graph.given("h0", BATCH, WIDTH), graph.weight("W", WIDTH, WIDTH)
    squares = []
    for _ in range(60):
        hidden = graph.node("Tanh", graph.node("MatMul", hidden, weight))
        for kind in ("Neg", "Sin", "Sigmoid"):
            hidden = graph.node(kind, hidden)
        turned = graph.node("Transpose", hidden, perm=[1, 0])
        squares.append(graph.node("MatMul", turned, hidden))
    total = squares[-1]
    for square in reversed(squares[:-1]):
        total = graph.node("Add", graph.node("Tanh", total), square)
    graph.result(total, "y", WIDTH, WIDTH)
    model = graph.model()
    found = reroll(model, types_of(model), {})
    assert found is not None
    stacks = [dims for _, dims in found.types.values() if len(dims) == 3]
    assert stacks
    assert all(dims[1:] == (BATCH, WIDTH) for dims in stacks), stacks
    assert same(model, found.model)


def backpropagated(steps: int) -> onnx.ModelProto:
    """Return a net's steps, then those of its gradient, which read what each step made."""
    graph = Unrolled()
    graph.given("x", BATCH, steps, WIDTH)
    hidden, weight = graph.given("h0", BATCH, WIDTH), graph.weight("W", WIDTH, WIDTH)
    turned = graph.weight("Wt", WIDTH, WIDTH)
    made: list[tuple[str, str]] = []
    for step in range(steps):
        part = graph.node("Gather", "x", graph.scalar(step), axis=1)
        new = graph.node("Tanh", graph.node("Add", part, graph.node("MatMul", hidden, weight)))
        made.append((hidden, new))
        hidden = new
    slope, total = graph.node("Neg", hidden), ""
    for before, new in reversed(made):
        square = graph.node("Mul", new, new)
        slope = graph.node("Mul", slope, graph.node("Sub", graph.given_one(), square))
        piece = graph.node("MatMul", graph.node("Transpose", before, perm=[1, 0]), slope)
        total = graph.node("Add", total, piece) if total else piece
        slope = graph.node("MatMul", slope, turned)
    graph.result(hidden, "last", BATCH, WIDTH)
    graph.result(total, "dW", WIDTH, WIDTH)
    return graph.model()


def test_a_gradient_is_a_loop_of_its_own_and_reads_what_the_steps_kept() -> None:
    model = backpropagated(60)
    found = rerolled(model)
    assert found is not None
    assert found.loops >= 2
    assert nodes(found.model) < nodes(model) / 2
    assert same(model, found.model)


def test_no_loop_keeps_a_gradient_of_weights_of_each_step() -> None:
    """What is added up is added in the loop: a stack of it would be as large as all of them."""
    found = rerolled(backpropagated(60))
    assert found is not None
    for node in found.model.graph.node:
        if node.op_type == "Scan":
            for name in node.output:
                assert found.types.get(name, ("", ()))[1][1:] != (WIDTH, WIDTH)


@given(st.data())
@settings(max_examples=40)
def test_any_steps_keep_their_bits(data: st.DataObject) -> None:
    """Nodes, carried values and results are drawn; what is odd about them stays outside."""
    model = drawn(data.draw)
    found = rerolled(model)
    assert found is None or same(model, found.model)


def drawn(draw: Any) -> onnx.ModelProto:  # noqa: ANN401
    """Return steps of a drawn program: registers that operators read and write."""
    operators = ("Add", "Mul", "Sub", "Tanh", "Neg", "Sigmoid", "MatMul", "Clip")
    size = draw(st.integers(2, 4))
    read = st.integers(0, size)  # the last is the step's part of the input
    written = st.integers(0, size - 1)
    program = draw(
        st.lists(
            st.tuples(st.sampled_from(operators), read, read, written), min_size=5, max_size=9
        )
    )
    steps = draw(st.integers(60, 70))
    graph = Unrolled()
    graph.given("x", BATCH, steps, WIDTH)
    registers = [graph.given(f"r{at}", BATCH, WIDTH) for at in range(size)]
    weight = graph.weight("W", WIDTH, WIDTH)
    kept: list[str] = []
    odd, which = draw(st.integers(0, 3 * steps)), draw(written)
    ends = draw(st.sampled_from((0, 2, steps)))  # steps that keep another register
    for step in range(steps):
        part = graph.node("Gather", "x", graph.scalar(step), axis=1)
        for kind, one, other, into in program:
            values = [*registers, part]
            odd_ones = {
                "MatMul": (values[one], weight),
                "Clip": (values[one], "", graph.given_one()),
            }
            inputs = odd_ones.get(kind, (values[one], values[other]))
            unary = kind in {"Tanh", "Neg", "Sigmoid"}
            registers[into] = graph.node(kind, *(inputs[:1] if unary else inputs))
        if step == odd:
            registers[0] = graph.node("Abs", registers[0])
        registers[0] = graph.node("Tanh", registers[0])
        kept.append(registers[which if ends <= step < steps - ends else 0])
    for at, register in enumerate(registers):
        graph.result(register, f"register{at}", BATCH, WIDTH)
    joined = graph.node("Concat", *kept, axis=draw(st.integers(0, 1)))
    graph.result(joined, "y", "rows", "columns")
    return graph.model()


def test_models_that_read_a_weight_often_are_looked_at() -> None:
    assert may_repeat(recurrent(Net()))
    assert not may_repeat(layers(40))
    assert not may_repeat(recurrent(Net(steps=8)))


def test_a_file_for_the_cpu_has_loops_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(recurrent(replace(Net(), steps=60, states=2)), path)
    done = workflows.optimize(
        path, Settings(target="cpu"), out=tmp_path / "out.onnx", check=Check(provider="cpu")
    )
    assert done.passed
    assert done.model is not None
    assert kinds(load_model(done.model))["Scan"] == 1
    said = done.plan.report.warnings
    assert any("written as 1 loop" in warning for warning in said), said
    assert not done.plan.report.fallbacks


def test_a_state_as_large_as_the_input_says_is_carried_too(tmp_path: Path) -> None:
    """PyTorch's ``x.new_zeros(x.shape[0], 8)``, of which the runtime infers no dims."""
    model = recurrent(replace(Net(), steps=60, states=2, batch="batch"))
    zeros = onnx.parser.parse_graph("""zeros (float[batch, 60, 8] x) => (float[batch, 8] h0)
        <int64[1] first = {0}, int64[1] width = {8}> {
            shape = Shape(x)
            batch = Gather(shape, first)
            sizes = Concat<axis = 0>(batch, width)
            h0 = ConstantOfShape(sizes)
        }""")
    graph = model.graph
    nodes, inputs = [*zeros.node, *graph.node], [at for at in graph.input if at.name != "h0"]
    del graph.node[:], graph.input[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.initializer.extend(zeros.initializer)
    onnx.save(model, tmp_path / "net.onnx")
    given = Settings(target="cpu")
    out = tmp_path / "out.onnx"
    done = workflows.optimize(
        tmp_path / "net.onnx", given, out=out, check=Check(provider="cpu")
    )
    assert done.passed
    assert kinds(load_model(out))["Scan"] == 1
    assert len(load_model(out).graph.node) < 60
