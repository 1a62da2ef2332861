"""Sums by unit: what is a number, at which dims, and what is not."""

from __future__ import annotations

import pytest

from memplan_cli.core.problem import Buffer, BufferId, LiveRange
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.planning.totals import by_unit, in_bytes, number, number_at, summed

ONE = Buffer(BufferId("a"), 4, LiveRange(0, 1))


def test_sizes_add_up_by_unit_and_nothing_is_no_entry() -> None:
    sizes = [Size(4), Size(2, ("n",)), Size(3, ("n",)), Size(0, ("m",)), Size(0)]
    assert by_unit(sizes) == {"n": 5, "1": 4}
    assert by_unit([Size(0)]) == {}


def test_sums_add_up_by_unit() -> None:
    assert summed({"1": 4, "n": 2}, {}, {"n": 3, "m": 1}) == {"1": 4, "n": 5, "m": 1}


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        ({"1": 4}, 4), ({}, 0), (None, None), ({"1": 4, "n": 2}, None), ({"n": 2}, None),
        ({"1": 4, "n": 0}, 4), ({"n": 0}, 0), ({"n": 0, "m": 1, "1": 2}, None),
    ],
)  # fmt: skip
def test_a_sum_is_a_number_where_no_symbol_counts(
    total: dict[str, int] | None, expected: int | None
) -> None:
    assert number(total) == expected


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        ({"1": 4, "n": 2}, 10), ({"m*n": 2}, None), ({"m": 0, "n": 1}, 3), (None, None),
        ({}, 0), ({"n*n": 2}, 18),
    ],
)  # fmt: skip
def test_a_sum_has_a_number_where_each_symbol_that_counts_has_one(
    total: dict[str, int] | None, expected: int | None
) -> None:
    assert number_at(total, {"n": 3}) == expected


def test_buffers_have_bytes_where_their_unit_has_a_number() -> None:
    units = {"1": [ONE], "n": [ONE._replace(id=BufferId("b"))]}
    assert in_bytes(units, {"n": 3}) == (ONE, ONE._replace(id=BufferId("b"), size=12))
    assert in_bytes(units, {}) is None
