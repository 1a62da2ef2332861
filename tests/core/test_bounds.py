"""Upper bounds of products whose factors depend on each other are never too low."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from memplan_cli.core.symbolic.bounds import DimRange, largest_size
from memplan_cli.core.symbolic.sizes import bind_dim, size_of

BOUNDS = {"a": DimRange(1, 9), "b": DimRange(2, 7)}

LEAVES = st.sampled_from(["a", "b", "1", "3", "20", "2*a", "a*b", "a + b", "a*b + 3*a"])


def calls(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda each: f"min({each[0]}, {each[1]})"),
        pair.map(lambda each: f"max({each[0]}, {each[1]})"),
        pair.map(lambda each: f"floor(({each[0]})/({each[1]} + 1))"),
        pair.map(lambda each: f"ceiling(({each[0]})/({each[1]} + 1))"),
        pair.map(lambda each: f"ceiling(({each[0]})/(ceiling(({each[0]})/({each[1]} + 1))))"),
        pair.map(lambda each: f"ceiling(({each[0]})/(ceiling(({each[1]})/(a + 1))))"),
    )


EXPRESSIONS = st.recursive(LEAVES, calls, max_leaves=5)


def all_sizes(dims: tuple[str, ...]) -> list[int | None]:
    """Return the bytes at every value; None where something is divided by zero."""
    found = []
    for values in product(*(limits.values for limits in BOUNDS.values())):
        known = dict(zip(BOUNDS, values, strict=True))
        size = size_of(tuple(bind_dim(dim, known) for dim in dims), "int8")
        found.append(None if size is None or size.symbols else size.coefficient)
    return found


@settings(max_examples=24, deadline=None)
@example(["ceiling((a)/(ceiling((floor((1)/(1 + 1)))/(a + 1))))"])
@given(st.lists(EXPRESSIONS, min_size=1, max_size=3))
def test_no_size_within_bounds_is_above_the_bound(dims: list[str]) -> None:
    size = size_of(tuple(dims), "int8")
    if size is None:
        return
    bound = largest_size(size, BOUNDS)
    found = all_sizes(tuple(dims))
    if bound.symbols:
        assert None in found
    else:
        assert bound.coefficient >= max(size or 0 for size in found)


def test_one_symbol_without_bounds_stays() -> None:
    size = size_of(("min(a, c)", "c"), "int8")
    assert size is not None
    assert largest_size(size, BOUNDS).symbols
