"""Shapes that depend on which branch an If takes, and shapes inside subgraphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from memplan_cli.core.program import Program, intermediates
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.numbered_nodes import number_nodes
from memplan_cli.onnx_io.shapes.reading import read_checked

CONSTANTS = "int64 zero = {0}, int64 one = {1}, int64 two = {2}, bool yes = {1}"


def program(body: str, **values: Any) -> Program:  # noqa: ANN401 - numbers and lists
    text = (
        f'<ir_version: 9, opset_import: ["": 18]> g (float[batch,w] x, int64 k, bool c) => (y) '
        f"<{CONSTANTS}> {{ {body} y = Identity (r) }}"
    )
    given = {
        name: numpy_helper.from_array(np.array(value, "bool" if name == "c" else "int64"))
        for name, value in values.items()
        if name in "kc"
    }
    dims = {name: value for name, value in values.items() if name not in "kc"}
    model = onnx.parser.parse_model(text)
    return read_checked(model, Bindings(dims, values=given)).program


def shape_of(body: str, **values: Any) -> Any:  # noqa: ANN401 - dims, or None
    variables = program(body, **values).vars.values()
    return next(var.shape for var in variables if var.name == "r")


SIZES = "s = Shape (x) n = Gather (s, one)"
BRANCHES = """
    m = If (c) <
        then_branch = t () => (a) { a = Add (n, one) },
        else_branch = e () => (b) { b = Mul (n, two) }>
    r = Range (zero, m, one)"""


def test_a_branch_that_is_taken_says_a_length() -> None:
    assert shape_of(f"{SIZES} {BRANCHES}", c=True) == ("w + 1",)
    assert shape_of(f"{SIZES} {BRANCHES}", c=False) == ("2*w",)
    assert shape_of(f"{SIZES} {BRANCHES}", c=False, w=7) == (14,)


def test_a_branch_that_may_be_taken_says_nothing() -> None:
    assert shape_of(f"{SIZES} {BRANCHES}") == (None,)


def test_a_condition_on_a_shape_is_known_with_the_shape() -> None:
    body = f"{SIZES} d = Equal (n, two) {BRANCHES.replace('If (c)', 'If (d)')}"
    assert shape_of(body, w=2) == (3,)
    assert shape_of(body, w=5) == (10,)


@pytest.mark.parametrize(("given", "live"), [({"c": True}, 28), ({"c": False}, 56)])
def test_a_branch_that_is_not_taken_needs_no_memory(given: dict[str, Any], live: int) -> None:
    body = """r = If (c) <
        then_branch = t () => (a) { p = Neg (x) a = Abs (p) },
        else_branch = e () => (b) { q = Concat <axis = 0> (x, x) b = Abs (q) }>"""
    got = program(body, batch=1, w=7, **given)
    inside = [v for v in intermediates(got) if got.vars[v].block]
    sizes = [size_of(got.vars[v].shape, got.vars[v].dtype) for v in inside]
    assert sorted(size.coefficient for size in sizes if size) == [0, 0, live, live]


def test_a_branch_that_is_taken_needs_memory_beside_a_node_of_the_same_name() -> None:
    branches = """<then_branch = t () => (float[4] r) { h = Exp(x) r = Neg(h) },
                   else_branch = e () => (float[4] s) { s = Neg(x) }>"""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (bool yes, bool no, float[4] x) => (float[4] p, float[4] q) {{
        p = If (yes) {branches} q = If (no) {branches} }}"""
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = "pick"
    values = {name: numpy_helper.from_array(np.array(name == "yes")) for name in ("yes", "no")}
    variables = read_checked(model, Bindings(values=values)).program.vars.values()
    assert [v.shape for v in variables if v.name == "h"] == [(4,), (0,)]


def test_the_body_of_a_loop_without_iterations_needs_no_memory() -> None:
    body = """r, rows = Loop (zero, c, x) <
        body = b (int64 i, bool on, h) => (on2, h2, row) {
            on2 = Identity (on) inside = Neg (h) h2 = Exp (inside) row = Abs (h2) }>"""
    variables = program(body).vars.values()
    assert [var.shape for var in variables if var.name == "inside"] == [(0,)]


def test_a_node_that_cannot_be_in_a_branch_that_is_not_taken_is_no_contradiction() -> None:
    body = """r = If (c) <
        then_branch = t () => (a) { a = Neg (x) },
        else_branch = e () => (float[3,2] b) { b = Concat <axis = 0> (x, x) }>"""
    text = (
        f'<ir_version: 9, opset_import: ["": 18]> g (float[4,5] x, bool c) => (r) {{ {body} }}'
    )
    value = numpy_helper.from_array(np.array(1, "bool"))
    loaded = read_checked(onnx.parser.parse_model(text), Bindings(values={"c": value}))
    said, _ = loaded.warnings
    assert loaded.observed
    assert said.startswith("one subgraph is never run with the values given, and takes no")
    assert shape_in(loaded.program) == (4, 5)


def shape_in(got: Program) -> Any:  # noqa: ANN401 - dims, or None
    return got.vars[got.body.outputs[0]].shape


def test_a_count_of_the_outside_says_a_length_inside() -> None:
    body = """n = Size (x)
    r = Loop (k, c, x) <body = b (int64 i, bool on, float[?, ?] h) => (on2, h2) {
        on2 = Identity (on)
        h2 = If (on) <
            then_branch = t () => (p) { inside = Range (zero, n, one)  p = Identity (h) },
            else_branch = e () => (q) { q = Neg (h) }>
    }>"""
    variables = program(body, batch=2, w=3).vars.values()
    assert [var.shape for var in variables if var.name == "inside"] == [(6,)]


def test_what_a_file_declares_of_a_carried_value_stays_where_no_dim_is_known() -> None:
    """The value may have four elements after a turn; how many it begins with nobody says."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[n] x, int64 k, bool c) => (int64[u] r) <int64 zero = {0}, int64[1] four = {4}> {
            z = NonZero (x)
            s = Gather (z, zero)
            r = Loop (k, c, s) <body = b (int64 i, bool on, int64[?] h) => (on2, int64[4] h2) {
                on2 = Identity (on)
                q = Shape (h)
                h2 = Expand (q, four)
            }>
        }""")
    variables = read_checked(model, Bindings()).program.vars.values()
    assert [var.shape for var in variables if var.name == "r"] == [("u",)]


def test_the_nodes_of_a_numbered_copy_name_values_with_the_path_of_their_block() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[n] x, bool c) => (r) {
            h = Exp (x)
            [pick] r = If (c) <
                then_branch = t () => (p) { p = Neg (h) },
                else_branch = e () => (q) { q = Abs (h) }>
        }""")
    numbered = number_nodes(model)
    assert numbered.writes == {
        "node0": ("h",),
        "node1": ("r",),
        "node2": ("pick.then_branch/p",),
        "node3": ("pick.else_branch/q",),
    }
    assert numbered.reads["node0"] == ("x",)
    assert numbered.reads["node2"] == ("pick.then_branch/h",)


def test_a_message_on_numbered_nodes_names_the_nodes_of_the_model() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "mine": 1]>
        g (float[2] node9) => (float[2] y) { [first] y = Relu (node9) }""")
    model.graph.node.add(op_type="Sink", domain="mine", input=["y"])
    message = "Name:'node0' and Node (node1) read 'node9'"
    named = number_nodes(model).with_original_names(message)
    assert named == "Name:'first' and Node (computes nothing) read 'node9'"


def test_dims_are_bound_in_the_body_of_an_unknown_operator() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "mine": 1]>
        g (float[n,4] x) => (float[n,4] y) {
            y = mine.Search (x) <body = b (float[n,4] a) => (float[n,4] o) { o = Relu (a) }>
        }""")
    variables = read_checked(model, Bindings({"n": 3})).program.vars.values()
    assert {var.shape for var in variables} == {(3, 4)}


def test_two_branches_that_are_not_taken_are_counted_in_one_warning() -> None:
    branches = """If (c) <then_branch = t () => (a{0}) {{ a{0} = Neg (x) }},
                           else_branch = e () => (b{0}) {{ b{0} = Abs (x) }}>"""
    text = f"""<ir_version: 9, opset_import: ["": 18]> g (float[4] x, bool c) => (r, s)
        {{ r = {branches.format(0)}  s = {branches.format(1)} }}"""
    value = numpy_helper.from_array(np.array(1, "bool"))
    model = onnx.parser.parse_model(text)
    said, _ = read_checked(model, Bindings(values={"c": value})).warnings
    assert said.startswith(
        "2 subgraphs are never run with the values given, and take no memory"
    )
