"""Sizes are exact for every value of their symbols."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.symbolic.sizes import (
    BITS,
    Size,
    bind_dim,
    canonical_dim,
    size_of,
    symbols_of,
)

if TYPE_CHECKING:
    from memplan_cli.core.program import Shape


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2, 3), "float32", Size(24)),
        ((), "float64", Size(8)),
        ((0, 5), "float32", Size(0)),
        ((0, "batch"), "float32", Size(0)),
        ((3,), "int4", Size(2)),
        ((4,), "uint2", Size(1)),
        (("batch", 4), "float32", Size(16, ("batch",))),
        (("seq", "batch", "seq"), "int8", Size(1, ("batch", "seq", "seq"))),
        (("2*batch", 3), "int8", Size(6, ("batch",))),
        (("batch*seq", 3), "int8", Size(3, ("batch", "seq"))),
        (("batch + 1",), "int8", Size(1, ("(batch + 1)",))),
        (("2*batch + 2",), "int8", Size(2, ("(batch + 1)",))),
        (("batch*seq + batch",), "int8", Size(1, ("(seq + 1)", "batch"))),
        (("floor(h/2)",), "int8", Size(1, ("(floor(h/2))",))),
        (("batch", 2), "int4", Size(1, ("batch",))),
    ],
)
def test_size_is_the_product_of_the_dims_and_the_element(
    shape: Shape, dtype: str, expected: Size
) -> None:
    assert size_of(shape, dtype) == expected


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (None, "float32"),
        ((1, None), "float32"),
        ((1,), "string"),
        ((1,), "sequence(float32)"),
        ((1,), "unknown"),
        ((-1,), "float32"),
        ((-1, -1, 4), "float32"),
        (("-batch",), "float32"),
        (("-batch", "-seq"), "float32"),
    ],
)
def test_a_size_that_is_not_known_for_sure_is_none(shape: Shape | None, dtype: str) -> None:
    assert size_of(shape, dtype) is None


def test_every_number_type_of_onnx_has_a_size() -> None:
    from onnx import TensorProto

    from memplan_cli.onnx_io.types import dtype_name

    names = {dtype_name(number) for number in TensorProto.DataType.values()}
    assert names - set(BITS) <= {"unknown", "string", "float6e2m3", "float6e3m2"}


def test_two_free_dims_are_never_of_the_unit_of_one() -> None:
    """The ancestor took ``(-1, -1, 4)`` for 4 elements, which fitted in ``(-1, 8)``."""
    two, one = size_of(("a", "b", 4), "int8"), size_of(("a", 8), "int8")
    assert two is not None
    assert one is not None
    assert (two.unit, one.unit) == ("a*b", "a")


def test_binding_gives_numbers_where_all_symbols_are_known() -> None:
    assert Size(4, ("batch", "seq")).bind({"batch": 2}) == Size(8, ("seq",))
    assert Size(4, ("batch", "seq", "seq")).bind({"batch": 2, "seq": 3}) == Size(72)
    assert Size(4, ("(seq + 1)", "batch")).bind({"seq": 2}) == Size(12, ("batch",))
    assert Size(4, ("(a + b)",)).bind({"a": 2}) == Size(4, ("(b + 2)",))
    assert Size(4, ("(floor(h/2))",)).bind({"h": 7}) == Size(12)


def test_binding_to_zero_leaves_nothing() -> None:
    assert Size(4, ("batch", "seq")).bind({"batch": 0}) == Size(0)


def test_binding_to_less_than_nothing_is_refused_in_words() -> None:
    size = size_of(("a - b",), "int8")
    assert size is not None
    with pytest.raises(ValueError, match="negative"):
        size.bind({"a": 1, "b": 3})


def test_a_unit_is_text_that_sorts_its_symbols() -> None:
    assert Size(4).unit == "1"
    assert Size(4, ("batch", "seq")).unit == "batch*seq"
    assert str(Size(4, ("batch", "seq"))) == "4*batch*seq"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("seq*batch", "batch*seq"),
        ("seq * batch", "batch*seq"),
        ("1 + n", "n + 1"),
        ("n + n", "2*n"),
        ("(n + 1)*2", "2*n + 2"),
        ("n**2", "n*n"),
        ("n - 1 + 1", "n"),
        ("min(b, a)", "min(a, b)"),
        ("-(-n)", "n"),
        ("n*1", "n"),
    ],
)
def test_equal_expressions_have_one_canonical_form(one: str, other: str) -> None:
    assert canonical_dim(one) == canonical_dim(other)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*3", 6),
        ("7 // 2", 3),
        ("ceiling(7/2)", 4),
        ("max(3, 5)", 5),
        ("7 % 4", 3),
        ("n-n", 0),
    ],
)
def test_expressions_of_numbers_are_folded(text: str, value: int) -> None:
    assert canonical_dim(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "unk__12",
        "onnx::Shape_1",
        "input.1_dim_0",
        "1 / 0",
        "floor(1/0)",
        "lambda: 0",
        "__import__('os')",
        "a if b else c",
        "",
        "(" * 500,
        "n ** 99999999",
        "a and b",
        "import",
        "n[0]",
        "\x00",
    ],
)
def test_a_text_that_is_no_expression_becomes_one_symbol(text: str) -> None:
    once = canonical_dim(text)
    assert isinstance(once, str)
    assert canonical_dim(once) == once
    assert bind_dim(text, {"n": 3, "a": 3, "b": 3}) in (once, None)
    assert bind_dim(text, {text: 4} if text else {}) == (4 if text else "")


def test_a_symbol_is_bound_by_its_own_name_even_where_it_looks_like_an_expression() -> None:
    assert bind_dim("batch-size", {"batch-size": 4}) == 4
    assert bind_dim("onnx::Shape_1", {"onnx::Shape_1": 4}) == 4


def test_binding_leaves_what_is_unknown() -> None:
    assert bind_dim("n + m", {"n": 2}) == "m + 2"
    assert bind_dim(None, {"n": 2}) is None
    assert bind_dim(7, {"n": 2}) == 7
    assert bind_dim("n", {}) == "n"


def test_a_bound_call_is_computed() -> None:
    assert bind_dim("floor((n + 1)/2)", {"n": 8}) == 4
    assert bind_dim("2*max(n, m)", {"n": 8}) == "2*max(8, m)"


def test_symbols_are_found_inside_calls() -> None:
    assert symbols_of("2*batch + floor((seq + 1)/2)") == {"batch", "seq"}
    assert symbols_of(4) == frozenset()
    assert symbols_of(None) == frozenset()


def test_a_product_of_large_dims_is_exact() -> None:
    assert size_of((2**40, 2**40), "float32") == Size(4 * 2**80)
    assert math.prod((2**40, 2**40)) * 4 == 4 * 2**80


def test_more_products_than_anybody_writes_are_one_symbol() -> None:
    few = "*".join(f"(a{at} + b{at})" for at in range(4))
    assert len(symbols_of(few)) == 8
    many = "*".join(f"(a{at} + b{at})" for at in range(40))
    assert symbols_of(many) == {many}
    size = size_of((many, 4), "float32")
    assert size is not None
    assert size.coefficient == 16
