"""The bodies of functions, and the dtypes of the values in them."""

from __future__ import annotations

import onnx.parser

from memplan_cli.onnx_io.functions import definitions_of


def test_omitted_input_of_a_call_does_not_move_the_dtypes_of_later_ones() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18, "l" : 1]>
        g (float[2] x, int64[3] z) => (int64[3] y) { y = l.outer(x, z) }
        <domain: "l", opset_import: ["" : 18, "l" : 1]>
        outer (a, b) => (c) { c = l.last(a, , b) }
        <domain: "l", opset_import: ["" : 18]>
        last (p, q, r) => (s) { s = Neg(r) }""")
    body = definitions_of(model).of_call(model.graph.node[0], ["float32", "int64"])
    assert body is not None
    assert body.dtypes["c"] == "int64"
