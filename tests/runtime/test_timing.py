"""Which of two times is the longer one for certain."""

from __future__ import annotations

from memplan_cli.core.results.observations import Peaks
from memplan_cli.runtime.run.timing import is_far_slower, is_slower


def timed(milliseconds: float, effort: float | None) -> Peaks:
    return Peaks(1, 1, milliseconds=milliseconds, effort=effort)


def test_processor_time_decides_who_is_slower_and_else_the_clock() -> None:
    assert not is_slower(timed(30.0, 10.2), timed(10.0, 10.0)), "the machine was busy"
    assert is_slower(timed(10.0, 13.0), timed(30.0, 10.0))
    assert is_slower(timed(30.0, None), timed(10.0, 10.0))
    assert not is_slower(timed(10.4, None), timed(10.0, None))
    assert not is_slower(timed(0.09, 0.09), timed(0.01, 0.01)), "clocks are no finer"


def test_a_few_runs_tell_only_what_is_far_slower() -> None:
    assert not is_far_slower(timed(12.5, 12.5), timed(10.0, 10.0))
    assert is_far_slower(timed(14.0, 14.0), timed(10.0, 10.0))
    assert not is_far_slower(timed(0.9, 0.9), timed(0.1, 0.1)), "clocks are no finer"
    assert not is_far_slower(Peaks(1, 1), timed(10.0, 10.0))
