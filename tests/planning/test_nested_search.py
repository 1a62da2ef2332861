"""Random models with If, Loop and Scan: orders, lifetimes and packings by brute force."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nested.models import random_model
from nested.search import lowest, searched

if TYPE_CHECKING:
    from pathlib import Path


def _check(seeds: range, folder: Path) -> None:
    found = [searched(seed, folder) for seed in seeds]
    assert [each.faults for each in found if each.faults] == []
    # Where nothing can be tried as a whole, nothing is shown.
    assert sum(each.orders > 0 for each in found) > len(found) // 4
    assert sum(each.packed for each in found) > len(found) // 8


@pytest.mark.parametrize("start", [0, pytest.param(12, marks=pytest.mark.slow)])
def test_no_search_contradicts_the_plan_of_a_nested_model(start: int, tmp_path: Path) -> None:
    _check(range(start, start + 12), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(24, 1024, 100))
def test_no_search_contradicts_a_thousand_nested_models(start: int, tmp_path: Path) -> None:
    _check(range(start, start + 100), tmp_path)


def test_the_random_models_have_every_kind_of_subgraph() -> None:
    kinds = {node.op_type for seed in range(24) for node in random_model(seed).graph.node}
    assert {"If", "Loop", "Scan"} <= kinds


def test_the_least_height_is_found_where_greedy_placing_misses_it() -> None:
    boxes = [(0, 2, 2), (1, 3, 2), (2, 4, 4), (3, 5, 1)]
    assert lowest(boxes) == 6
    assert lowest([(0, 1, 5), (1, 2, 5)]) == 5
    assert lowest([]) == 0
