"""Values of a graph get other names where they are read."""

from __future__ import annotations

from builders import parse
from memplan_cli.onnx_io.graph_editor import rename_reads
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
