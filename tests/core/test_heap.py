"""Freed memory goes back to the system where the C library can do that, and only for much."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from memplan_cli.core.compact import heap


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_where_the_c_library_cannot_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    asked = []

    def library(name: str | None) -> Any:  # noqa: ANN401 - as ctypes'
        asked.append(name)
        raise error

    monkeypatch.setattr(ctypes, "CDLL", library)
    heap._trim.cache_clear()
    heap.give_back()
    heap._trim.cache_clear()
    assert asked == [None]


def test_a_small_graph_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(heap, "_trim", lambda: given.append)
    heap.give_back(heap.LARGE - 1)
    assert given == []
    heap.give_back(heap.LARGE)
    assert given == [0]
