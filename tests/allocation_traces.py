"""Allocation traces for tests: written by hand, or drawn by hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from memplan_cli.runtime.simulate.trace import AllocationTrace, TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Iterable


def trace_of(*events: int, unit: int = 1) -> AllocationTrace:
    """Return a trace: a positive event allocates so many units, ``-n`` frees the n-th allocation."""
    recorder = TraceRecorder()
    allocations: list[int] = []
    for event in events:
        if event > 0:
            allocations.append(recorder.allocate(event * unit))
        else:
            recorder.free(allocations[-event - 1])
    return recorder.trace()


def trace_of_pairs(pairs: Iterable[tuple[int, int]], unit: int) -> AllocationTrace:
    """Allocate so many units in turn, and free the n-th live allocation after each.

    If fewer than ``n`` are live, nothing is freed. In the end all are.
    """
    recorder = TraceRecorder()
    live: list[int] = []
    for size, number in pairs:
        live.append(recorder.allocate(size * unit))
        if number < len(live):
            recorder.free(live.pop(number))
    for index in live:
        recorder.free(index)
    return recorder.trace()


@st.composite
def traces(draw: st.DrawFn) -> AllocationTrace:
    """Draw runs that free everything in the end."""
    recorder = TraceRecorder()
    for index in _drawn_requests(draw, recorder, smallest=1):
        recorder.free(index)
    return recorder.trace()


@st.composite
def traces_that_keep_some(draw: st.DrawFn) -> AllocationTrace:
    """Draw runs that may keep some allocations, and have some of no bytes."""
    recorder = TraceRecorder()
    live = _drawn_requests(draw, recorder, smallest=0)
    for index in live[draw(st.integers(0, len(live))) :]:
        recorder.free(index)
    return recorder.trace()


def _drawn_requests(draw: st.DrawFn, recorder: TraceRecorder, smallest: int) -> list[int]:
    """Record allocations and frees, and return what is live."""
    live: list[int] = []
    for _ in range(draw(st.integers(1, 30))):
        live.append(recorder.allocate(draw(st.integers(smallest, 64 << 8))))
        if draw(st.booleans()):
            recorder.free(live.pop(draw(st.integers(0, len(live) - 1))))
    return live
