"""Sizes with symbols say what arithmetic says, for every value of the symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from memplan_cli.core.symbolic.bounds import DimRange, largest_size, range_of
from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, parse_dim, symbols_of
from memplan_cli.core.symbolic.sizes import Size, size_of, unit_value

NAMES = ("batch", "seq", "W", "input.1_dim0")
Dims = Mapping[str, int]


@dataclass(frozen=True)
class Expression:
    """A dim as text, and what it means, computed without reading the text."""

    text: str
    value: Callable[[Dims], int]


def leaf_symbol(name: str) -> Expression:
    return Expression(name, lambda dims: dims[name])


def leaf_number(number: int) -> Expression:
    return Expression(str(number), lambda _: number)


def combine(
    parts: tuple[str, Expression, Expression, int],
) -> Expression:
    operator, a, b, number = parts
    match operator:
        case "+" | "-" | "*":
            apply = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator]
            text = f"({a.text}) {operator} ({b.text})"
            return Expression(text, lambda dims: apply(a.value(dims), b.value(dims)))
        case "//":
            return Expression(f"({a.text})//{number}", lambda dims: a.value(dims) // number)
        case "floor":
            text = f"floor(({a.text})/{number} + 1/{number})"
            return Expression(text, lambda dims: (a.value(dims) + 1) // number)
        case "ceiling":
            text = f"ceiling(({a.text})/{number})"
            return Expression(text, lambda dims: -(-a.value(dims) // number))
        case "mod":
            return Expression(f"({a.text}) % {number}", lambda dims: a.value(dims) % number)
        case "quotient":
            text = f"floor(({a.text})/(Max({b.text}, 1)))"
            return Expression(text, lambda dims: a.value(dims) // max(b.value(dims), 1))
    best = {"Min": min, "Max": max}[operator]
    text = f"{operator}({a.text}, {b.text})"
    return Expression(text, lambda dims: best(a.value(dims), b.value(dims)))


OPERATORS = ("+", "-", "*", "//", "floor", "ceiling", "mod", "quotient", "Min", "Max")

leaves = st.one_of(st.sampled_from(NAMES).map(leaf_symbol), st.integers(0, 9).map(leaf_number))
expressions = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner, st.integers(1, 5)).map(
        combine
    ),
    max_leaves=6,
)
dims_of_all = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})


@given(expression=expressions, dims=dims_of_all)
def test_a_bound_expression_is_what_arithmetic_says(
    expression: Expression, dims: Dims
) -> None:
    assert bind_dim(canonical_dim(expression.text), dims) == expression.value(dims)


@given(expression=expressions)
def test_a_canonical_form_reads_as_itself(expression: Expression) -> None:
    form = canonical_dim(expression.text)
    assert canonical_dim(str(form)) == form
    assert parse_dim(str(form)) == parse_dim(expression.text)


@given(expression=expressions, dims=dims_of_all, first=st.sampled_from(NAMES))
def test_binding_one_symbol_after_the_other_gives_the_same(
    expression: Expression, dims: Dims, first: str
) -> None:
    partly = bind_dim(canonical_dim(expression.text), {first: dims[first]})
    assert first not in symbols_of(partly)
    assert bind_dim(partly, dims) == expression.value(dims)


@given(
    shape=st.lists(expressions, min_size=1, max_size=3),
    dims=dims_of_all,
    kind=st.sampled_from([("float32", 32), ("int64", 64), ("int4", 4), ("bool", 8)]),
)
def test_a_size_bound_is_the_size_of_the_bound_shape(
    shape: list[Expression], dims: Dims, kind: tuple[str, int]
) -> None:
    dtype, bits = kind
    values = [part.value(dims) for part in shape]
    assume(all(value >= 0 for value in values))
    size = size_of(tuple(canonical_dim(part.text) for part in shape), dtype)
    assume(size is not None)  # a dim like `-seq` has no size, though it is 0 for seq = 0
    assert size is not None
    assert size.bind(dims) == Size(-(-prod(values) * bits // 8))
    assert size.coefficient * unit_value(size.unit, dims) == -(-prod(values) * bits // 8)


@given(
    expression=expressions,
    ends=st.fixed_dictionaries(
        {name: st.tuples(st.integers(0, 20), st.integers(0, 20)) for name in NAMES}
    ),
    share=st.fixed_dictionaries({name: st.floats(0, 1) for name in NAMES}),
)
def test_an_expression_stays_within_its_interval(
    expression: Expression, ends: Mapping[str, tuple[int, int]], share: Mapping[str, float]
) -> None:
    bounds = {name: DimRange(min(pair), max(pair)) for name, pair in ends.items()}
    dims = {n: low + round(share[n] * (high - low)) for n, (low, high, _) in bounds.items()}
    low, high = range_of(parse_dim(expression.text), bounds)
    assert low <= expression.value(dims) <= high


@given(a=expressions, b=expressions, c=expressions)
def test_equal_products_have_one_unit(a: Expression, b: Expression, c: Expression) -> None:
    one = size_of(tuple(canonical_dim(part.text) for part in (a, b, c)), "float32")
    other = size_of(tuple(canonical_dim(part.text) for part in (c, a, b)), "float32")
    assert one == other


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("seq*batch", "batch*seq"),
        ("W**(4/2)", "W*W"),
        ("past + new", "new + past"),
        ("Min(512, seq)", "min(512, seq)"),
        ("floor(W/2 + 1/2)", "floor((W + 1)/2)"),
        ("floor((W - 1)/2) + 1", "floor((W + 1)/2)"),
        ("ceiling(W/2)", "floor((W + 1)/2)"),
        ("floor(floor(W/2)/2)", "floor(W/4)"),
        ("floor((floor((W + 1)/2) + 3)/2)", "floor((W + 3)/4) + 1"),
        ("seq//1 + 0*batch", "seq"),
        ("encoder length", "`encoder length`"),
        ("s0//0", "`s0//0`"),
    ],
)
def test_expressions_have_one_canonical_form(text: str, form: str) -> None:
    assert canonical_dim(text) == form


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("2batch", "2batch"),
        ("W**(3/2)", "W**(3/2)"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        ("rank #1", "rank #1"),
        ("`a`2", "'a'2"),
        ("a`b`", "a'b'"),
        ("`floor(2*a/4)`", "floor(2*a/4)"),
        ("`floor(a/0)`", "floor(a/0)"),
        ("ceiling(W/k + V/k)", "ceiling(W/k + V/k)"),
        ("floor((W/k + 1)/2)", "floor((W/k + 1)/2)"),
    ],
)
def test_what_only_looks_like_arithmetic_is_a_name(text: str, name: str) -> None:
    assert symbols_of(text) == {name}
    assert canonical_dim(text) == f"`{name}`"
    assert symbols_of(canonical_dim(text)) == {name}
    assert bind_dim(text, {name: 5}) == 5


@given(st.text("ab2 _`#()+-*/,.'\n", max_size=12))
def test_any_text_is_read_and_its_canonical_form_reads_as_itself(text: str) -> None:
    form = canonical_dim(text)
    assert canonical_dim(str(form)) == form


def test_what_is_no_product_is_one_symbol_in_parentheses() -> None:
    assert size_of(("new + past", "batch"), "float32") == Size(4, ("(new + past)", "batch"))
    assert size_of(("floor(W/2 + 1/2)",), "int8") == Size(1, ("(floor((W + 1)/2))",))
    assert size_of(("Min(512, seq)",), "int8") == Size(1, ("(min(512, seq))",))


def test_a_name_that_is_no_word_can_be_bound() -> None:
    size = size_of(("encoder length", 2), "float32")
    assert size is not None
    assert size.bind({"encoder length": 3}) == Size(24)


def test_packed_types_round_up_once_for_the_whole_tensor() -> None:
    size = size_of(("batch", 3), "int4")
    assert size is not None
    assert [size.bind({"batch": n}).coefficient for n in (0, 1, 2, 3)] == [0, 2, 3, 5]


def test_a_bounded_size_is_its_largest() -> None:
    size = size_of(("batch", "new + past", 2), "float32")
    assert size is not None
    bounds = {"batch": DimRange(1, 4), "new": DimRange(1, 1), "past": DimRange(0, 511)}
    assert largest_size(size, bounds) == Size(4 * 512 * 8, (), str(size))
    assert largest_size(size, {"batch": DimRange(1, 4)}) == Size(
        32, ("(new + past)",), str(size)
    )
    assert largest_size(size, {}) == size
    assert str(largest_size(size, {"past": DimRange(0, 511)})) == "8*(new + 511)*batch"


@pytest.mark.parametrize(
    ("dim", "most"),
    [
        ("a*b + c", "5*b + c"),
        ("c - a", "c - 2"),
    ],
)
def test_a_dim_with_bounds_is_at_its_largest_in_a_sum_with_others(dim: str, most: str) -> None:
    size, wanted = size_of((dim,), "int8"), size_of((most,), "int8")
    assert size is not None
    assert wanted is not None
    found = largest_size(size, {"a": DimRange(2, 5)})
    assert replace(found, bound_of="") == wanted
    assert found.bound_of == str(size)
    for a in (2, 3, 5):
        dims = {"a": a, "b": 7, "c": 9}
        assert size.bind(dims).coefficient <= found.bind(dims).coefficient


@given(
    expression=expressions,
    dims=st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES}),
    room=st.integers(0, 9),
)
def test_a_size_is_never_above_its_largest(
    expression: Expression, dims: dict[str, int], room: int
) -> None:
    size = size_of((expression.text,), "int8")
    assume(size is not None)
    assert size is not None
    bounds = {
        name: DimRange(max(dims[name] - room, 1), dims[name] + room) for name in NAMES[:2]
    }
    try:
        exact = size.bind(dims).coefficient
    except ValueError:
        reject()
    assert exact <= largest_size(size, bounds).bind(dims).coefficient


@pytest.mark.parametrize("dim", ["floor(b/a)", "Max(a, b)"])
def test_a_call_of_bounded_and_other_symbols_keeps_both(dim: str) -> None:
    size = size_of((dim,), "int8")
    assert size is not None
    assert largest_size(size, {"a": DimRange(2, 5)}) == size


def test_sizes_that_are_equal_only_at_their_largest_are_not_equal() -> None:
    bounds = {"a": DimRange(1, 8), "b": DimRange(1, 8)}
    one, other = size_of(("a",), "int8"), size_of(("b",), "int8")
    assert one is not None
    assert other is not None
    assert largest_size(one, bounds).coefficient == largest_size(other, bounds).coefficient
    assert largest_size(one, bounds) != largest_size(other, bounds)
    assert largest_size(one, bounds) != Size(8)
