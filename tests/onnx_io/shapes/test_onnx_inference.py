"""ONNX's own inference is called so that it survives, and its errors are corrected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser
import pytest

from memplan_cli.core.program import VarId
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.contradictions import contradictions
from memplan_cli.onnx_io.shapes.generated_names import clear_generated_names
from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes
from memplan_cli.onnx_io.shapes.reading import read_program

if TYPE_CHECKING:
    from onnx import ModelProto

HEAD = '<ir_version: 12, opset_import: ["" : 23]>'
QUERIES = "float[n,6,s,8] q"
FRESH = "float[n,2,t,8] k, float[n,2,t,8] v"
UNKNOWN_HEAD = '<ir_version: 10, opset_import: ["" : 22, "nobody" : 1]>'
PAST = "float[n,2,u,8] pk, float[n,2,u,8] pv"


def model(inputs: str, body: str, weights: str = "") -> ModelProto:
    between = f"<{weights}> " if weights else ""
    return onnx.parser.parse_model(f"{HEAD} g ({inputs}) => (y) {between}{{ {body} }}")


def shape(of: ModelProto, name: str) -> list[int | str]:
    value = next(v for v in (*of.graph.value_info, *of.graph.output) if v.name == name)
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]


@pytest.mark.parametrize(
    ("inputs", "node", "expected"),
    [
        (f"{QUERIES}, {FRESH}", "r,,,w = Attention(q,k,v)", ("n", 6, "s", "t")),
        (
            f"{QUERIES}, {FRESH}, {PAST}".replace("t,8", "7,8").replace("u,8", "3,8"),
            "r,a,b,w = Attention(q,k,v,,pk,pv)",
            ("n", 6, "s", 10),
        ),
        (
            f"{QUERIES}, {FRESH}, {PAST}".replace("t,8", "7,8"),
            "r,a,b,w = Attention(q,k,v,,pk,pv)",
            ("n", 6, "s", "u + 7"),
        ),
    ],
)
def test_scores_are_as_long_as_the_keys_or_of_a_length_not_known(
    inputs: str, node: str, expected: tuple[int | str, ...]
) -> None:
    asked = model(inputs, f"{node} e = Relu(w) y = Neg(e)")
    vars_ = read_program(asked).program.vars
    assert vars_[VarId("w")].shape == vars_[VarId("e")].shape == expected
    found = infer_shapes(asked.SerializeToString())
    assert list(found.graph.node) == list(asked.graph.node)


def test_the_length_of_a_past_is_that_of_its_keys() -> None:
    inputs = f"{QUERIES}, {FRESH}, float[n,2,u,8] pk, float[] pv"
    vars_ = read_program(
        model(inputs, "r,a,b,w = Attention(q,k,v,,pk,pv) y = Neg(w)")
    ).program.vars
    assert vars_[VarId("a")].shape == vars_[VarId("b")].shape == ("n", 2, "t + u", 8)


def test_scores_that_lead_to_scores_are_inferred_too() -> None:
    text = "r,,,w = Attention(q,k,v) o,,,x = Attention(w,w,w) y = Neg(x)"
    vars_ = read_program(model(f"{QUERIES}, {FRESH}", text)).program.vars
    assert vars_[VarId("x")].shape == ("n", 6, "s", "s")


def test_a_spectrum_is_one_sided_unless_said_otherwise() -> None:
    for said, bins in (("", 5), ("<onesided=1>", 5), ("<onesided=0>", 8)):
        weights = "int64 step = {4}, int64 length = {8}"
        asked = model(
            "float[1,32,1] x", f"r = STFT{said}(x, step, , length) y = Neg(r)", weights
        )
        found = infer_shapes(asked.SerializeToString())
        assert shape(found, "r")[2] == shape(found, "y")[2] == bins
        assert list(found.graph.node) == list(asked.graph.node)


@pytest.mark.parametrize("start", ["Reshape (minus_one, flat)", "Identity (start)"])
def test_slice_of_a_shape_from_an_unknown_start_has_no_propagated_value(start: str) -> None:
    """ONNX's data propagation takes a start that it does not know for 0."""
    body = f"s = Shape (x) b = {start} d = Slice (s, b, end) y = ConstantOfShape (d)"
    weights = "int64 minus_one = {-1}, int64[1] flat = {-1}, int64[1] end = {-1}"
    sliced = model("float[n,m,3] x, int64[1] start", body, weights)
    inferred = infer_shapes(sliced.SerializeToString())
    assert not inferred.graph.output[0].type.tensor_type.HasField("shape")
    assert list(inferred.graph.node) == list(sliced.graph.node)
    shapes = {
        name: var.shape for name, var in read_program(sliced, Bindings()).program.vars.items()
    }
    assert shapes[VarId("y")] == (() if "Reshape" in start else None)


def test_a_dim_that_was_cast_to_bool_is_not_the_dim_any_more() -> None:
    """ONNX's data propagation keeps the elements of a Cast, whatever its type."""
    body = "s = Shape (x) b = Cast<to=9> (s) i = Cast<to=7> (b) e = Expand (x, i) y = ConstantOfShape (i)"
    cast = model("float[n,m,3] x", body)
    inferred = infer_shapes(cast.SerializeToString())
    assert list(inferred.graph.node) == list(cast.graph.node)
    assert shape(inferred, "b") == [3]
    vars_ = read_program(cast, Bindings()).program.vars
    assert vars_[VarId("b")].dtype == "bool"
    # A dim may be 0, so only the last element is known: 3 becomes 1.
    made = vars_[VarId("y")].shape or ()
    assert made[-1] == 1
    assert not {"n", "m"} & {*map(str, made)}


def test_no_right_declaration_is_contradicted() -> None:
    asked = model(f"{QUERIES}, {FRESH}", "r,,,w = Attention(q,k,v) y = Neg(w)")
    asked.graph.value_info.extend(
        [onnx.helper.make_tensor_value_info("w", 1, ["n", 6, "s", "t"])]
    )
    program = read_program(asked, Bindings()).program
    assert program.vars[VarId("w")].shape == ("n", 6, "s", "t")
    assert contradictions(asked, program) == ()


@pytest.mark.parametrize(
    ("inputs", "heads", "expected"),
    [
        (
            "float[n,s,48] q, float[n,t,16] k, float[n,t,16] v",
            (6, 2),
            [("n", "s", 48), ("n", 2, "t", 8), ("n", 2, "t", 8), ("n", 6, "s", "t")],
        ),
        (
            "float[n,s,e] q, float[n,t,e] k, float[n,t,f] v",
            (6, 6),
            [("n", "s", "f"), ("n", 6, "t", None), ("n", 6, "t", None), ("n", 6, "s", "t")],
        ),
    ],
)
def test_heads_side_by_side_are_as_wide_as_the_values(
    inputs: str, heads: tuple[int, int], expected: list[tuple[int | str | None, ...]]
) -> None:
    """ONNX takes a width that has a name for 0, and all that is made of it."""
    body = f"r,a,b,w = Attention<q_num_heads={heads[0]},kv_num_heads={heads[1]}>(q,k,v)"
    found = read_program(model(inputs, f"{body} y = Neg (r)"), Bindings()).program.vars
    assert [found[VarId(name)].shape for name in "rabw"] == expected
    assert found[VarId("y")].shape == expected[0]


def test_element_types_of_an_attention_do_not_depend_on_known_shapes() -> None:
    body = "r,a,b,w = Attention<q_num_heads=6,kv_num_heads=2>(q,k,v) y = Neg (r)"
    inputs = "float16[n,s,48] q, float16[] k, float16[n,t,16] v"
    asked = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => (y) {{ {body} }}")
    asked.graph.input[1].type.tensor_type.ClearField("shape")
    found = read_program(asked, Bindings()).program.vars
    assert {found[VarId(name)].dtype for name in "rabwy"} == {"float16"}


def test_made_up_name_is_replaced_by_a_dim_that_a_later_node_shows() -> None:
    made = model("float[4] x", "a = Neg (x) b = Neg (a) y = Neg (b)")
    infer = onnx.helper.make_tensor_value_info
    made.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    made.graph.value_info.extend([infer("a", 1, ["unk__0"]), infer("b", 1, [7])])
    clear_generated_names(made)
    assert shape(made, "a") == [7]


def test_made_up_names_are_forgotten_where_the_file_contradicts_a_transpose() -> None:
    made = model("float[4] x", "z = NonZero (x)  t = Transpose (z)  y = Neg (t)")
    infer = onnx.helper.make_tensor_value_info
    made.graph.value_info.append(infer("z", 7, [1, "unk__0"]))
    made.graph.value_info.append(infer("t", 7, ["unk__0", 1, 3]))
    clear_generated_names(made)
    assert (shape(made, "z"), shape(made, "t")) == ([1, "?"], ["?", 1, 3])


def parsed(body: str) -> ModelProto:
    return onnx.parser.parse_model(f"{UNKNOWN_HEAD} g (float[3,4] x) => (y) {{ {body} }}")


def test_operator_that_needs_its_inputs_type_is_inferred_once_that_is_known() -> None:
    asked = parsed("a = Relu(x) b = EyeLike<k=1>(a) c = EyeLike<k=1>(b) y = Neg(c)")
    assert {var.shape for var in read_program(asked).program.vars.values()} == {(3, 4)}
    assert list(infer_shapes(asked.SerializeToString()).graph.node) == list(asked.graph.node)


@pytest.mark.parametrize("op", ["EyeLike<k=1>", 'RegexFullMatch<pattern="a">'])
def test_operator_without_a_known_input_type_is_not_inferred(op: str) -> None:
    asked = parsed(f"a = nobody.Foo(x) b = {op}(a) y = Relu(x)")
    found = {name: var.shape for name, var in read_program(asked).program.vars.items()}
    assert found == {"x": (3, 4), "a": None, "b": None, "y": (3, 4)}
    assert list(infer_shapes(asked.SerializeToString()).graph.node) == list(asked.graph.node)


def test_body_sees_the_types_around_it() -> None:
    then = "then_branch = t () => (u) { u = EyeLike<k=1>(x) }"
    other = "else_branch = e () => (v) { v = EyeLike<k=1>(ghost) }"
    asked = parsed(
        f"ghost = nobody.Foo(x) c = Constant<value = bool {{1}}>() y = If(c) <{then}, {other}>"
    )
    found = infer_shapes(asked.SerializeToString())
    (owner,) = (node for node in found.graph.node if node.op_type == "If")
    types = {a.name: a.g.output[0].type.WhichOneof("value") for a in owner.attribute}
    assert types == {"then_branch": "tensor_type", "else_branch": None}
