"""The types that a dump of the runtime's graph declares: those that it alone knows."""

from __future__ import annotations

from onnx import parser

from memplan_cli.runtime.graph.offline import drop_inferable_types

DUMPED = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (bool c, float[4,4] x) => (float[4,4] z)
<float[4,4] a, float[4,4] b, float[4,4] gone, float[4,4] y> {
    a = com.microsoft.FusedMatMul(x, x)
    b = Relu(a)
    y = If (c) <
        then_branch = t () => (float[4,4] one)
            <float[4,4] d, float[4,4] e> {
            d = com.microsoft.Gelu(b) e = Relu(d) one = Neg(e) },
        else_branch = e () => (float[4,4] two) { two = Neg(b) }>
    z = Neg(y)
}"""


def test_types_of_the_runtimes_own_operators_alone_stay() -> None:
    model = parser.parse_model(DUMPED)
    branch = model.graph.node[2].attribute[0].g
    assert len(model.graph.value_info) == 4
    assert len(branch.value_info) == 2
    drop_inferable_types(model)
    assert [value.name for value in model.graph.value_info] == ["a"]
    assert [value.name for value in branch.value_info] == ["d"]
    assert branch.output[0].type.tensor_type.elem_type == 1
