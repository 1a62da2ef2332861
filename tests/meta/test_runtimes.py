"""The comparison of runtimes: how outputs are compared, and what the page's tables say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.runtimes import RUNTIMES, difference
from benchmarks.runtimes_page import failures, lower_elsewhere, summary


def row(name: str, **parts: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a network whose runtimes all have the figures of the defaults."""
    usual = {
        "load": 10e6, "run": 20e6, "private": 5e6, "whole": 60e6, "create": 0.5,
        "file": 1e6, "spread": 0.0, "bits": "a", "difference": 0.0,
    }  # fmt: skip
    parts = {each: parts.get(each, {}) for each in RUNTIMES}
    times = {each: 8.0 for each, part in parts.items() if "error" not in part}
    rows = {each: part if "error" in part else usual | part for each, part in parts.items()}
    return {"name": name, "times": times, **rows}


def test_equal_outputs_differ_by_nothing() -> None:
    values = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    assert difference([values], [values]) == 0.0


def test_a_difference_is_a_share_of_the_largest_value_of_its_output() -> None:
    expected = [np.array([[1.0, -8.0]]), np.array([100.0])]
    assert difference(expected, [np.array([[1.0, -6.0]]), np.array([101.0])]) == 0.25


def test_a_missing_batch_axis_and_channels_that_are_last_are_no_difference() -> None:
    image = np.random.default_rng(0).random((1, 3, 4, 5), np.float32)
    assert difference([image], [image[0]]) == 0.0
    assert difference([image], [np.moveaxis(image, 1, -1)]) == 0.0


def test_an_output_that_is_not_a_number_differs() -> None:
    assert math.isnan(difference([np.array([1.0, 2.0])], [np.array([1.0, np.nan])]))


def test_outputs_of_another_size_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="has the shape"):
        difference([np.zeros((1, 3))], [np.zeros((1, 4))])


def test_means_are_of_the_networks_that_a_runtime_has_run() -> None:
    rows = [
        row("small", memplan={"run": 5e6}, tract={"error": "RuntimeError: no such operator"}),
        row(
            "large",
            memplan={"run": 20e6},
            tract={"run": 30e6, "bits": "b", "difference": 1e-6},
        ),
    ]
    lines = [*summary(rows, "defaults", "runtime")]
    memplan = next(line for line in lines if line.startswith("| memplan"))
    tract = next(line for line in lines if line.startswith("| tract"))
    assert memplan == (
        "| memplan, `--target cpu` | 2 | 1.000 | 0.500 | 1.000 | 1.000 | 1.000 | 1.000 "
        "| same bits |"
    )
    assert tract == "| tract | 1 | 1.000 | 1.500 | 1.000 | 1.000 | 1.000 | 1.000 | 1.0e-06 |"


def test_the_runtime_that_needs_least_is_named_where_it_is_not_memplan() -> None:
    rows = [row("small", mnn={"run": 9e6}, ncnn={"run": 8e6}), row("equal")]
    lines = [*lower_elsewhere(rows)]
    assert lines[2:] == ["| small |  | ncnn: 8.0 of 20.0 |  |  |  |  |"]


def test_a_failure_is_a_row_with_its_last_message_without_paths() -> None:
    error = "RuntimeError: 1: Traceback\n  in /x.py\nValueError: no a|b in /x/y/m.onnx\nSee: more\n"
    lines = [*failures([row("small", tract={"error": error})])]
    assert lines[2:] == ["| tract | small | ValueError: no a/b in m.onnx |"]
