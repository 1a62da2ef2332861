"""Arithmetic on elements that may be expressions agrees with arithmetic on their values."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.onnx_io.shapes.symbolic.elements import (
    Element,
    add,
    ceiling,
    divide,
    divide_up,
    divide_whole,
    equal,
    floor,
    is_true,
    larger,
    multiply,
    negative,
    opposite,
    smaller,
    subtract,
    truncated,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE: st.SearchStrategy[Element] = st.one_of(
    st.integers(-6, 9),
    st.sampled_from(["n", "m", "2*n", "n + 1", "m*n", "floor(n/2)", "n - 3"]),
)
PARTS: st.SearchStrategy[Element] = st.one_of(
    WHOLE, st.sampled_from([0.5, 0.25, 1.5, -2.0, 3.0, 0.1, 1e9])
)
DIMS = st.fixed_dictionaries({"n": st.integers(0, 9), "m": st.integers(0, 9)})


def value(element: Element, dims: dict[str, int]) -> float | None:
    if isinstance(element, str):
        found = bind_dim(element, dims)
        return found if isinstance(found, int) else None
    return element


OPERATORS: dict[Callable[[Element, Element], Element], Callable[[float, float], float]] = {
    add: operator.add,
    subtract: operator.sub,
    multiply: operator.mul,
    smaller: min,
    larger: max,
}


@pytest.mark.parametrize("one", OPERATORS, ids=lambda each: each.__name__)
@given(a=PARTS, b=PARTS, dims=DIMS)
def test_symbolic_elements_agree_with_their_numbers(
    one: Callable[[Element, Element], Element], a: Element, b: Element, dims: dict[str, int]
) -> None:
    found = value(one(a, b), dims)
    first, second = value(a, dims), value(b, dims)
    assert first is not None
    assert second is not None
    if found is not None:
        assert found == OPERATORS[one](first, second)


@pytest.mark.parametrize("one", [add, subtract, multiply], ids=lambda each: each.__name__)
@given(a=WHOLE, b=WHOLE)
def test_sums_and_products_of_whole_elements_are_known(
    one: Callable[[Element, Element], Element], a: Element, b: Element
) -> None:
    assert one(a, b) is not None
    assert one(None, b) is None
    assert one(a, None) is None


@given(a=WHOLE, b=st.integers(-3, 7), dims=DIMS)
def test_whole_quotients_are_those_of_what_is_not_negative(
    a: Element, b: int, dims: dict[str, int]
) -> None:
    first = value(a, dims)
    assert first is not None
    found = divide_whole(a, b)
    assert found is None or value(found, dims) == first // b
    if b <= 0:
        assert found is None
    elif isinstance(a, int) and a >= 0:
        assert found == a // b


@given(a=PARTS, b=st.sampled_from([1, 2, -2, 4, 3, 0, 0.5]), dims=DIMS)
def test_quotients_by_a_number_are_whole_or_rounded_up(
    a: Element, b: float, dims: dict[str, int]
) -> None:
    first = value(a, dims)
    assert first is not None
    found, rounded = value(divide(a, b), dims), value(divide_up(a, b), dims)
    if found is not None:
        assert found == first / b
    if rounded is not None:
        assert rounded == math.ceil(first / b)
    if b == 0:
        assert divide(a, b) is divide_up(a, b) is None
    elif isinstance(a, int) and isinstance(b, int):
        assert (found is None) == (a % b != 0)
        assert rounded is not None


@pytest.mark.parametrize("element", [0.1, 1e9, 1025.5, math.inf, math.nan, None])
def test_an_element_that_a_float_would_round_is_unknown(element: Element) -> None:
    assert negative(element) is None
    assert add(element, 1) is None


@pytest.mark.parametrize(("element", "expected"), [(1023.0, -1023), (3, -3)])
def test_negation_of_an_exact_float_is_known(element: Element, expected: Element) -> None:
    assert negative(element) == expected


@given(a=PARTS, b=PARTS, dims=DIMS)
def test_a_comparison_that_is_known_holds_for_all_dims(
    a: Element, b: Element, dims: dict[str, int]
) -> None:
    found = equal(a, b)
    first, second = value(a, dims), value(b, dims)
    assert first is not None
    assert second is not None
    assert found in {None, 0, 1}
    if found is not None:
        assert found == (first == second)
    elif isinstance(a, int) and isinstance(b, int):
        pytest.fail("two numbers can be compared")


@pytest.mark.parametrize(
    ("one", "a", "b", "expected"),
    [
        (equal, "n", "n", 1), (equal, "n", "n + 1", 0), (equal, "n + 2", "n", 0),
        (equal, "n", "m", None), (equal, "n", 0, None), (equal, None, 1, None),
        (larger, "n", "n + 1", "n + 1"), (smaller, "n", "n + 1", "n"), (larger, "n", 0, "n"), (smaller, "n", 0, 0),
        (larger, "n", "m", "max(m, n)"), (smaller, "n", None, None), (larger, 0.5, 2, None),
    ],
)  # fmt: skip
def test_an_order_that_holds_for_all_dims_is_known(
    one: Callable[[Element, Element], Element], a: Element, b: Element, expected: Element
) -> None:
    assert one(a, b) == expected


@pytest.mark.parametrize(("a", "expected"), [(0, 1), (1, 0), (None, None)])
def test_the_opposite_of_an_unknown_truth_value_is_unknown(
    a: Element, expected: Element
) -> None:
    assert opposite(a) == expected


@given(a=PARTS, dims=DIMS)
def test_roundings_are_those_of_numbers(a: Element, dims: dict[str, int]) -> None:
    first = value(a, dims)
    assert first is not None
    for one, meaning in ((floor, math.floor), (ceiling, math.ceil), (truncated, math.trunc)):
        found = one(a)
        assert value(found, dims) == meaning(first)
        assert not isinstance(found, float)


@pytest.mark.parametrize("one", [floor, ceiling, truncated])
def test_rounding_an_infinite_or_unknown_element_is_unknown(
    one: Callable[[Element], Element],
) -> None:
    assert one(math.inf) is None
    assert one(math.nan) is None
    assert one(None) is None


@pytest.mark.parametrize(
    ("a", "expected"), [(0, 0), (3, 1), (-1, 1), ("n", None), ("n + 1", 1)]
)
def test_a_nonzero_element_is_true(a: Element, expected: Element) -> None:
    assert is_true(a) == expected
