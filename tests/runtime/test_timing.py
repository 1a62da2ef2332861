"""What is rejected for its time was slower twice, and so was not just unlucky."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from memplan_cli.core.results.observations import Peaks, RuntimeSettings
from memplan_cli.runtime.measuring import timing
from memplan_cli.runtime.measuring.measure import Trial
from memplan_cli.runtime.measuring.timing import Timed, is_slower, second_look

TRIAL = Trial(provider="cpu")


def timed(milliseconds: float, effort: float | None) -> Peaks:
    return Peaks(1, 1, milliseconds=milliseconds, effort=effort)


def test_processor_time_decides_who_is_slower_and_else_the_clock() -> None:
    assert not is_slower(timed(30.0, 10.2), timed(10.0, 10.0)), "the machine was busy"
    assert is_slower(timed(10.0, 13.0), timed(30.0, 10.0))
    assert is_slower(timed(30.0, None), timed(10.0, 10.0))
    assert not is_slower(timed(10.4, None), timed(10.0, None))
    assert not is_slower(timed(0.09, 0.09), timed(0.01, 0.01)), "clocks are no finer"


def run(name: str, effort: float | None, milliseconds: float = 1.0) -> Timed:
    return Timed(Path(name), RuntimeSettings(), timed(milliseconds, effort))


Install = Callable[[Mapping[str, Peaks]], list[str]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Install:
    """What the machine says when it is asked again, and who was asked about."""

    def install(times: Mapping[str, Peaks]) -> list[str]:
        asked: list[str] = []

        def measure(model: Path, _: RuntimeSettings, __: Trial) -> Peaks:
            asked.append(model.name)
            return times[model.name]

        monkeypatch.setattr(timing, "measure", measure)
        return asked

    return install


def test_nobody_is_timed_again_where_nobody_seems_slower(machine: Install) -> None:
    asked = machine({})
    before, after = run("before", 10.0), run("after", 10.4)
    assert second_look(before, after, trial=TRIAL) == (before.peaks, after.peaks)
    assert asked == []


def test_who_was_unlucky_once_is_not_slower(machine: Install) -> None:
    asked = machine({"before": timed(1.0, 12.0), "after": timed(1.0, 10.2)})
    before, after = second_look(run("before", 10.0), run("after", 15.0), trial=TRIAL)
    assert asked == ["before", "after"]
    assert (before.effort, after.effort) == (10.0, 10.2)
    assert not is_slower(after, before)


def test_what_it_is_held_against_may_have_been_lucky_with_everybody(machine: Install) -> None:
    machine({name: timed(1.0, 10.0) for name in ("before", "after", "other")})
    runs = (run("after", 15.0), run("other", 12.0))
    times = second_look(run("before", 14.0), *runs, trial=TRIAL)
    assert [peaks.effort for peaks in times] == [10.0, 10.0, 10.0]


def test_who_is_slower_twice_is_slower(machine: Install) -> None:
    machine({"before": timed(1.0, 10.0), "after": timed(1.0, 13.0)})
    before, after = second_look(run("before", 10.0), run("after", 15.0), trial=TRIAL)
    assert is_slower(after, before)


def test_the_clock_is_looked_at_again_where_nothing_else_is_known(machine: Install) -> None:
    machine({"before": timed(10.0, None), "after": timed(10.1, None)})
    runs = (run("before", None, 11.0), run("after", None, 20.0))
    before, after = second_look(*runs, trial=TRIAL)
    assert (before.milliseconds, after.milliseconds) == (10.0, 10.1)
    assert (before.effort, after.effort) == (None, None)
