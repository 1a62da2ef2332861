"""A model whose declarations are wrong is read as if they were not there, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import parse
from memplan_cli.core.program import VarId
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.contradictions import Contradiction
from memplan_cli.onnx_io.shapes.reading import read_checked

if TYPE_CHECKING:
    from memplan_cli.core.program import Program, Shape
    from memplan_cli.onnx_io.shapes.reading import Loaded

HEAD = '<ir_version: 10, opset_import: ["" : 21, "nobody" : 1]>'


def read(text: str, **bindings: object) -> Loaded:
    return read_checked(parse(text, HEAD), Bindings(**bindings))  # type: ignore[arg-type]


def shapes(loaded: Loaded) -> dict[str, Shape | None]:
    return {var: facts.shape for var, facts in loaded.program.vars.items()}


CHAIN = "g (float[{x}] x) => (float[{y}] y) <float[{a}] a, float[{b}] b>"
CHAIN += " {{ a = Relu(x) b = Neg(a) y = Exp(b) }}"


def test_sound_declarations_are_read_without_a_word() -> None:
    loaded = read(CHAIN.format(x="4,6", a="4,6", b="4,6", y="4,6"))
    assert not loaded.warnings
    assert set(shapes(loaded).values()) == {(4, 6)}


@pytest.mark.parametrize("wrong", ["4,2", "24", "9,9"])
def test_one_wrong_declaration_is_mended_and_named(wrong: str) -> None:
    loaded = read(CHAIN.format(x="4,6", a=wrong, b="4,6", y="4,6"))
    assert set(shapes(loaded).values()) == {(4, 6)}
    (said,) = loaded.warnings
    assert f"'a' is declared float32[{wrong}], its node makes float32[4,6]" in said


def test_declarations_of_another_batch_are_all_mended() -> None:
    loaded = read(CHAIN.format(x="8,6", a="1,6", b="1,6", y="1,6"))
    assert set(shapes(loaded).values()) == {(8, 6)}
    assert len(loaded.warnings) == 1


def test_a_number_that_stands_for_a_free_size_is_mended() -> None:
    loaded = read(CHAIN.format(x="n,6", a="1,6", b="1,6", y="n,6"))
    assert set(shapes(loaded).values()) == {("n", 6)}


def test_a_declared_name_is_nothing_against_what_the_node_makes() -> None:
    text = CHAIN.format(x="n,6", a="n,6", b="m,6", y="n,6")
    text = text.replace("x)", "x, float[m,6] w)", 1)
    for dims in ({}, {"n": 8}):
        loaded = read(text, dims=dims)
        found = shapes(loaded)
        assert {found[VarId(name)] for name in "xaby"} == {(dims.get("n", "n"), 6)}
        assert not loaded.warnings


def test_what_only_the_file_knows_is_still_believed() -> None:
    loaded = read("""g (float[8,6] x) => (float[5] y) <float[4] a, float[5] b, float[7] c>
        { a = nobody.Foo(x) b = Neg(a) c = nobody.Foo(b) y = nobody.Foo(c) }""")
    assert [shapes(loaded)[VarId(name)] for name in "abcy"] == [(4,), (4,), (7,), (5,)]


def test_a_declaration_that_is_half_right_is_no_word_about_the_other_half() -> None:
    loaded = read("""g (float[8,6] x, bool[6] c) => (float[8,k] y)
        <float[1,6] a, float[1,3] b> {
        a = Relu(x) b = Compress<axis = 1>(a, c) y = Neg(b) }""")
    assert shapes(loaded)[VarId("b")] == (8, None)


def test_a_wrong_declaration_that_another_one_hides_is_found_too() -> None:
    """As PyTorch's current exporter writes a decoder: ``s`` is 1 in what it declares."""
    loaded = read("""g (float[n,s] x, int64[2] k) => (float[n,1] y)
        <float[n,1] a, float[1,n] b, float[n,1] c> {
        a = Neg(x) b = Transpose(a) c = Transpose(b) y = nobody.Foo(c) }""")
    assert [shapes(loaded)[VarId(name)] for name in "abcy"] == [
        *(("n", "s"), ("s", "n"), ("n", "s")),
        ("n", 1),
    ]
    (said,) = loaded.warnings
    assert "'a' is declared float32[n,1], its node makes float32[n,s]" in said


def test_a_shape_that_is_given_wrongly_is_refused() -> None:
    text = "g (float[4,6] x) => (y) { a = Relu(x) y = nobody.Foo(a) }"
    with pytest.raises(SettingsError, match="shape given for 'a' cannot be right"):
        read(text, shapes={"a": (3, 3)})


def test_a_shape_given_for_an_output_without_a_type_counts() -> None:
    text = "g (float[4,6] x) => (y) { y = nobody.Foo(x) }"
    assert shapes(read(text, shapes={"y": (3, 3)}))[VarId("y")] == (3, 3)
    with pytest.raises(SettingsError, match="shape given for 'y' cannot be right"):
        read(text.replace("nobody.Foo", "Relu"), shapes={"y": (3, 3)})


def test_a_given_shape_is_refused_beside_a_wrong_declaration_too() -> None:
    with pytest.raises(SettingsError, match="shape given for 'b' cannot be right"):
        read("""g (float[8,6] x, int64[2] k) => (y) <float[4,4] b>
            { b = Reshape(x, k) y = nobody.Foo(b) }""", shapes={"b": (2, 2)})  # fmt: skip


def test_what_not_even_inference_agrees_on_is_unknown_and_the_rest_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes of a value may never be less than its node makes."""
    text = """g (float[4,6] x, bool c) => (float[4,6] y, float[4,6] w) {
        a = Neg(x) b = Exp(a) w = Abs(x)
        y = If (c) <then_branch = t () => (float[4,6] u) { u = Exp(b) },
                    else_branch = e () => (float[4,6] v) { v = Neg(x) }> }"""
    sound = read(text).program

    def always(_model: object, program: Program) -> tuple[Contradiction, ...]:
        return (Contradiction(program.vars[VarId("a")], "float32[9]"),)

    monkeypatch.setattr("memplan_cli.onnx_io.shapes.contradictions.contradictions", always)
    loaded = read(text)
    unknown = {var for var, shape in shapes(loaded).items() if shape is None}
    inside = {v for v in sound.vars if v.endswith(("/u", "/v"))}
    assert unknown == {"a", "b", "y", *inside}
    assert shapes(loaded)[VarId("w")] == (4, 6)
    assert "unknown: 'a' is declared float32[4,6]" in loaded.warnings[-1]


def test_bodies_are_mended_too() -> None:
    loaded = read("""g (bool c, float[4,6] x) => (float[4,6] y) <float[9] z> {
        z = If (c) <then_branch = t () => (float[4,6] u) <float[2] v> { v = Exp(x) u = Neg(v) },
                    else_branch = e () => (float[4,6] w) { w = Neg(x) }>
        y = Neg(z) }""")
    assert set(shapes(loaded).values()) == {(), (4, 6)}


@given(st.data())
def test_lies_change_nothing_but_the_warnings(data: st.DataObject) -> None:
    lines, names = [], ["x"]
    for at in range(data.draw(st.integers(2, 10))):
        one, two = (data.draw(st.sampled_from(names)) for _ in range(2))
        kind = data.draw(st.sampled_from([f"Neg({one})", f"Add({one}, {two})"]))
        lines.append(f"v{at} = {kind}")
        names.append(f"v{at}")
    model = parse(f"g (float[5,3] x) => ({names[-1]}) {{ {' '.join(lines)} }}", HEAD)
    model = onnx.shape_inference.infer_shapes(model)
    honest = read_checked(model, Bindings())
    values = [*model.graph.value_info, *model.graph.output]
    for name in data.draw(st.lists(st.sampled_from(names[1:]), min_size=1, max_size=4)):
        for value in (value for value in values if value.name == name):
            value.type.tensor_type.shape.dim[0].dim_value += 1
    lied = read_checked(model, Bindings())
    assert lied.program == honest.program
    assert len(lied.warnings) == 1
    assert not honest.warnings


@given(st.data())
def test_invented_names_change_nothing_at_all(data: st.DataObject) -> None:
    lines, names = [], ["x"]
    for at in range(data.draw(st.integers(2, 10))):
        one, two = (data.draw(st.sampled_from(names)) for _ in range(2))
        lines.append(
            data.draw(st.sampled_from([f"v{at} = Neg({one})", f"v{at} = Add({one}, {two})"]))
        )
        names.append(f"v{at}")
    model = parse(
        f"g (float[n,m] x, float[k] w) => ({names[-1]}) {{ {' '.join(lines)} }}", HEAD
    )
    model = onnx.shape_inference.infer_shapes(model)
    honest = read_checked(model, Bindings())
    words = st.sampled_from(["n", "m", "k", "?", "-1", "unk__3", "s6", "n + m", "p2o.Dim.1"])
    for value in (*model.graph.value_info, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = data.draw(words)
    renamed = read_checked(model, Bindings())
    assert renamed.program == honest.program
    assert not renamed.warnings
