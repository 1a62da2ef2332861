"""Expressions of dims: one form for what is equal, ranges that hold, words that are refused."""

from __future__ import annotations

from itertools import product

import pytest

from memplan_cli.core.symbolic.bounds import DimRange, range_of
from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import constant_value, floor_divide, substitute


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("floor((2*a + 1)/4)", "floor(a/2)"),
        ("floor((2*a + 3)/4)", "floor((a + 1)/2)"),
        ("floor((6*a + 5)/9)", "floor((2*a + 1)/3)"),
        ("floor((4*a + 7)/4)", "a + 1"),
        ("floor((a + 4)/4)", "floor(a/4) + 1"),
        ("floor((floor(a/2) + 1)/3)", "floor((a + 2)/6)"),
        ("floor(1/2) + a", "a"),
        ("mod(a + 4, 4)", "mod(a, 4)"),
        ("mod(0, a) + b", "b"),
        ("floor(0/a) + b", "b"),
        ("(2*a)*(-2)", "-4*a"),
    ],
)
def test_quotients_of_equal_value_have_one_form(text: str, same: str) -> None:
    assert canonical_dim(text) == canonical_dim(same)


@pytest.mark.parametrize(
    "text", ["floor((floor(a/2) + floor(b/2))/3)", "floor((floor(a/2)*b + 1)/3)",
             "floor((2*floor(a/2) + 1)/5)", "floor((floor(a/2) + b)/3)"],
)  # fmt: skip
def test_a_quotient_of_more_than_one_quotient_keeps_its_value(text: str) -> None:
    for a, b in product(range(9), repeat=2):
        expected = eval(  # noqa: S307 - the text is above
            text.replace("floor(", "int(").replace("/", "//"), {"a": a, "b": b, "int": int}
        )
        assert bind_dim(canonical_dim(text), {"a": a, "b": b}) == expected


def test_a_quotient_below_one_is_nothing() -> None:
    assert floor_divide({(): 1}, 2) == {}
    assert constant_value(floor_divide({(): 1}, 2)) == 0


@pytest.mark.parametrize(
    "text", ["foo(a)", "foo(a, b)", "floor(a, b)", "ceiling(a, 2)", "min(a)", "mod(a)", "mod(a, b, 2)"]
)  # fmt: skip
def test_a_function_that_there_is_not_is_a_name_as_it_stands(text: str) -> None:
    assert parse_dim(text) == {(text,): 1}


@pytest.mark.parametrize("text", ["a/0", "a//0", "1/(1/0)", "(1/0)**0", "0*(1/0)"])
def test_a_division_by_zero_is_a_name_as_it_stands(text: str) -> None:
    assert parse_dim(text) == {(text,): 1}


@pytest.mark.parametrize("text", ["seq-len", "any name", "1st", "a/b", "b + a"])
def test_a_name_stays_as_it_is_where_nothing_is_known(text: str) -> None:
    assert bind_dim(text, {}) == text


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("mod(a, b)", 0, 7), ("floor(a/b)", 0, 5), ("ceiling(a/b)", 1, 5),
        ("min(a, b)", 1, 5), ("max(a, b)", 2, 8), ("a*b - a", -4, 39),
    ],
)  # fmt: skip
def test_a_range_is_what_the_ends_come_to(text: str, low: int, high: int) -> None:
    bounds = {"a": DimRange(1, 5), "b": DimRange(1, 8)}
    if text.startswith("max"):
        bounds = {"a": DimRange(2, 5), "b": DimRange(1, 8)}
    terms = parse_dim(text)
    assert range_of(terms, bounds) == (low, high)
    for a, b in product(bounds["a"].values, bounds["b"].values):
        value = constant_value(substitute(terms, {"a": a, "b": b}))
        assert value is not None
        assert low <= value <= high
