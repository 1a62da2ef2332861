from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from memplan_cli.core.check import Tolerance
from memplan_cli.runtime.workers.outputs import array_difference

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT = Tolerance()


def test_nan_equals_nan_whatever_its_payload() -> None:
    quiet = np.array([1.0, np.nan], np.float32)
    other = quiet.copy()
    other.view(np.uint32)[1] ^= 1
    assert array_difference("y", quiet, other, EXACT) is None


def test_nan_in_one_only_is_a_difference() -> None:
    found = array_difference("y", np.array([np.nan]), np.array([1.0]), EXACT)
    assert found is not None
    assert found.max_abs_diff == float("inf")


def test_minus_zero_is_not_zero() -> None:
    found = array_difference("y", np.array([-0.0]), np.array([0.0]), EXACT)
    assert found is not None
    assert (found.elements, found.beyond, found.max_abs_diff) == (1, 1, 0.0)


def test_one_changed_bit_is_found_and_measured() -> None:
    wanted = np.ones(3_000_000, np.float32)
    got = wanted.copy()
    got[2_999_999] += np.float32(0.25)
    found = array_difference("y", got, wanted, EXACT)
    assert found is not None
    assert (found.elements, found.max_abs_diff) == (1, 0.25)


def test_the_tolerance_excuses_what_is_near_and_still_counts_it() -> None:
    wanted = np.array([1.0, 100.0])
    found = array_difference(
        "y", wanted + np.array([0.05, 2.0]), wanted, Tolerance(rtol=0.01, atol=0.1)
    )
    assert found is not None
    assert (found.elements, found.beyond) == (2, 1)


@pytest.mark.parametrize("other", [np.ones((2, 3)), np.ones((3, 2), np.float32)])
def test_another_shape_or_type_is_a_difference_with_a_reason(other: NDArray[Any]) -> None:
    found = array_difference("y", other, np.ones((2, 3), np.float32), EXACT)
    assert found is not None
    assert "instead of" in found.reason
    assert found.beyond


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("tolerance", [Tolerance(rtol=0.01), Tolerance(atol=0.1)])
def test_no_tolerance_excuses_another_value_than_infinity(tolerance: Tolerance) -> None:
    wanted = np.array([np.inf, np.inf, -np.inf, 1.0, 1.0], np.float32)
    actual = np.array([1.0, np.nan, np.inf, np.inf, np.nan], np.float32)
    found = array_difference("y", actual, wanted, tolerance)
    assert found is not None
    assert found.beyond == found.elements == 5


def test_strings_are_compared() -> None:
    found = array_difference("y", np.array(["a", "b"]), np.array(["a", "c"]), EXACT)
    assert found is not None
    assert found.elements == 1
