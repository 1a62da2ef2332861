"""The written model: another order and notes, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from builders import parse, planned_program
from memplan_cli.core.program import VarId
from memplan_cli.core.results.placements import Placement, in_words
from memplan_cli.loading.settings import RUNTIME
from memplan_cli.onnx_io.load import graph_digest
from memplan_cli.onnx_io.metadata import (
    HARDWARE,
    IN_PLAN,
    NOTES,
    PREFIX,
    is_offline,
    read_notes,
    recorded_phases,
)
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.onnx_io.writing.verify import graph_differences
from memplan_cli.onnx_io.writing.write import rewrite, written_model
from memplan_cli.planning.candidate import Source
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.planning.planner import PlannedProgram

NESTED = """g (bool c, float[8,8] x) => (float[8,8] z) {
    w0 = Exp(x) w1 = Sin(x) w2 = Cos(x)
    r0 = ReduceSum(w0) r1 = ReduceSum(w1) r2 = ReduceSum(w2)
    [pick] y = If (c) <
        then_branch = t () => (float[8,8] one) {
            a = MatMul(w0, x) b = MatMul(x, x) d = ReduceSum(a) e = ReduceSum(b) f = Add(d, e)
            one = Add(f, x) },
        else_branch = e () => (float[8,8] two) { two = Neg(w1) }>
    n, m = Split<axis=0, num_outputs=2>(y)
    s = Sum(r0, r1, r2) q = Add(y, s)
    z = Identity(q) }"""
LOOP = """g (float[4] x, int64 n, bool go) => (float[4] z) {
    y = Loop (n, go, x) <body = b (int64 i, bool c, float[4] s) => (bool c2, float[4] s2) {
        c2 = Identity(c) t = Exp(s) s2 = Add(t, s) }>
    z = Neg(y) }"""
FREE = """g (float[batch,8] x) => (float[batch,8] z) {
    a = Exp(x) s = Shape(a) b = Reshape(a, s) c = Neg(b) z = Add(c, a) }"""

Model = Any


def plan(model: Model, settings: Settings) -> PlannedProgram:
    loaded = read_program(model, Bindings(settings.dims, settings.shapes))
    source = Source("model.onnx", "0" * 64, graph_digest(model))
    return planned_program(loaded.program, settings, source)


def written(model: Model, **settings: Any) -> Model:  # noqa: ANN401 - as Settings
    done = plan(model, Settings(**settings))
    return onnx.load_from_string(b"".join(written_model(model, done.program, done.plan)))


def notes(item: Any) -> dict[str, str]:  # noqa: ANN401 - onnx has no types
    return {entry.key: entry.value for entry in item.metadata_props}


def names(model: Model) -> dict[str, list[str]]:
    return {
        kind: sorted(found)
        for kind, found in {
            "nodes": [n.name for g in graphs(model.graph) for n in g.node],
            "values": [o for g in graphs(model.graph) for n in g.node for o in n.output],
            "reads": [i for g in graphs(model.graph) for n in g.node for i in n.input],
            "inputs": [v.name for v in model.graph.input],
            "outputs": [v.name for v in model.graph.output],
            "weights": [t.name for t in model.graph.initializer],
        }.items()
    }


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("text", [NESTED, LOOP, FREE])
def test_every_name_is_kept_and_the_graph_computes_the_same(text: str, level: int) -> None:
    model = parse(text)
    got = written(model, level=level)
    assert names(got) == names(model)
    assert graph_differences(model, got) == ()
    onnx.checker.check_model(got, full_check=True)


def test_the_order_is_the_plans() -> None:
    model = parse(NESTED)
    done = plan(model, Settings(alignment=4))
    got = onnx.load_from_string(b"".join(written_model(model, done.program, done.plan)))
    order = [op.outputs[0] for op in done.program.body.ops]
    assert [node.output[0] for node in got.graph.node] == order
    assert order != [node.output[0] for node in model.graph.node], "there is a better one"


def test_the_same_plan_gives_the_same_bytes() -> None:
    model = parse(NESTED)
    one, other = plan(model, Settings()), plan(parse(NESTED), Settings())
    first = written_model(model, one.program, one.plan)
    second = written_model(parse(NESTED), other.program, other.plan)
    assert b"".join(first) == b"".join(second)
    assert b"".join(first) == b"".join(second)  # they can be gone through again


def test_the_model_that_was_read_is_left_as_it_was() -> None:
    model = parse(NESTED)
    before = model.SerializeToString(deterministic=True)
    written(model)
    assert model.SerializeToString(deterministic=True) == before


def test_the_models_metadata_says_digest_level_and_totals() -> None:
    model = parse(NESTED)
    done = plan(model, Settings(level=1))
    got = onnx.load_from_string(b"".join(written_model(model, done.program, done.plan)))
    memory = done.plan.report.memory
    assert read_notes(got) == {
        "digest": done.plan.digest,
        "level": "1",
        "naive": str(memory.naive),
        "live_peak": str(memory.live_peak),
        "planned": str(memory.planned),
        "total": str(memory.total),
    }


def test_totals_that_are_not_known_are_not_written() -> None:
    assert set(read_notes(written(parse(FREE)))) == {"digest", "level"}


def test_nodes_of_every_block_say_their_step_and_what_they_release() -> None:
    model = parse(NESTED)
    done = plan(model, Settings())
    got = onnx.load_from_string(b"".join(written_model(model, done.program, done.plan)))
    steps = [int(notes(n)["pkg.memplan.step"]) for g in graphs(got.graph) for n in g.node]
    assert len(set(steps)) == len(steps)
    top = [int(notes(n)["pkg.memplan.step"]) for n in got.graph.node]
    assert top == sorted(top)
    released = [
        name
        for g in graphs(got.graph)
        for n in g.node
        if "pkg.memplan.release" in notes(n)
        for name in json.loads(notes(n)["pkg.memplan.release"])
    ]
    planned = [name for release in done.plan.releases for name in release.tensors]
    assert sorted(released) == sorted(planned)
    assert released


def values(graph: Any) -> dict[str, list[Any]]:  # noqa: ANN401 - onnx has no types
    found: dict[str, list[Any]] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        found.setdefault(value.name, []).append(value)
    return found


@pytest.mark.parametrize("text", [NESTED, LOOP])
def test_each_planned_value_carries_its_place_once(text: str) -> None:
    model = parse(text)
    done = plan(model, Settings())
    got = onnx.load_from_string(b"".join(written_model(model, done.program, done.plan)))
    noted: dict[str, dict[str, str]] = {}
    for graph in graphs(got.graph):
        for name, found in values(graph).items():
            assert len(found) == 1, f"{name} is declared twice in one block"
            if notes(found[0]):
                noted[name] = notes(found[0])
    assert set(noted) == {tensor.name for tensor in done.plan.tensors}
    for tensor in done.plan.tensors:
        keys = ("arena", "offset", "bytes", "first", "last")
        wanted = {f"pkg.memplan.{key}": str(getattr(tensor, key)) for key in keys}
        if tensor.alias_of:
            wanted["pkg.memplan.alias_of"] = tensor.alias_of
        assert noted[tensor.name] == wanted


def test_the_types_of_planned_values_are_declared() -> None:
    found = {v.name: v for v in written(parse(NESTED)).graph.value_info}["w0"].type.tensor_type
    assert found.elem_type == onnx.TensorProto.FLOAT
    assert [dim.dim_value for dim in found.shape.dim] == [8, 8]


@pytest.mark.parametrize(
    "settings",
    [{"dims": {"batch": 4}}, {"shapes": {"x": (4, 8)}}],
    ids=["dims", "shapes"],
)
def test_a_shape_that_holds_for_one_plan_only_is_not_written(settings: dict[str, Any]) -> None:
    """A runtime would believe it and fold Shape nodes: wrong for every other batch."""
    model = parse(FREE)
    got = written(model, **settings)
    for value in (*got.graph.value_info, *got.graph.output, *got.graph.input):
        first = value.type.tensor_type.shape.dim[:1]
        assert not any(dim.dim_value for dim in first if len(value.name) == 1), value


def test_a_model_planned_for_one_batch_runs_with_another() -> None:
    ort = pytest.importorskip("onnxruntime")
    text = FREE.replace("s = Shape(a)", "h = Mul(a, a) s = Shape(h)")
    got = written(parse(text), dims={"batch": 4}, exclude=("b",), expose=True)
    session = ort.InferenceSession(got.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    z = session.run(["z"], {"x": x})[0]
    np.testing.assert_allclose(z, np.exp(x) - np.exp(x), atol=1e-6)


def test_an_optimized_model_can_be_optimized_again() -> None:
    # Written twice: the second time finds a better order, the third none.
    first = written(written(parse(NESTED)))
    again = written(first, level=2)
    assert read_notes(again).keys() == read_notes(first).keys()
    one, other = read_notes(first), read_notes(again)
    assert {k: v for k, v in one.items() if k != "digest"} == {
        k: v for k, v in other.items() if k != "digest"
    }
    third = written(again)
    assert third.SerializeToString(deterministic=True) == again.SerializeToString(
        deterministic=True
    )


def test_old_notes_are_dropped_everywhere() -> None:
    first = written(parse(NESTED), level=2)
    done = plan(first, Settings(level=2))
    bare = rewrite(first, done.program)
    for graph in graphs(bare.graph):
        for item in (*graph.node, *graph.value_info, *graph.input, *graph.output):
            assert notes(item) == {}
    assert notes(bare) == {}


def test_other_peoples_notes_stay() -> None:
    model = parse(NESTED)
    for item in (model, model.graph.node[0], model.graph.input[0]):
        entry = item.metadata_props.add()
        entry.key, entry.value = "org.example.owner", "somebody"
    got = written(written(model))
    assert notes(got)["org.example.owner"] == "somebody"
    assert "org.example.owner" in notes(got.graph.input[0])
    assert sum("org.example.owner" in notes(node) for node in got.graph.node) == 1


def test_the_phase_that_a_maker_of_training_steps_wrote_stays() -> None:
    model = parse("g (float[4] x) => (float[4] z) { [n] a = Exp(x) [m] z = Neg(a) }")
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.memplan.phase", "backward"
    assert recorded_phases(written(model)) == {"n": "backward"}


def test_what_ties_a_file_to_a_runtime_stays_when_it_is_written_again() -> None:
    model = parse(NESTED)
    done = plan(model, Settings())
    tied = {RUNTIME: "onnxruntime 1", HARDWARE: "cpu"}
    made = onnx.load_from_string(b"".join(written_model(model, done.program, done.plan, tied)))
    again = written(made)
    assert is_offline(again)
    assert notes(again) == notes(made) | {f"{PREFIX}plan": notes(again)[f"{PREFIX}plan"]}
    new = plan(made, Settings())
    newer = tied | {RUNTIME: "onnxruntime 2"}
    later = onnx.load_from_string(b"".join(written_model(made, new.program, new.plan, newer)))
    assert [e.value for e in later.metadata_props if e.key == RUNTIME] == ["onnxruntime 2"]


def test_excluded_tensors_become_outputs_where_that_is_asked_for() -> None:
    model = parse(NESTED)
    got = written(model, exclude=("w0", "r?"), expose=True)
    assert [v.name for v in got.graph.output] == ["z", "w0", "r0", "r1", "r2"]
    onnx.checker.check_model(got, full_check=True)
    assert [v.name for v in written(model, exclude=("w0",)).graph.output] == ["z"]


def test_only_excluded_tensors_are_exposed() -> None:
    """Neither a loss nor the gradients that skip_grads pins."""
    got = written(parse(NESTED), exclude=("w0",), loss="r1", expose=True)
    assert [v.name for v in got.graph.output] == ["z", "w0"]


def test_an_excluded_tensor_of_unknown_size_is_exposed_all_the_same() -> None:
    model = parse("g (float[4] x) => (float[4] z) { k = NonZero(x) a = Exp(x) z = Neg(a) }")
    got = written(model, exclude=("k",), expose=True)
    assert [v.name for v in got.graph.output] == ["z", "k"]
    onnx.checker.check_model(got, full_check=True)


def test_inputs_weights_and_outputs_are_exposed_already() -> None:
    got = written(parse(NESTED), exclude=("x", "z", "w0"), expose=True)
    assert [v.name for v in got.graph.output] == ["z", "w0"]


def test_external_data_stays_external() -> None:
    model = parse("g (float[4] x) => (float[4] z) { z = Add(x, w) }")
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[4])
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    got = written(model).graph.initializer[0]
    assert got == tensor


def test_what_memplan_does_not_know_is_carried_over() -> None:
    model = parse(NESTED)
    model.producer_name, model.model_version = "somebody", 7
    model.graph.doc_string = "words"
    model.graph.quantization_annotation.add().tensor_name = "w0"
    got = written(model)
    assert (got.producer_name, got.model_version) == ("somebody", 7)
    assert got.graph.doc_string == "words"
    assert got.graph.quantization_annotation == model.graph.quantization_annotation


@pytest.mark.parametrize("text", [NESTED, LOOP, FREE])
def test_the_bytes_are_those_that_protobuf_writes(text: str) -> None:
    """Fields in the order of their numbers, those behind the values and the graph too."""
    model = parse(text)
    model.producer_name, model.doc_string = "somebody", "a model"
    model.graph.doc_string = "a graph"
    model.graph.metadata_props.add(key="k", value="v")
    model.graph.quantization_annotation.add(tensor_name="x")
    model.graph.value_info.add(name="w0").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.metadata_props.add(key="org.example.owner", value="somebody")
    done = plan(model, Settings())
    more = {"pkg.memplan.more": "yes"}
    data = b"".join(written_model(model, done.program, done.plan, more))
    got = onnx.load_from_string(data)
    assert got.SerializeToString(deterministic=True) == data
    assert {"org.example.owner", "pkg.memplan.more", "pkg.memplan.plan"} == set(notes(got))
    assert notes(got.graph) == {"k": "v"}
    assert (got.doc_string, got.graph.doc_string) == ("a model", "a graph")
    assert got.graph.quantization_annotation == model.graph.quantization_annotation
    assert got.opset_import == model.opset_import


def test_the_data_of_weights_is_in_the_file_once() -> None:
    model = parse(NESTED)
    raw = np.random.default_rng(0).bytes(8 * 8 * 4)
    model.graph.initializer.add(name="w", data_type=1, dims=[8, 8], raw_data=raw)
    done = plan(model, Settings())
    assert b"".join(written_model(model, done.program, done.plan)).count(raw) == 1


def test_nodes_say_in_words_what_their_outputs_take() -> None:
    model = parse(NESTED)
    done = plan(model, Settings())
    got = onnx.load_from_string(b"".join(written_model(model, done.program, done.plan)))
    said = [notes(n).get("pkg.memplan.memory") for g in graphs(got.graph) for n in g.node]
    words = [part for one in said if one for part in one.split("; ")]
    assert sorted(part.split(":")[0] for part in words) == sorted(
        tensor.name for tensor in done.plan.tensors
    )
    by_name = {tensor.name: tensor for tensor in done.plan.tensors}
    for part in words:
        tensor = by_name[part.split(":")[0]]
        assert f" {tensor.bytes} bytes at {tensor.offset}" in part
        assert (tensor.alias_of is None) == (", the memory of " not in part)


def test_words_of_sizes_that_are_not_known_have_their_symbols() -> None:
    row = Placement("a", "", "float32", ("n", 4), 16, 1, 32, None, 2, 5)
    units = {0: "1", 1: "n"}
    assert in_words(row, units) == "a: 16*n bytes at 32*n of arena 1, steps 2 to 4"
    assert in_words(row, {1: "1"}) == "a: 16 bytes at 32, steps 2 to 4"


@pytest.mark.parametrize("text", [NESTED, LOOP, FREE])
def test_notes_that_the_plan_alone_has_leave_the_model_as_it_was(text: str) -> None:
    model = parse(text)
    got = written(model, notes="plan", order="keep")
    assert notes(got)[NOTES] == IN_PLAN
    assert read_notes(got)["level"] == "2"
    del got.metadata_props[:]
    assert got == model


def test_notes_are_in_the_model_unless_the_plan_alone_is_to_have_them() -> None:
    as_ever, asked = written(parse(FREE)), written(parse(FREE), notes="model")
    assert NOTES not in notes(as_ever)
    assert "pkg.memplan.step" in notes(as_ever.graph.node[0])
    assert as_ever.graph == asked.graph


def test_notes_of_an_earlier_plan_go_where_the_next_has_none() -> None:
    first = written(parse(NESTED))
    again = written(first, notes="plan")
    for graph in graphs(again.graph):
        for each in (*graph.node, *graph.value_info, *graph.input, *graph.output):
            assert not notes(each)
    back = written(again)
    assert NOTES not in notes(back)
    assert "pkg.memplan.step" in notes(back.graph.node[0])


def test_a_graph_that_no_viewer_draws_has_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan_cli.onnx_io.writing.annotate._MAX_DRAWN_NODES", 1)
    assert all("pkg.memplan.memory" not in notes(n) for n in written(parse(FREE)).graph.node)
    count = len(parse(FREE).graph.node)
    monkeypatch.setattr("memplan_cli.onnx_io.writing.annotate._MAX_DRAWN_NODES", count)
    assert any("pkg.memplan.memory" in notes(n) for n in written(parse(FREE)).graph.node)


def test_changed_attribute_of_an_op_with_its_old_names_is_written() -> None:
    model = parse("g (float[4,6] x) => (float[4,6] y) { y = Softmax<axis = 0>(x) }")
    program = read_program(model).program
    (op,) = program.body.ops
    changed = replace(program.body, ops=(op._replace(attributes={"axis": 1}),))
    written, _ = chunked_model(model, replace(program, body=changed), {})
    assert [a.i for a in written.graph.node[0].attribute] == [1]


def test_a_copy_of_an_op_is_a_node_of_its_own_whose_values_have_their_names() -> None:
    model = parse("g (float[4] x) => (float[4] z) { a = Exp(x) b = Neg(a) z = Add(a, b) }")
    program = read_program(model).program
    exp, neg, add = program.body.ops
    again = VarId("again")
    copy = program.vars[exp.outputs[0]]._replace(id=again, name="again")
    ops = (
        exp,
        neg,
        exp._replace(outputs=(again,)),
        add._replace(inputs=(again, add.inputs[1])),
    )
    body = replace(program.body, ops=ops)
    got = rewrite(model, replace(program, body=body, vars={**program.vars, again: copy}))
    assert [(n.op_type, *n.input, *n.output) for n in got.graph.node] == [
        ("Exp", "x", "a"),
        ("Neg", "a", "b"),
        ("Exp", "x", "again"),
        ("Add", "again", "b", "z"),
    ]


def test_an_empty_value_of_a_branch_has_notes_like_any() -> None:
    text = """g (bool c, float[0,4] x) => (float[0,4] z) {
        z = If (c) <then_branch = t () => (float[0,4] a) { e = Neg(x) f = Abs(e) a = Exp(f) },
                    else_branch = f () => (float[0,4] b) { b = Neg(x) }> }"""
    (node,) = written(parse(text)).graph.node
    branch = next(a.g for a in node.attribute if a.name == "then_branch")
    noted = {v.name for v in (*branch.value_info, *branch.output) if notes(v)}
    assert noted == {"e", "f", "a"}
