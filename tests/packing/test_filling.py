"""What is filled in, and how buffers are kept in order, against the plain way to do it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli.packing import compiled, lowering
from memplan_cli.packing.bottleneck import fill
from memplan_cli.packing.budget import Found
from memplan_cli.packing.lowering import Lowering
from memplan_cli.packing.pieces import NOWHERE, Piece, reduce
from packing_problems import problems

if TYPE_CHECKING:
    from collections.abc import Callable

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
def test_each_buffer_is_filled_in_at_its_lowest_place(
    problem: Problem, data: st.DataObject
) -> None:
    for piece in reduce(problem).pieces:
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


def test_a_loop_without_a_cache_is_not_kept_whatever_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop() -> None:
        """Do nothing; numba has not compiled it."""

    (tmp_path / "a.loop-1.py311.nbc").write_text("")
    monkeypatch.chdir(tmp_path)
    assert not compiled.is_kept(loop)


def test_compiled_loops_lie_beside_the_code_or_where_numba_is_told() -> None:
    folder: Callable[[str], Path] = compiled._folder.__wrapped__
    beside = Path(compiled.__file__).parent / "__pycache__"
    assert folder("").parent == beside
    assert folder("/elsewhere").parent == Path("/elsewhere")
    assert folder("").name == folder("/elsewhere").name


@pytest.mark.parametrize(
    ("name", "question"),
    [("REPAIR_BUFFERS", "_is_fitted"), ("BOTTLENECK_BUFFERS", "_has_bottleneck")],
)
def test_a_limit_of_buffers_is_the_most_there_may_be(
    name: str, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = Piece(("a", "b"), (0, 0), (1, 1), (1, 1), (2,))  # type: ignore[arg-type]
    asked = getattr(Lowering(piece, lambda _: None), question)
    best = Found((0, 2), 3, 2)
    monkeypatch.setattr(lowering, name, 2)
    assert asked(best)
    monkeypatch.setattr(lowering, name, 1)
    assert not asked(best)
