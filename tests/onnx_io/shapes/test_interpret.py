"""Small values and what follows from them: masks, floats, branches, turns."""

from __future__ import annotations

from typing import Any

import onnx.parser
import pytest

from memplan_cli.core.program import VarId
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.generated_names import clear_generated_names
from memplan_cli.onnx_io.shapes.interpret import interpret
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.shapes.symbolic.values import MAX_ELEMENTS


def shape_of(body: str, weights: str = "", **dims: int) -> Any:  # noqa: ANN401 - dims, or None where not even the rank is known
    text = (
        f'<ir_version: 9, opset_import: ["": 18]> '
        f"g (float[batch,3,h,w] x) => (y) <{weights}> {{ {body} y = Identity (r) }}"
    )
    program = read_program(onnx.parser.parse_model(text), Bindings(dims)).program
    return next(var.shape for var in program.vars.values() if var.name == "r")


def test_pad_with_a_number_fills_no_shape_with_another_element() -> None:
    text = """<ir_version: 6, opset_import: ["" : 10]> g (float[n,2] x) => (y) {
        s = Shape (x) f = Cast <to = 1> (s) p = Pad <pads = [0,1], value = 2.0> (f)
        d = Cast <to = 7> (p) r = ConstantOfShape (d) y = Identity (r) }"""
    vars_ = read_program(onnx.parser.parse_model(text), Bindings()).program.vars
    assert vars_[VarId("r")].shape in (None, (None, None, None))


LAST = "all = Shape (x) n = Gather (all, axis)"
FLOAT = "f = Cast <to = 1> (n) s = Constant <value_float"
WHOLE = "i = Cast <to = 7> (o) r = Range (zero, i, one)"
AXIS = "int64 axis = {3}, int64 zero = {0}, int64 one = {1}, int64 two = {2}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("r = Range (zero, n, one)", "w"),
        ("r = Range (one, n, two)", "max(0, ceiling((w - 1)/2))"),
        ("a = Range (zero, n, one) r = Greater (a, zero)", "w"),
        (f"f = Cast <to = 11> (n) s = Cast <to = 11> (two) h = Mul (f, s) o = Floor (h) {WHOLE}", "2*w"),
        (f"{FLOAT} = 2.0> () h = Mul (f, s) o = Floor (h) {WHOLE}", "2*w"),
        ("m = Min (n, two) r = Range (zero, m, one)", "min(2, w)"),
        ("k = ReduceProd <keepdims = 0> (all) r = Range (zero, k, one)", "3*batch*h*w"),
        ("t = Equal (n, n) m = Where (t, n, axis) r = Range (zero, m, one)", "w"),
    ],
)  # fmt: skip
def test_lengths_are_expressions(body: str, expected: str) -> None:
    (found,) = shape_of(f"{LAST} {body}", AXIS)
    for w in (0, 1, 2, 5, 8):
        dims = {"batch": 2, "h": 4, "w": w}
        known = bind_dim(found, dims)
        assert known == bind_dim(expected, dims)
        assert (known,) == shape_of(f"{LAST} {body}", AXIS, **dims)


def test_only_a_scatter_without_a_reduction_moves_its_elements() -> None:
    body = """all = Shape (x)  new = Gather (all, last)
        s = ScatterElements <reduction = "REDUCTION"> (all, first, new)  r = ConstantOfShape (s)"""
    weights = "int64[1] first = {0}, int64[1] last = {3}"
    assert shape_of(body.replace("REDUCTION", "none"), weights) == ("w", 3, "h", "w")
    added = body.replace("REDUCTION", "add")
    assert shape_of(added, weights) == (None,) * 4
    assert shape_of(added, weights, batch=2, h=5, w=7) == (9, 3, 5, 7)


def test_a_root_is_taken_of_a_number_only() -> None:
    body = f"{LAST} f = Cast <to = 1> (n) q = Sqrt (f) i = Cast <to = 7> (q) r = Range (zero, i, one)"
    assert shape_of(body, AXIS, w=49) == (7,)
    assert shape_of(body, AXIS) == (None,)


def test_a_quotient_of_a_quotient_may_have_been_rounded() -> None:
    body = (
        f"{LAST} f = Cast <to = 1> (n) s = Constant <value_float = 3.0> () a = Div (f, s)"
        " b = Mul (a, s) i = Cast <to = 7> (b) r = Range (zero, i, one)"
    )
    assert shape_of(body, AXIS) == (None,)
    assert shape_of(body, AXIS, w=9) == (9,)


def test_places_of_a_mask_that_is_known_are_counted() -> None:
    body = (
        f"{LAST} a = Range (zero, n, one) m = Greater (a, two) i = NonZero (m)"
        " r = Transpose (i)"
    )
    assert shape_of(body, AXIS, w=7) == (4, 1)
    assert shape_of(body, AXIS) == (None, 1)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("0, 2", "min(2, w)"), ("1, 2147483647", "max(0, w - 1)"), ("0, -1", "max(0, w - 1)"),
        ("-2, 9223372036854775807", "w - max(0, w - 2)"),
    ],
)  # fmt: skip
def test_a_slice_is_cut_to_its_dim(ends: str, expected: str) -> None:
    start, end = ends.split(",")
    weights = f"int64[1] a = {{{start}}}, int64[1] b = {{{end}}}, int64[1] c = {{3}}"
    found = shape_of("r = Slice (x, a, b, c)", weights)
    assert found[:3] == ("batch", 3, "h")
    for w in (0, 1, 2, 5):
        known = bind_dim(found[3], {"w": w})
        assert known == bind_dim(expected, {"w": w})
        assert known == shape_of("r = Slice (x, a, b, c)", weights, w=w)[3]


def test_windows_fit_into_dims_as_often_as_into_numbers() -> None:
    bodies = (
        "r = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,0,1]> (x)",
        "r = Conv <strides = [4,3], pads = [3,3,3,3], dilations = [1,2]> (x, k)",
        'r = AveragePool <kernel_shape = [3,3], strides = [2,3], auto_pad = "SAME_UPPER"> (x)',
        "r = ConvTranspose <strides = [2,2], pads = [1,1,1,1], output_padding = [1,1]> (x, t)",
    )
    weights = "float[5,3,7,7] k, float[3,4,3,3] t"
    for body in bodies:
        text = (
            '<ir_version: 9, opset_import: ["": 18]> '
            f"g (float[{{}}] x, {weights}) => (y) {{{{ {body} y = Identity (r) }}}}"
        )
        model = onnx.parser.parse_model(text.format("b,3,h,w"))
        free = read_program(model).program.vars[VarId("r")].shape
        assert free is not None
        for h, w in ((17, 20), (32, 31)):
            fixed = onnx.parser.parse_model(text.format(f"2,3,{h},{w}"))
            known = read_program(fixed).program.vars[VarId("r")].shape
            assert tuple(bind_dim(d, {"b": 2, "h": h, "w": w}) for d in free) == known


IF = """c = Equal (n, one)
    r = If (c) <then_branch = t () => (u) { u = Squeeze (x) },
                else_branch = e () => (v) { v = Identity (x) }>"""


def test_an_if_takes_the_branch_that_its_condition_names() -> None:
    assert shape_of(f"{LAST} {IF}", AXIS, w=5) == ("batch", 3, "h", 5)
    assert shape_of(f"{LAST} {IF}", AXIS) is None


def test_a_loops_turns_are_counted_where_their_number_is_computed() -> None:
    body = f"""{LAST} t = Constant <value = bool {{1}}> ()
        k = Constant <value_ints = [4]> ()
        last, r = Loop (n, t, k) <body = b (int64 i, bool go, int64[1] a)
            => (on, n2, row) {{ on = Identity (go) n2 = Add (a, a) row = Neg (a) }}>"""
    assert shape_of(body, AXIS, w=6) == (6, 1)


def test_values_of_so_many_elements_are_followed_and_of_no_more() -> None:
    body = f"""{LAST} m = Unsqueeze (n, zero)
        o = ConstantOfShape <value = int64[1] {{1}}> (m)  k = ReduceSum <keepdims = 0> (o)
        r = Range (zero, k, one)"""
    weights = AXIS.replace("int64 zero = {0}", "int64 zero = {0}, int64[1] first = {0}")
    body = body.replace("(n, zero)", "(n, first)")
    assert shape_of(body, weights, w=MAX_ELEMENTS) == (MAX_ELEMENTS,)
    assert shape_of(body, weights, w=MAX_ELEMENTS + 1) == (None,)


def test_values_that_are_wanted_are_found_where_all_shapes_are_known() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) '
        "<int64 one = {1}, int64 s> { s = Size (x)  y = Neg (x) }"
    )
    found = interpret(onnx.shape_inference.infer_shapes(model), ["s", "one"]).values
    assert {name: value.elements for name, value in found.items()} == {"s": [6], "one": [1]}


def test_a_result_that_is_left_out_gets_no_type() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[n] x, bool go) => (y) '
        "<int64 three = {3}, int64[1] one = {1}> {"
        " , rows = Loop (three, go, one) <body = b (int64 i, bool c, int64[1] a)"
        " => (on, a2, row) { on = Identity (c) a2 = Add (a, a) row = Neg (a) }>"
        " y = Reshape (x, rows) }"
    )
    assert "" not in interpret(model).types.keys() | interpret(model).values.keys()


def test_only_values_that_shapes_hang_on_are_worked_out() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (y) '
        "<int64 zero = {0}, int64 one = {1}> {"
        " s = Size (x) a = Add (s, one) b = Mul (a, a) r = Range (zero, a, one) y = Neg (r) }"
    )
    inferred = onnx.shape_inference.infer_shapes(model)
    clear_generated_names(inferred)
    assert {"a", "s"} <= interpret(inferred).values.keys()
    assert "b" not in interpret(inferred).values
    assert "b" in interpret(inferred, ["b"]).values


@pytest.mark.parametrize(
    ("body", "weights", "expected"),
    [
        ("r = SpaceToDepth <blocksize = 2> (x)", "", (12, "floor(h/2)", "floor(w/2)")),
        (
            "c = Concat <axis = 1> (x, x, x, x) r = DepthToSpace <blocksize = 2> (c)",
            "",
            (3, "2*h", "2*w"),
        ),
        (
            "q = Cast <to = 2> (x) r = QLinearConv <strides = [2, 1]> (q, s, z, k, s, z, s, z)",
            (
                "float s = {1}, uint8 z = {0}, uint8[4,3,1,2] k = "
                "{1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}"
            ),
            (4, "floor((h + 1)/2)", "w - 1"),
        ),
        (
            "q = Cast <to = 2> (x) r = ConvInteger (q, k)",
            "uint8[2,3,1,2] k = {1,1,1,1,1,1,1,1,1,1,1,1}",
            (2, "h", "w - 1"),
        ),
    ],
)
def test_named_dims_go_through_blocks_and_quantized_windows(
    body: str, weights: str, expected: tuple[int | str, ...]
) -> None:
    assert shape_of(body, weights or AXIS) == ("batch", *expected)
