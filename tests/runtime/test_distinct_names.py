"""Names that a graph in a graph defines again are replaced by names of its own."""

from __future__ import annotations

import onnx
import onnx.parser

from memplan_cli.runtime.graph.dumps import with_distinct_names

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def nested(then: str, after: str) -> onnx.ModelProto:
    return model(f"""g (float[4] x, bool go) => (float[4] y)
        {{ q = Exp(x)
           b = If (go) < then_branch = t () => (float[4] p) {{ {then} }},
                         else_branch = e () => (float[4] s) {{ s = Neg(q) }}>
           {after} }}""")


def test_distinct_names_are_left_alone() -> None:
    model = nested("r = Neg(x)  p = Exp(r)", "y = Add(b, q)")
    assert with_distinct_names(model) is model


def test_two_branches_may_use_one_name() -> None:
    model = nested("s = Neg(q)  p = Exp(s)", "y = Add(b, q)")
    assert with_distinct_names(model) is model


def test_what_is_defined_outside_too_is_renamed_where_it_is_read() -> None:
    found = with_distinct_names(
        nested("q = Neg(x)  p = Exp(q)  q_1 = Exp(p)", "y = Add(b, q)")
    )
    wanted = nested("q_2 = Neg(x)  p = Exp(q_2)  q_1 = Exp(p)", "y = Add(b, q)")
    assert found == wanted


def test_a_result_of_the_inner_graph_keeps_its_place() -> None:
    found = with_distinct_names(nested("r = Neg(x)  p = Exp(r)", "p = Neg(b)  y = Add(p, q)"))
    (then,) = (a.g for a in found.graph.node[1].attribute if a.name == "then_branch")
    assert [value.name for value in then.output] == ["p_1"] == list(then.node[1].output)


def test_deeper_graphs_read_the_new_name_or_have_one_of_their_own() -> None:
    deep = """q = Neg(x)
        v = If (go) < then_branch = tt () => (float[4] w) { w = Exp(q) },
                      else_branch = ee () => (float[4] m) { r = Exp(x)  q = Neg(r)  m = Exp(q) }>
        p = Add(v, q)"""
    found = with_distinct_names(nested(deep, "y = Add(b, q)"))
    (then,) = (a.g for a in found.graph.node[1].attribute if a.name == "then_branch")
    assert list(then.node[0].output) == ["q_1"]
    assert list(then.node[2].input) == ["v", "q_1"]
    inner = {a.name: a.g for a in then.node[1].attribute}
    assert list(inner["then_branch"].node[0].input) == ["q_1"]
    assert list(inner["else_branch"].node[1].output) == ["q_1_1"]
    assert list(inner["else_branch"].node[2].input) == ["q_1_1"]
