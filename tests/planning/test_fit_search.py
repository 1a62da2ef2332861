"""The largest value that fits is what a look at every value would find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.errors import SettingsError
from memplan_cli.planning.fit import (
    Confirmation,
    Fit,
    Need,
    Point,
    Question,
    guess_from_totals,
    largest,
)
from memplan_cli.planning.totals import LARGEST_DIM

if TYPE_CHECKING:
    from collections.abc import Callable


def needs(bytes_of: Callable[[int], int], asked: list[int]) -> Callable[[int], Need]:
    def need(value: int) -> Need:
        asked.append(value)
        return Need(0, 0, 0, bytes_of(value))

    return need


@given(
    limit=st.integers(0, 3000),
    guess=st.integers(1, 3000),
    each=st.integers(1, 7),
    fixed=st.integers(0, 40),
)
def test_the_largest_that_fits_is_found_from_any_guess(
    limit: int, guess: int, each: int, fixed: int
) -> None:
    asked: list[int] = []
    question = Question("n", limit)
    found = largest(needs(lambda n: fixed + each * n, asked), question, guess)
    fitting = [n for n in range(1, 3100) if fixed + each * n <= limit]
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert found.dims == {"n": fitting[-1]}
    assert found.total <= limit
    assert found.beyond is not None
    assert found.beyond > limit
    steps = abs(fitting[-1].bit_length() - guess.bit_length())
    assert len(asked) <= 30 + 4 * steps


@pytest.mark.parametrize("answer", [1, 7, 64, 1000, 123_456_789])
def test_a_good_guess_is_confirmed_in_four_looks(answer: int) -> None:
    asked: list[int] = []
    largest(needs(lambda n: n, asked), Question("n", answer), answer)
    assert len(asked) == 4


def test_a_far_guess_costs_a_step_for_each_factor_of_two() -> None:
    asked: list[int] = []
    largest(needs(lambda n: n, asked), Question("n", 1 << 20), 1)
    assert len(asked) <= 3 * 21
    asked.clear()
    largest(needs(lambda n: n, asked), Question("n", 1), 1 << 20)
    assert len(asked) <= 3 * 21


def test_what_no_value_changes_is_refused_by_its_name() -> None:
    with pytest.raises(SettingsError, match="does not depend on 'n'"):
        largest(needs(lambda _: 5, []), Question("n", 10))


def test_the_largest_dim_of_all_is_not_exceeded() -> None:
    found = largest(needs(lambda n: n, []), Question("n", LARGEST_DIM - 1), LARGEST_DIM)
    assert found is not None
    assert found.dims["n"] == LARGEST_DIM - 1


def test_a_size_without_a_need_does_not_fit() -> None:
    point = largest(lambda n: None if n > 7 else Need(0, 0, 0, 1), Question("n", 100))
    assert point is not None
    assert point.dims == {"n": 7}
    assert point.beyond is None


@pytest.mark.parametrize(
    ("totals", "limit", "expected"),
    [
        ({"n": 10}, 95, 9), ({"n": 10, "1": 20}, 95, 7), ({"n": 10}, 9, 1),
        ({"1": 5}, 9, 1), ({"n*n": 1}, 80, 8), ({"(n + 1)*n": 2}, 60, 5), ({"m*n": 2}, 60, 1),
    ],
)  # fmt: skip
def test_a_sum_by_unit_is_solved_without_a_plan(
    totals: dict[str, int], limit: int, expected: int
) -> None:
    assert guess_from_totals(totals, Question("n", limit)) == expected


def fit(confirmed: Confirmation | None, memory: int = 100) -> Fit:
    point = Point.of(Need(1, 2, 3, 4), {"n": 4}, Need(1, 2, 3, 5), 10)
    return Fit("a.onnx", memory, 10, 0, None, "n", {}, point, None, confirmed=confirmed)


def test_a_run_that_takes_more_than_the_memory_fails_the_fit() -> None:
    run = Confirmation({"n": 4}, "cpu", 60, 30, "process", 1, total=100)
    assert fit(run).passed
    assert not fit(run, 99).passed


def test_the_overhead_counts_in_the_limit_and_in_what_is_beyond() -> None:
    point = largest(needs(lambda n: n, []), Question("n", memory=100, overhead=10))
    assert point is not None
    assert (point.total, point.beyond) == (90, 101)
