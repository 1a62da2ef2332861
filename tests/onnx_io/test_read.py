"""ONNX graphs become programs, whatever they nest, omit, shadow or leave out of order."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from builders import parse, read
from memplan_cli.core.program import Origin, Program, VarId, blocks, captures, walk
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.shapes.reading import read_program

NESTED = """g (bool c, float[4] x, int64 n) => (float[4] z) {
    w = Exp(x)
    [turns] y = Loop (n, c, x) <body = b (int64 i, bool go, float[4] s) => (bool go2, float[4] s2) {
        go2 = Identity(go)
        [pick] t = If (go2) <
            then_branch = p () => (float[4] one) { one = Add(w, s) },
            else_branch = q () => (float[4] two) {
                [deep] u = If (go) <
                    then_branch = r () => (float[4] three) { three = Mul(s, x) },
                    else_branch = v () => (float[4] four) { four = Neg(w) }>
                two = Abs(u) }>
        s2 = Add(s, t) }>
    z = Add(y, w) }"""


def origins(made: Program) -> dict[str, str]:
    return {str(var): facts.origin.value for var, facts in made.vars.items()}


def test_blocks_nest_to_any_depth_and_their_paths_say_where() -> None:
    made = read(NESTED)
    assert {block.path for block in blocks(made.body)} == {
        "",
        "turns.body",
        "turns.body/pick.then_branch",
        "turns.body/pick.else_branch",
        "turns.body/pick.else_branch/deep.then_branch",
        "turns.body/pick.else_branch/deep.else_branch",
    }


def test_ids_in_bodies_say_their_block() -> None:
    var = read(NESTED).vars[VarId("turns.body/pick.else_branch/deep.then_branch/three")]
    assert (var.name, var.block) == ("three", "turns.body/pick.else_branch/deep.then_branch")
    assert (var.dtype, var.shape, var.origin) == ("float32", (4,), Origin.OP)


def test_captures_are_found_through_every_depth() -> None:
    made = read(NESTED)
    loop = next(op for _, op in walk(made.body) if op.name == "turns")
    assert set(captures(loop.bodies[0])) == {"w", "x"}
    assert loop.repeats


def test_what_a_body_is_given_is_no_input_of_the_graph() -> None:
    found = origins(read(NESTED))
    assert found["turns.body/s"] == "body input"
    assert found["x"] == "input"


def test_scan_and_sequence_map_have_bodies_that_repeat() -> None:
    made = read("""g (float[3,4] x, float[4] s) => (float[4] e, float[3,4] z) {
        e, y = Scan<num_scan_inputs = 1, body = b (float[4] h, float[4] r) => (float[4] h2, float[4] o)
            { h2 = Add(h, r) o = Neg(h2) }> (s, x)
        q = SequenceConstruct(y)
        m = SequenceMap<body = k (float[3,4] a) => (float[3,4] f) { f = Exp(a) }> (q)
        i = Constant<value_int = 0>()
        z = SequenceAt(m, i) }""")
    kinds = {op.type: op.repeats for _, op in walk(made.body) if op.bodies}
    assert kinds == {"Scan": True, "SequenceMap": True}
    assert made.vars[VarId("m")].dtype == "sequence(float32)"


def test_sibling_bodies_may_use_one_name_for_two_values() -> None:
    made = read("""g (bool c, float[4] x) => (float[4] z) {
        y = If (c) <then_branch = p () => (float[4] r) { t = Exp(x) r = Neg(t) },
                    else_branch = q () => (float[4] r) { t = Abs(x) r = Exp(t) }>
        z = Neg(y) }""")
    assert sorted(v.id for v in made.vars.values() if v.name == "t") == [
        "If#0.else_branch/t",
        "If#0.then_branch/t",
    ]


def test_a_bodys_own_name_that_the_graph_uses_later_is_no_cycle() -> None:
    made = read("""g (bool c, float[4] x) => (float[4] z) {
        y = If (c) <then_branch = p () => (float[4] r) { t = Exp(x) r = Neg(t) },
                    else_branch = q () => (float[4] r) { r = Exp(x) }>
        t = Neg(y)
        z = Abs(t) }""")
    assert [op.type for op in made.body.ops] == ["If", "Neg", "Abs"]


def test_two_bodies_of_equal_labels_have_two_paths() -> None:
    made = read("""g (bool c, float[4] x) => (float[4] z) {
        [same] y = If (c) <then_branch = p () => (float[4] r) { r = Exp(x) },
                           else_branch = q () => (float[4] r) { r = Neg(x) }>
        [same] z = If (c) <then_branch = p () => (float[4] r) { r = Exp(y) },
                           else_branch = q () => (float[4] r) { r = Neg(y) }> }""")
    paths = [block.path for block in blocks(made.body)]
    assert len(set(paths)) == len(paths) == 5
    assert len({var.id for var in made.vars.values()}) == 8


def test_omitted_inputs_and_outputs_keep_their_positions() -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = Clip(x) m = Dropout(y) }")
    model.graph.node[0].input.extend(["", "x"])
    model.graph.node[1].output[0] = ""
    model.graph.node[1].output.append("mask")
    made = read_program(model).program
    assert made.body.ops[0].inputs == ("x", "", "x")
    assert made.body.ops[1].outputs == ("", "mask")


def test_outputs_that_nobody_reads_are_intermediates() -> None:
    made = read("g (float[4] x) => (float[2] y) { y, rest = Split<num_outputs=2>(x) }")
    assert origins(made)["rest"] == "op"
    assert made.vars[VarId("rest")].shape == (2,)


def test_constants_and_initializers_are_weights() -> None:
    made = read("""g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> {
        k = Constant<value_floats=[1.0, 2.0, 3.0, 4.0]>() s = Constant<value_int=3>()
        a = Add(x, w) y = Add(a, k) }""")
    assert origins(made) == {
        "w": "weight", "x": "input", "k": "weight", "s": "weight", "a": "op", "y": "op",
    }  # fmt: skip
    assert made.vars[VarId("k")].shape == (4,)
    assert made.vars[VarId("s")].shape == ()


def test_a_constant_of_another_domain_is_an_op_like_any_other() -> None:
    made = read("g (float[4] x) => (float[4] y) { k = local.Constant(x) y = Add(x, k) }")
    assert origins(made)["k"] == "op"


def sparse(name: str) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([3.0], np.float32), name)
    indices = numpy_helper.from_array(np.array([2], np.int64), f"{name}_at")
    return helper.make_sparse_tensor(values, indices, [4])


def test_sparse_initializers_are_weights_of_their_dense_shape() -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = Add(x, x) }")
    model.graph.sparse_initializer.append(sparse("w"))
    model.graph.node[0].input[1] = "w"
    made = read_program(model).program
    assert (made.vars[VarId("w")].origin, made.vars[VarId("w")].shape) == (Origin.WEIGHT, (4,))


def test_initializers_of_bodies_are_weights_sparse_ones_too() -> None:
    model = parse("""g (bool c, float[4] x) => (float[4] z) {
        z = If (c) <then_branch = p () => (float[4] r) { r = Add(x, x) },
                    else_branch = q () => (float[4] s) { s = Exp(x) }> }""")
    body = next(a.g for a in model.graph.node[0].attribute if a.name == "then_branch")
    body.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "dense"))
    body.sparse_initializer.append(sparse("thin"))
    body.node[0].input[:] = ["dense", "thin"]
    found = origins(read_program(model).program)
    assert found["If#0.then_branch/dense"] == found["If#0.then_branch/thin"] == "weight"


def test_below_ir_4_an_initializer_is_an_input_of_the_file_and_a_weight() -> None:
    head = '<ir_version: 3, opset_import: ["" : 8]>'
    model = parse("g (float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }", head)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    made = read_program(model).program
    assert made.body.inputs == ("x",)
    assert origins(made)["w"] == "weight"
    assert made.vars[VarId("y")].shape == (4,)


def test_a_value_that_is_an_output_and_read_again_is_an_output() -> None:
    made = read("g (float[4] x) => (float[4] a, float[4] b) { a = Exp(x) b = Neg(a) }")
    assert made.body.outputs == ("a", "b")


def test_nodes_out_of_order_are_put_in_the_nearest_order_there_is() -> None:
    model = parse("g (float[4] x) => (float[4] z) { a = Exp(x) b = Neg(a) z = Add(a, b) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[2], nodes[1], nodes[0]])
    made = read_program(model).program
    assert [op.type for op in made.body.ops] == ["Exp", "Neg", "Add"]
    assert [op.source for op in made.body.ops] == [2, 1, 0], "the index in the file"


def test_nodes_before_the_first_one_out_of_order_stay_where_they_are() -> None:
    model = parse("""g (float[4] x) => (float[4] z) {
        a = Exp(x) b = Abs(x) z = Add(c, d) d = Neg(c) c = Relu(b) }""")
    made = read_program(model).program
    assert [op.source for op in made.body.ops] == [0, 1, 4, 3, 2]


def test_nodes_out_of_order_because_of_a_capture_are_sorted_too() -> None:
    model = parse("""g (bool c, float[4] x) => (float[4] z) {
        w = Exp(x)
        z = If (c) <then_branch = p () => (float[4] r) { r = Neg(w) },
                    else_branch = q () => (float[4] s) { s = Abs(x) }> }""")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [op.type for op in read_program(model).program.body.ops] == ["Exp", "If"]


def refusal(text: str) -> str:
    with pytest.raises(ModelError) as caught:
        read(text)
    return str(caught.value)


def test_a_cycle_is_refused_and_a_node_on_it_named() -> None:
    text = "g (float[4] x) => (float[4] z) { [n1] a = Add(x, b) [n2] b = Neg(a) z = Neg(b) }"
    assert "cycle through node 'n" in refusal(text)


def test_a_node_that_only_depends_on_a_cycle_is_not_named() -> None:
    text = (
        "g (float[4] x) => (float[4] z) { [n0] z = Neg(b) [n1] a = Add(x, b) [n2] b = Neg(a) }"
    )
    assert re.search("cycle through node 'n[12]'", refusal(text))


def test_a_node_that_reads_its_own_output_is_a_cycle() -> None:
    assert "cycle" in refusal(
        "g (float[4] x) => (float[4] z) { [me] a = Add(x, a) z = Neg(a) }"
    )


def test_a_cycle_through_a_body_is_refused() -> None:
    assert "cycle" in refusal("""g (bool c, float[4] x) => (float[4] z) {
        [pick] y = If (c) <then_branch = p () => (float[4] r) { r = Neg(b) },
                           else_branch = q () => (float[4] s) { s = Exp(x) }>
        b = Exp(y) z = Neg(b) }""")


def test_a_value_that_nothing_defines_is_refused_by_name() -> None:
    text = refusal("g (float[4] x) => (float[4] z) { [here] z = Add(x, lost) }")
    assert "'here'" in text
    assert "'lost'" in text


def test_an_output_that_nothing_defines_is_refused_by_name() -> None:
    assert "'lost'" in refusal("g (float[4] x) => (float[4] lost) { z = Neg(x) }")
    assert "'lost'" in refusal("""g (bool c, float[4] x) => (float[4] z) {
        z = If (c) <then_branch = p () => (float[4] lost) { r = Neg(x) },
                    else_branch = q () => (float[4] s) { s = Exp(x) }> }""")


def test_what_a_body_makes_is_not_there_outside_of_it() -> None:
    assert "'inner'" in refusal("""g (bool c, float[4] x) => (float[4] z) {
        y = If (c) <then_branch = p () => (float[4] r) { inner = Exp(x) r = Neg(inner) },
                    else_branch = q () => (float[4] s) { s = Exp(x) }>
        z = Add(y, inner) }""")


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4] x) => (float[4] a) { a = Exp(x) a = Neg(x) }",
        "g (float[4] x) => (float[4] x) { x = Exp(x) }",
        "g (float[4] x) => (float[4] a) { a, a = Split(x) }",
        "g (float[4] x) => (float[4] w) <float[4] w = {1,2,3,4}> { w = Exp(x) }",
        "g (float[4] x, float[4] x) => (float[4] z) { z = Exp(x) }",
    ],
    ids=["two nodes", "an input", "one node", "a weight", "two inputs"],
)
def test_a_value_that_is_made_twice_is_refused(text: str) -> None:
    assert "is defined twice" in refusal(text)


def test_an_output_may_be_named_twice() -> None:
    made = read("g (float[4] x) => (float[4] z, float[4] z) { z = Exp(x) }")
    assert made.body.outputs == ("z", "z")


def test_an_output_may_be_an_input_or_a_weight() -> None:
    made = read(
        "g (float[4] x) => (float[4] x, float[4] w) <float[4] w = {1,2,3,4}> { z = Exp(x) }"
    )
    assert made.body.outputs == ("x", "w")


def test_a_graph_without_nodes_is_a_program() -> None:
    assert read("g (float[4] x) => (float[4] x) { }").body.ops == ()


def test_attributes_are_kept_where_they_are_plain() -> None:
    made = read("""g (float[4] x) => (float[4] y) {
        y = local.Op<i = 3, f = 0.5, s = "text", li = [1, 2], lf = [0.5], ls = ["a", "b"]>(x) }""")
    assert made.body.ops[0].attributes == {
        "i": 3, "f": 0.5, "s": "text", "li": (1, 2), "lf": (0.5,), "ls": ("a", "b"),
    }  # fmt: skip


def test_the_domain_of_standard_ops_has_one_spelling() -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = Exp(x) }")
    model.graph.node[0].domain = "ai.onnx"
    assert read_program(model).program.body.ops[0].domain == ""


def test_all_types_have_their_names() -> None:
    for element, name in ((TensorProto.FLOAT, "float32"), (TensorProto.DOUBLE, "float64"),
                          (TensorProto.BFLOAT16, "bfloat16"), (TensorProto.INT4, "int4"),
                          (TensorProto.BOOL, "bool")):  # fmt: skip
        value = helper.make_tensor_value_info("x", element, [3])
        graph = helper.make_graph([], "g", [value], [value])
        var = read_program(helper.make_model(graph)).program.vars[VarId("x")]
        assert var.dtype == name
        assert size_of(var.shape, var.dtype) is not None
