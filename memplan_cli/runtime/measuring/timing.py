"""A comparison of the times of two runs that a busy machine does not mislead.

What is slower is rejected, so one unlucky moment could decide which file is written: who
seems slower at first is timed again, and so is what it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import quantiles
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import TimeRatio
from memplan_cli.runtime.measuring.measure import measure

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.observations import Peaks, RuntimeSettings
    from memplan_cli.runtime.measuring.measure import Trial

SLOWEST = 1.05
"""How much longer than under the defaults a run may take for the sake of memory."""

ROUNDS = 5
"""Times that two models are timed in turn."""

_FAR = 1.3
"""What no busy machine makes of equal times in the median of a few runs, or hardly ever."""

_UNSURE = 1.0
"""Milliseconds that say nothing in a few runs."""

_CLOCK = 0.1
"""Milliseconds that two medians of short runs differ by on a busy machine."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A model under some settings, and what was measured of it."""

    model: Path
    settings: RuntimeSettings
    peaks: Peaks


def time_ratio(before: Timed, after: Timed, trial: Trial) -> TimeRatio | None:
    """Return how much longer a run takes than before, both timed in turn.

    Processor time is compared where both have it, as in `is_slower`.

    Raises:
        RuntimeUnavailableError: a model that has run does not run again.
    """
    once = replace(trial, runs=1)
    found = []
    for _ in range(ROUNDS):
        then, now = (measure(run.model, run.settings, once) for run in (before, after))
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


def slower_note(ratio: TimeRatio | None) -> str:
    """Return a warning where a written model is slower than allowed; else nothing."""
    if ratio is None or ratio.median <= SLOWEST:
        return ""
    return (
        f"a run of the written model takes {ratio.median:.2f} of the original's time "
        f"({ratio.low:.2f} to {ratio.high:.2f}, the quartiles of {ratio.rounds} rounds in turn)"
    )


def is_slower(after: Peaks, before: Peaks) -> bool:
    """Whether a run takes more than five per cent longer than before, for certain.

    Processor time decides where both have it and work is done by the processor alone: on a
    busy machine the clock shows how busy it is.
    """
    if after.effort is not None and before.effort is not None:
        return after.effort > max(SLOWEST * before.effort, before.effort + _CLOCK)
    now, then = after.milliseconds or 0.0, before.milliseconds or 0.0
    return now > max(SLOWEST * then, then + _CLOCK)


def is_far_slower(after: Peaks, before: Peaks) -> bool:
    """Whether a run takes so much longer than before that a few runs are enough to tell."""
    now, then = after.effort or after.milliseconds, before.effort or before.milliseconds
    return now is not None and then is not None and now > max(_FAR * then, then + _UNSURE)


def second_look(before: Timed, *others: Timed, trial: Trial) -> tuple[Peaks, ...]:
    """Return the peaks of all, timed again if one of the others seems slower.

    Of two times the shorter one stays: whatever else runs on a machine only adds.

    Raises:
        RuntimeUnavailableError: a model that has run does not run again.
    """
    runs = (before, *others)
    if not any(is_slower(other.peaks, before.peaks) for other in others):
        return tuple(run.peaks for run in runs)
    return tuple(_timed_again(run, trial) for run in runs)


def _timed_again(run: Timed, trial: Trial) -> Peaks:
    again = measure(run.model, run.settings, replace(trial, runs=1))
    return replace(
        run.peaks,
        milliseconds=_shorter(run.peaks.milliseconds, again.milliseconds),
        effort=_shorter(run.peaks.effort, again.effort),
    )


def _shorter(one: float | None, other: float | None) -> float | None:
    return one if other is None or one is None else min(one, other)
