"""Targets of Reshape and its like, as exporters write them."""

from __future__ import annotations

import pytest

from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_program


def shape_of(text: str, name: str, dims: dict[str, int] | None = None) -> object:
    import onnx

    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    return read_program(model, Bindings(dims or {})).program.vars[name].shape  # type: ignore[index]


LLAMA = """g (float[batch,8,past,64] k, int64[batch,new] ids, float[batch,8,total,64] x) => (y)
    <int64[1] heads = {32}, int64[1] width = {64}, int64[1] flat = {-1}> {
        b = Shape <start = 0, end = 1> (k)
        p1 = Shape <start = 2, end = 3> (k)
        n1 = Shape <start = 1, end = 2> (ids)
        p = Squeeze (p1)
        n = Squeeze (n1)
        t = Add (n, p)
        t1 = Reshape (t, flat)
        want = Concat <axis = 0> (b, heads, t1, width)
        r = Reshape (x, want)
        y = Neg (r)
    }"""


def test_a_sum_of_dims_through_scalars_and_back_is_an_expression() -> None:
    assert shape_of(LLAMA, "y") == ("batch", 32, "new + past", 64)


def test_with_numbers_the_same_chain_gives_numbers() -> None:
    dims = {"batch": 2, "past": 5, "new": 3, "total": 32}
    assert shape_of(LLAMA, "y", dims) == (2, 32, 8, 64)


def test_torchscript_flattening_keeps_the_batch() -> None:
    text = """g (float[batch,3,4] x) => (y) <int64 zero = {0}, int64[1] flat = {-1}, int64[1] axis = {0}> {
        all = Shape (x)
        first = Gather (all, zero)
        one = Unsqueeze (first, axis)
        want = Concat <axis = 0> (one, flat)
        r = Reshape (x, want)
        y = Neg (r)
    }"""
    assert shape_of(text, "y") == ("batch", 12)


def test_heads_are_split_by_a_division() -> None:
    text = """g (float[batch,seq,768] x) => (y) <int64[1] heads = {12}> {
        bs = Shape <end = 2> (x)
        w = Shape <start = 2> (x)
        each = Div (w, heads)
        want = Concat <axis = 0> (bs, heads, each)
        r = Reshape (x, want)
        y = Neg (r)
    }"""
    assert shape_of(text, "y") == ("batch", "seq", 12, 64)


def test_a_difference_that_may_be_zero_is_no_dim_of_a_target() -> None:
    text = """g (float[n,m,3] x) => (y) <int64[1] two = {2}> {
        all = Shape (x)
        less = Sub (all, two)
        r = Reshape (all, less)
        y = Neg (r)
    }"""
    assert shape_of(text, "y") == (None, None, 1)
    assert shape_of(text, "y", {"n": 2, "m": 3}) == (3, 1, 1)


def test_with_allowzero_a_difference_may_be_zero_but_not_the_rest_of_the_elements() -> None:
    text = """g (float[n,m,3] x) => (y) <int64[1] less = {%d}> {
        all = Shape (x)
        target = Sub (all, less)
        r = Reshape <allowzero = 1> (x, target)
        y = Neg (r)
    }"""
    assert shape_of(text % 1, "y") == ("n - 1", "m - 1", 2)
    assert shape_of(text % 2, "y") == (None, None, 1)


def test_a_difference_that_the_input_has_is_a_dim_of_a_target() -> None:
    text = """g (float[n,2] x) => (y) <int64[1] two = {2}, int64[1] far = {9223372036854775807}, int64[1] axis = {0}> {
        end = Slice (x, two, far, axis)
        rows = Shape <end = 1> (end)
        want = Concat <axis = 0> (rows, two)
        r = Reshape (end, want)
        y = Neg (r)
    }"""
    assert shape_of(text, "y") == shape_of(text, "end") == ("max(-min(2, n) + n, 0)", 2)


def test_expand_with_the_exporters_minus_one_pattern() -> None:
    text = """g (float[batch,1,4] x) => (y) <int64[3] wish = {-1, 5, -1}, int64[1] three = {3}, int64 minus = {-1}> {
        ones = ConstantOfShape <value = int64[1] {1}> (three)
        m = Mul (ones, minus)
        same = Equal (wish, m)
        want = Where (same, ones, wish)
        e = Expand (x, want)
        y = Neg (e)
    }"""
    assert shape_of(text, "y") == ("batch", 5, 4)


def test_a_layer_shaped_by_the_layer_before_is_known_too() -> None:
    layers = "\n".join(
        f"""s{n} = Shape (r{n})
            a{n} = Gather (s{n}, zero)
            b{n} = Gather (s{n}, one)
            c{n} = Add (b{n}, none)
            d{n} = Reshape (a{n}, flat)
            e{n} = Reshape (c{n}, flat)
            w{n} = Concat <axis = 0> (d{n}, e{n})
            r{n + 1} = Reshape (r{n}, w{n})"""
        for n in range(5)
    )
    text = f"""g (float[batch,8] x) => (y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 none = {{0}}, int64[1] flat = {{-1}}> {{
        r0 = Neg (x)
        {layers}
        y = Neg (r5)
    }}"""
    assert shape_of(text, "y") == ("batch", 8)


@pytest.mark.parametrize(
    ("why", "chain"),
    [
        ("a quotient of floats", "f = Cast <to = 1> (s) h = Div (f, f) w = Cast <to = 7> (h)"),
        ("data", "w = Cast <to = 7> (x)"),
        ("a difference may be negative", "h = Sub (s, nine) w = Div (h, nine)"),
    ],
)
def test_an_uncertain_target_shape_stays_unknown(why: str, chain: str) -> None:
    text = f"""g (float[batch] x) => (y) <int64[1] nine = {{9}}> {{
        s = Shape (x)
        {chain}
        e = ConstantOfShape (w)
        y = Neg (e)
    }}"""
    shape = shape_of(text, "y")
    assert shape is None or None in shape, why  # type: ignore[operator]
