"""Comparisons of the times of two models that a busy machine does not mislead."""

from __future__ import annotations

from statistics import quantiles
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import TimeRatio
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.workers.spec import RunSpec

if TYPE_CHECKING:
    from memplan_cli.core.results.observations import Peaks
    from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

SLOWEST = 1.05
"""How much longer than under the defaults a run may take for the sake of memory."""

ROUNDS = 5
"""Times that two models are timed in turn."""

_FAR = 1.3
"""A ratio that a busy machine hardly ever makes of equal times in the median of a few runs."""

_UNSURE = 1.0
"""Milliseconds that say nothing in a few runs."""

_CLOCK = 0.1
"""Milliseconds that two medians of short runs differ by on a busy machine."""


def time_ratio(
    before: SessionSpec, after: SessionSpec, inputs: InputSet, timeout: float
) -> TimeRatio | None:
    """Return how much longer a run takes in one session than in another, both timed in turn.

    Processor time is compared if both have it, as in `is_slower`. None if a round has no time.

    Raises:
        RuntimeUnavailableError: a model that has run does not run again.
    """
    found = []
    for _ in range(ROUNDS):
        then, now = (_time_of(session, inputs, timeout) for session in (before, after))
        both = (now.effort, then.effort)
        if None in both:
            both = (now.milliseconds, then.milliseconds)
        new, old = both
        if new is not None and old:
            found.append(new / old)
    if len(found) < ROUNDS:
        return None
    low, median, high = quantiles(found, n=4, method="inclusive")
    return TimeRatio(round(median, 3), round(low, 3), round(high, 3), ROUNDS)


def _time_of(session: SessionSpec, inputs: InputSet, timeout: float) -> Peaks:
    spec = RunSpec(session, (inputs,), ("time",), runs=0)
    what = f"{session.model} could not be measured"
    return run_model(spec, timeout=timeout).require(what).peaks


def slower_note(ratio: TimeRatio | None) -> str:
    """Return a warning if a written model is slower than allowed; else nothing."""
    if ratio is None or ratio.median <= SLOWEST:
        return ""
    return (
        f"a run of the written model takes {ratio.median:.2f} of the original's time "
        f"({ratio.low:.2f} to {ratio.high:.2f}, the quartiles of {ratio.rounds} rounds in turn)"
    )


def is_slower(after: Peaks, before: Peaks) -> bool:
    """Return whether a run takes more than five per cent longer than before.

    Processor time decides if both have it and work is done by the processor alone: on a busy
    machine the clock shows how busy it is.
    """
    if after.effort is not None and before.effort is not None:
        return after.effort > max(SLOWEST * before.effort, before.effort + _CLOCK)
    now, then = after.milliseconds or 0.0, before.milliseconds or 0.0
    return now > max(SLOWEST * then, then + _CLOCK)


def is_far_slower(after: Peaks, before: Peaks) -> bool:
    """Return whether a run takes so much longer than before that a few runs are enough to tell."""
    now, then = after.effort or after.milliseconds, before.effort or before.milliseconds
    return now is not None and then is not None and now > max(_FAR * then, then + _UNSURE)
