"""The table of settings says why a figure is not smaller, from what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.runtime_tables import mean, reason, tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = Mapping[str, Any]


def part(first: int, held: int, bound: int | None = None, graph: str = "runtime's") -> Row:
    observed = {"first_run_peak": first, "held": held, "weights": 0, "scratch": 7}
    return {
        "observed": observed,
        "bound": bound,
        "graph": graph,
        "bits": True,
        "outputs": "passed",
    }


def ratios(row: Row, name: str) -> tuple[float | None, ...]:
    if "error" in row.get(name, {"error": ""}):
        return None, None, None, None
    ours, theirs = (row[p]["observed"] for p in (name, "default"))
    return ours["first_run_peak"] / theirs["first_run_peak"], None, None, None


def test_a_peak_at_its_bound_is_proved() -> None:
    row = {"name": "m", "default": part(100, 100), "cpu": part(80, 80, bound=80)}
    assert reason(row, ratios) == "peak: no order of this graph needs less (proved)"


def test_a_peak_above_its_bound_says_by_how_much_and_what_the_arena_wastes() -> None:
    row = {"name": "m", "default": part(9 << 20, 1), "cpu": part(8 << 20, 12 << 20, 6 << 20)}
    said = reason(row, ratios)
    assert "the bound is 0.75 of it" in said
    assert "arena: 1.50 of the peak, kernels' workspace 7 bytes" in said


def test_more_than_the_defaults_is_never_passed_over() -> None:
    row = {"name": "m", "default": part(100, 100), "cpu": part(101, 101, bound=101)}
    assert reason(row, ratios).endswith("above the defaults")


def test_means_are_geometric_and_what_was_not_measured_is_left_out() -> None:
    assert mean([0.5, 2.0, None]) == pytest.approx(1.0)
    assert mean([None]) is None


def test_a_failure_is_a_row_and_not_a_figure() -> None:
    good = {"name": "a", "default": part(100, 1), "cpu": part(50, 1, 50)}
    good |= {"settings": part(60, 1), "portable": part(70, 1)}
    failed = {"name": "b", "default": {"error": "too slow"}}
    text = tables([good, failed], ratios)
    assert "| a | 0.600 |" in text
    assert "| a | 100 | 70 | 0.700 | yes |" in text
    assert "Not measured: b (too slow)." in text
    assert "| b |" not in text
