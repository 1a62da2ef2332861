"""What sizes promise, they promise for every value of their symbols."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.core.symbolic.sizes import Size, canonical_dim, size_of

SYMBOLS = ("a", "b", "c")
dims = st.one_of(
    st.integers(0, 9), st.sampled_from(SYMBOLS), st.sampled_from(("a + 1", "2*b", "a*c"))
)
shapes = st.lists(dims, max_size=4).map(tuple)
values = st.fixed_dictionaries({name: st.integers(0, 50) for name in SYMBOLS})


def number(size: Size, bound: dict[str, int]) -> int:
    """Evaluate a size without its own code."""
    values: list[int] = [eval(s, {}, dict(bound)) for s in size.symbols]  # noqa: S307 - test expressions
    return size.coefficient * prod(values)


@given(one=shapes, other=shapes, bound=values)
def test_of_one_unit_the_smaller_number_is_smaller_for_all_values(
    one: tuple[int | str, ...], other: tuple[int | str, ...], bound: dict[str, int]
) -> None:
    small, large = size_of(one, "float32"), size_of(other, "float32")
    assert small is not None
    assert large is not None
    if small.unit == large.unit and small.coefficient <= large.coefficient:
        assert number(small, bound) <= number(large, bound)


@given(shape=shapes, bound=values)
def test_a_size_is_the_product_of_its_dims(
    shape: tuple[int | str, ...], bound: dict[str, int]
) -> None:
    size = size_of(shape, "int16")
    assert size is not None
    expected = 2 * prod(eval(str(dim), {}, dict(bound)) for dim in shape)  # noqa: S307 - test expressions
    assert number(size, bound) == expected
    assert size.bind(bound) == Size(expected)


@given(shape=shapes, bound=values, chosen=st.sets(st.sampled_from(SYMBOLS)))
def test_binding_in_two_steps_is_binding_at_once(
    shape: tuple[int | str, ...], bound: dict[str, int], chosen: set[str]
) -> None:
    size = size_of(shape, "int8")
    assert size is not None
    first = {name: value for name, value in bound.items() if name in chosen}
    rest = {name: value for name, value in bound.items() if name not in chosen}
    assert size.bind(first).bind(rest) == size.bind(bound)


@given(shape=shapes)
def test_a_size_does_not_depend_on_the_order_of_the_dims(shape: tuple[int | str, ...]) -> None:
    assert size_of(shape, "int8") == size_of(tuple(reversed(shape)), "int8")


@given(text=st.text(max_size=40))
def test_any_text_is_a_dim_with_one_canonical_form(text: str) -> None:
    once = canonical_dim(text)
    assert canonical_dim(str(once)) == once
