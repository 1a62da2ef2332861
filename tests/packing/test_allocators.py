"""Every allocator, every promise. `MEMPLAN_EXAMPLES=10000` tries as many problems."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan_cli.core.problem import (
    Buffer,
    Layout,
    LiveRange,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.packing import ALLOCATORS, portfolio
from memplan_cli.packing.pieces import reduce_problem
from memplan_cli.packing.search.exact import Answer, Searcher
from packing_problems import full_problems, problems, tiny_problems

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Piece

EXAMPLES = int(os.environ.get("MEMPLAN_EXAMPLES", "30"))

every_allocator = pytest.mark.parametrize("name", list(ALLOCATORS))
# The first search of a process loads compiled code, which takes longer than any example.
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@every_allocator
@many
@given(problem=problems())
def test_layout_is_safe_and_between_the_bound_and_no_reuse(
    name: str, problem: Problem
) -> None:
    layout = ALLOCATORS[name](problem)
    assert violations(problem, layout) == ()
    assert lower_bound(problem) <= layout.height <= ALLOCATORS["naive"](problem).height


@every_allocator
@many
@given(problem=problems())
def test_same_problem_gives_same_layout(name: str, problem: Problem) -> None:
    assert ALLOCATORS[name](problem) == ALLOCATORS[name](problem)


@many
@given(problem=problems())
def test_portfolio_is_never_taller_than_any_other(problem: Problem) -> None:
    heights = {name: allocate(problem).height for name, allocate in ALLOCATORS.items()}
    assert heights["portfolio"] == min(heights.values()), heights


@many
@given(problem=problems())
def test_levels_are_ordered(problem: Problem) -> None:
    heights = [ALLOCATORS[name](problem).height for name in ("level1", "level0", "naive")]
    assert heights == sorted(heights)


@many
@given(problem=st.one_of(tiny_problems(), full_problems()))
def test_a_proved_height_is_the_least_there_is(problem: Problem) -> None:
    layout = portfolio(problem)
    assert layout.proved, "a handful of buffers can be searched to the end"
    assert layout.height == _least_height(problem)


@settings(many, max_examples=3 * EXAMPLES)
@given(problem=st.one_of(tiny_problems(), full_problems()))
def test_the_search_answers_yes_exactly_if_a_layout_exists(problem: Problem) -> None:
    for piece in reduce_problem(problem).pieces:
        searcher = Searcher(piece)  # which remembers failures from one capacity to the next
        for capacity in range(piece.load - 1, piece.load + 3):
            answer, offsets = searcher.fit(capacity, WorkBudget(10**8))
            expected = _fits(_problem(piece), capacity, ())
            assert answer is (Answer.YES if expected else Answer.NO)
            if expected:
                layout = Layout(dict(zip(piece.ids, offsets, strict=True)), capacity)
                assert violations(_problem(piece), layout) == ()


def _problem(piece: Piece) -> Problem:
    spans = zip(piece.ids, piece.start, piece.end, piece.size, strict=True)
    return Problem(tuple(Buffer(i, z, LiveRange(s, e)) for i, s, e, z in spans))


def _least_height(problem: Problem) -> int:
    return next(h for h in count(lower_bound(problem)) if _fits(problem, h, ()))


def _fits(problem: Problem, height: int, offsets: tuple[int, ...]) -> bool:
    """Try every offset of every buffer: slow, and simple enough to be believed."""
    if len(offsets) == len(problem.buffers):
        return True
    buffer = problem.buffers[len(offsets)]
    taken = [
        (offset, offset + other.size)
        for other, offset in zip(problem.buffers, offsets, strict=False)
        if other.live.start < buffer.live.end and buffer.live.start < other.live.end
    ]
    return any(
        _fits(problem, height, (*offsets, offset))
        for offset in range(height - buffer.size + 1)
        if all(offset + buffer.size <= low or high <= offset for low, high in taken)
    )
