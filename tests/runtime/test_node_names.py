"""Names that a runtime has counted are counted anew, by the places of their nodes."""

from __future__ import annotations

from onnx import ModelProto, parser

from memplan_cli.runtime.graph.offline import renumber_generated_names

_HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
ORIGINAL = f"""{_HEAD} g (float[4] x, bool c) => (float[4] y)
    {{ [relu] a = Relu(x)  [neg_token_7] b = Neg(a)  y = Identity(b) }}"""
DUMP = f"""{_HEAD} g (float[4] x, bool c) => (float[4] y) {{
    [FIRST] a = Relu(x)
    [relu] p_token_9 = Relu(a)
    [neg_token_7] q = Neg(p_token_9)
    [SECOND] r = Relu(q)
    [choose] y = If(c) <
        then_branch = t () => (float[4] u) {{ [THIRD] u = Neg(r) }},
        else_branch = e () => (float[4] v) {{ v = Identity(r) }}
    >
}}"""


def named(*names: str) -> ModelProto:
    text = DUMP
    for place, name in zip(("FIRST", "SECOND", "THIRD"), names, strict=True):
        text = text.replace(place, name)
    return parser.parse_model(text)


def names_of(model: ModelProto) -> list[str]:
    body = model.graph.node[-1].attribute[0].g
    return [node.name for node in (*model.graph.node, *body.node)]


def test_however_a_runtime_counts_the_dumps_are_the_same() -> None:
    original = parser.parse_model(ORIGINAL)
    one = named("reorder_token_31", "reorder", "reorder_token_8")
    other = named("reorder", "reorder_token_2", "reorder_token_1")
    renumber_generated_names(one, original)
    renumber_generated_names(other, original)
    assert one.SerializeToString() == other.SerializeToString()
    assert names_of(one)[0] == "reorder"
    assert len(set(names_of(one))) == len(names_of(one))


def test_names_of_the_model_and_of_tensors_stay() -> None:
    model = named("neg", "neg_token_1", "relu_token_3")
    renumber_generated_names(model, parser.parse_model(ORIGINAL))
    names = names_of(model)
    assert names == ["neg", "relu", "neg_token_7", "neg_token_1", "choose", "relu_token_1"]
    assert model.graph.node[1].output[0] == "p_token_9"


def test_correct_generated_names_are_not_changed() -> None:
    model = named("reorder", "reorder_token_1", "reorder_token_2")
    before = model.SerializeToString()
    renumber_generated_names(model, parser.parse_model(ORIGINAL))
    assert model.SerializeToString() == before
