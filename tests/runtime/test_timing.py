"""Which of two times is the longer one for certain."""

from __future__ import annotations

from memplan_cli.core.results.observations import Peaks
from memplan_cli.runtime.run.timing import is_slower, seems_slower


def timed(milliseconds: float, effort: float | None) -> Peaks:
    return Peaks(1, 1, milliseconds=milliseconds, processor_milliseconds=effort)


def test_processor_time_decides_who_is_slower_and_else_the_clock() -> None:
    assert not is_slower(timed(30.0, 10.2), timed(10.0, 10.0)), "the machine was busy"
    assert is_slower(timed(10.0, 13.0), timed(30.0, 10.0))
    assert is_slower(timed(30.0, None), timed(10.0, 10.0))
    assert not is_slower(timed(10.4, None), timed(10.0, None))
    assert not is_slower(timed(0.09, 0.09), timed(0.01, 0.01)), "clocks are no finer"


def test_runs_that_seem_over_five_percent_and_a_millisecond_slower_are_timed_in_turn() -> None:
    assert not seems_slower(timed(41.9, 41.9), timed(40.0, 40.0))
    assert seems_slower(timed(42.1, 42.1), timed(40.0, 40.0))
    assert not seems_slower(timed(1.9, 1.9), timed(1.0, 1.0)), (
        "less than a millisecond is noise"
    )
    assert not seems_slower(Peaks(1, 1), timed(10.0, 10.0)), "a time is not known"
