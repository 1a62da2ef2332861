"""What a file declares is compared with what its nodes make: nothing false, no false alarm."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import parse
from memplan_cli.onnx_io.shapes.contradictions import contradictions
from memplan_cli.onnx_io.shapes.reading import read_program

IF = """g (bool c, float[4,6] x) => (float[4,6] y) <float[{z}] z, float[4,6] y> {{
    z = If (c) <then_branch = t () => (float[4,6] u) <float[{v}] v> {{ v = Exp(x) u = Neg(v) }},
                else_branch = e () => (float[4,6] w) {{ w = Neg(x) }}>
    y = nobody.Foo(z) }}"""

SCAN = """g (float[6] s, float[4,6] x) => (float[6] last, float[4,6] y)
    <float[{last}] last, float[{rows}] y> {{
    last, y = Scan <num_scan_inputs = 1, body = b (float[6] a, float[6] e)
        => (float[6] t, float[6] k) {{ t = Add(a, e) k = Exp(t) }}> (s, x) }}"""

LOOP = """g (int64 n, bool c, float[6] s) => (float[6] last, float[m,6] rows)
    <float[{last}] last, float[{rows}] rows> {{
    last, rows = Loop (n, c, s) <body = b (int64 i, bool go, float[6] a)
        => (bool on, float[6] t, float[6] k) {{ on = Identity(go) t = Exp(a) k = Neg(t) }}> }}"""


def found(text: str) -> list[str]:
    head = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4, "nobody" : 1]>'
    model = parse(text, head)
    return [str(wrong) for wrong in contradictions(model, read_program(model).program)]


def chain(types: str, body: str, inputs: str = "float[4,6] x") -> list[str]:
    return found(f"g ({inputs}) => (y) <{types}> {{ {body} y = nobody.Foo(a) }}")


@pytest.mark.parametrize(
    ("declared", "made"),
    [
        ("float[4,6] a", ""),
        ("float[n,m] a", ""),
        ("float[4,2] a", "float32[4,2], its node makes float32[4,6]"),
        ("float[24] a", "float32[24], its node makes float32[4,6]"),
        ("double[4,6] a", "float64[4,6], its node makes float32[4,6]"),
        ("float[-1,6] a", ""),
    ],
)
def test_another_number_rank_or_dtype_is_a_contradiction(declared: str, made: str) -> None:
    assert chain(declared, "a = Relu(x)") == ([f"'a' is declared {made}"] if made else [])


def test_a_number_for_a_size_that_is_free_is_a_contradiction() -> None:
    assert chain("float[1,6] a", "a = Relu(x)", "float[n,6] x") == [
        "'a' is declared float32[1,6], its node makes float32[n,6]"
    ]
    assert not chain("float[m,6] a", "a = Relu(x)", "float[n,6] x")


def test_all_that_are_alike_are_found_and_no_other() -> None:
    types = "float[4,2] a, float[4,2] b, float[4,6] c"
    said = chain(types, "b = Relu(x) a = Relu(x) c = Relu(x)")
    assert [text.split()[0] for text in said] == ["'b'", "'a'"]


@pytest.mark.parametrize(
    "body",
    [
        "b = Transpose<perm = [0,1]>(x) a = Transpose<perm = [1,0]>(x)",
        (
            "k = Constant<value = int64[2] {4,6}>() l = Constant<value = int64[2] {8,3}>()"
            " b = Reshape(x, k) a = Reshape(x, l)"
        ),
        (
            "k = Constant<value_ints = [0]>() l = Constant<value_ints = [1]>()"
            " b = ReduceSum<keepdims = 0>(w, k) a = ReduceSum<keepdims = 0>(w, l)"
        ),
    ],
    ids=["attributes", "values", "axes"],
)
def test_ops_that_differ_only_in_what_they_are_told_are_not_taken_for_alike(body: str) -> None:
    inputs = "float[4,6] x, float[3,4,6] w"
    assert [text.split()[0] for text in chain("float[4,6] a, float[4,6] b", body, inputs)] == [
        "'a'"
    ]


def test_ops_that_differ_only_in_a_tensor_of_an_attribute_are_not_taken_for_alike() -> None:
    encode = "ai.onnx.ml.LabelEncoder<keys_tensor = int64[1] {1}, values_tensor ="
    body = f"b = {encode} float[1] {{2}}>(x) a = {encode} int64[1] {{2}}>(x)"
    assert chain("float[4] a, float[4] b", body, "int64[4] x") == [
        "'a' is declared float32[4], its node makes int64[4]"
    ]


def test_a_reshape_keeps_its_elements_whatever_its_target() -> None:
    inputs = "float[4,6] x, int64[2] s"
    assert not chain("float[8,3] a", "a = Reshape(x, s)", inputs)
    assert chain("float[4,4] a", "a = Reshape(x, s)", inputs) == [
        "'a' is declared float32[4,4], its node makes 24 elements of float32"
    ]


def test_a_constant_is_what_its_tensor_is() -> None:
    model = parse("""g (float[4] x) => (float[4] y) <float[9] k> {
        k = Constant<value = float[4] {1,2,3,4}>() y = Add(x, k) }""")
    program = read_program(model).program
    assert [var.shape for var in program.vars.values()] == [(4,)] * 3
    assert not contradictions(model, program)


def test_weights_in_the_file_say_shapes_too() -> None:
    target = "int64[2] k = {8,3}"
    said = found(
        f"g (float[4,6] x) => (float[4,6] y) <{target}, float[4,6] y> {{ y = Reshape(x, k) }}"
    )
    assert said == ["'y' is declared float32[4,6], its node makes float32[8,3]"]


def test_factors_of_a_resize_say_a_shape() -> None:
    said = found(
        "g (float[1,1,4,6] x) => (float[1,1,4,6] y) <float[4] k = {1,1,2,2}> "
        "{ y = Resize(x, , k) }"
    )
    assert said == ["'y' is declared float32[1,1,4,6], its node makes float32[1,1,8,12]"]


@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("a = nobody.Foo(x)", "float[1] a"),
        ("a = Unheard(x)", "float[1] a"),
        ("q = nobody.Foo(x) a = EyeLike(q)", "float[1] a"),
        ("a = Add(x)", "float[1] a"),
        ("i = NonZero(x) a = Transpose(i)", "int64[5,2] a"),
    ],
    ids=["another domain", "no operator", "no type", "broken node", "data"],
)
def test_what_inference_has_no_answer_for_is_no_contradiction(body: str, types: str) -> None:
    assert not chain(types, body)


def test_an_operator_that_needs_a_type_is_not_asked_about_a_value_without_one() -> None:
    # The process would die: nobody can say what the node before it makes.
    body = 'k = Unheard(x) b = Reshape(x, k) a = RegexFullMatch<pattern = "a">(k)'
    assert not chain("int64[2,2] k, float[24] b, bool[3,3] a", body)


def test_a_shape_that_another_domain_computes_is_of_its_declared_type() -> None:
    body = "k = nobody.Foo(x) a = ConstantOfShape(k)"
    assert not chain("int64[2] k, float[4,6] a", body)
    assert len(chain("int64[2] k, float[4,6,1] a", body)) == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (IF.format(v="4,6", z="4,6"), []),
        (IF.format(v="2,2", z="4,6"), ["'v'", "'u'"]),
        (IF.format(v="4,6", z="2,2"), ["'z'"]),
        (SCAN.format(last="6", rows="4,6"), []),
        (SCAN.format(last="5", rows="4,6"), ["'last'"]),
        (SCAN.format(last="6", rows="4,5"), ["'y'"]),
        (SCAN.format(last="6", rows="6"), ["'y'"]),
        (LOOP.format(last="6", rows="m,6"), []),
        (LOOP.format(last="5", rows="m,6"), ["'last'"]),
        (LOOP.format(last="6", rows="m,5"), ["'rows'"]),
    ],
)
def test_bodies_and_what_they_give_are_compared(text: str, names: list[str]) -> None:
    assert [said.split()[0] for said in found(text)] == names


@given(st.data())
def test_what_inference_says_itself_is_never_contradicted_and_a_lie_always(
    data: st.DataObject,
) -> None:
    kinds = st.sampled_from(["Relu", "Add", "Transpose", "Concat", "MatMul", "ReduceSum"])
    lines, names = [], ["x"]
    for at in range(data.draw(st.integers(1, 12))):
        one, two = (data.draw(st.sampled_from(names)) for _ in range(2))
        kind = data.draw(kinds)
        operands = one if kind in ("Relu", "Transpose", "ReduceSum") else f"{one}, {two}"
        told = {"Concat": "<axis = 0>", "ReduceSum": "<keepdims = 1>"}.get(kind, "")
        lines.append(f"v{at} = {kind}{told}({operands})")
        names.append(f"v{at}")
    model = parse(f"g (float[3,3] x) => ({names[-1]}) {{ {' '.join(lines)} }}")
    sound = onnx.shape_inference.infer_shapes(model)
    assert not contradictions(sound, read_program(sound).program)
    values = [v for v in sound.graph.value_info if v.type.tensor_type.shape.dim]
    if values:
        liar = data.draw(st.sampled_from(values))
        liar.type.tensor_type.shape.dim[0].dim_value += data.draw(st.sampled_from([-1, 1, 7]))
        wrong = contradictions(sound, read_program(sound).program)
        assert liar.name in {one.var.name for one in wrong}
