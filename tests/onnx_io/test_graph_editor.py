"""Values of a graph get other names."""

from __future__ import annotations

from builders import parse
from memplan_cli.onnx_io.graph_editor import rename_reads, rename_values
from memplan_cli.onnx_io.traversal import subgraphs


def test_a_subgraph_that_defines_a_name_itself_keeps_reading_its_own_value() -> None:
    model = parse("""g (bool c, float[4] x, float[4] h) => (float[4] y) {
        y = If (c) <then_branch = t () => (float[4] r) { r = Neg(h) },
                    else_branch = e () => (float[4] s) { h = Exp(x)
                                                         s = Neg(h) }> }""")
    rename_reads(model.graph.node, {"h": "k", "x": "z"})
    reads = [
        list(node.input) for _, body in subgraphs(model.graph.node[0]) for node in body.node
    ]
    assert reads == [["k"], ["z"], ["h"]]


def test_a_weight_of_a_subgraph_is_not_the_renamed_value_of_that_name() -> None:
    model = parse("""g (bool c, float[4] x) => (float[4] y) {
        h = Exp(x)
        y = If (c) <then_branch = t () => (float[4] r) <float[4] h = {1, 2, 3, 4}> { r = Neg(h) },
                    else_branch = e () => (float[4] s) { s = Neg(h) }> }""")
    rename_values(model.graph.node, {"h": "k", "y": "z"})
    exp, choice = model.graph.node
    assert [*exp.output, *choice.output] == ["k", "z"]
    assert [list(body.node[0].input) for _, body in subgraphs(choice)] == [["h"], ["k"]]
