"""Filling of gaps by first fit, against a reference; and the cache of compiled loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli.packing import compiled
from memplan_cli.packing.bottleneck import NOWHERE, fill
from memplan_cli.packing.pieces import Piece, reduce_problem
from packing_problems import problems

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from memplan_cli.core.problem import Problem


def lowest(piece: Piece, offsets: list[int], index: int) -> int:
    """Return the lowest offset at which a buffer overlaps nothing that is placed."""
    spans = [
        (offset, offset + piece.size[other])
        for other, offset in enumerate(offsets)
        if offset >= 0
        and piece.start[other] < piece.end[index]
        and piece.start[index] < piece.end[other]
    ]
    tops = sorted({0} | {top for _, top in spans})
    return next(
        at
        for at in tops
        if all(top <= at or at + piece.size[index] <= floor for floor, top in spans)
    )


@settings(deadline=None, max_examples=60)
@given(problem=problems(), data=st.data())
def test_fill_places_each_buffer_at_its_lowest_free_offset(
    problem: Problem, data: st.DataObject
) -> None:
    for piece in reduce_problem(problem).pieces:
        count = len(piece.size)
        order = data.draw(st.permutations(range(count)))
        fixed = [NOWHERE] * count
        for index in data.draw(st.lists(st.integers(0, count - 1), unique=True)):
            fixed[index] = lowest(piece, fixed, index)
        expected = list(fixed)
        for index in order:
            if expected[index] < 0:
                expected[index] = lowest(piece, expected, index)
        start, end, size = (np.array(each) for each in (piece.start, piece.end, piece.size))
        found = np.array(fixed)
        stacked = np.argsort(found, kind="stable")
        height = fill(start, end, size, found, stacked, np.array(order))
        assert found.tolist() == expected
        assert sorted(stacked.tolist()) == list(range(count))
        assert found[stacked].tolist() == sorted(expected)
        assert height == max(
            at + units for at, units in zip(expected, piece.size, strict=True)
        )


def test_a_function_without_a_cache_folder_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop() -> None:
        """Do nothing; numba has not compiled it."""

    (tmp_path / "a.loop-1.py311.nbc").write_text("")
    monkeypatch.chdir(tmp_path)
    assert not compiled.is_cached(loop)
