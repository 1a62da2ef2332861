"""Comparisons of the run times of two models that hold on a busy machine."""

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
"""The allowed ratio of run times: 5 % longer than the original under default settings."""

ROUNDS = 5
"""How often two models are timed, in turn."""

_FAR_RATIO = 1.3
"""Medians of a few runs that differ by more than this ratio differ on a busy machine too."""

_FAR_MILLISECONDS = 1.0
"""Differences of a few runs by less than this are not significant."""

_NOISE_MILLISECONDS = 0.1
"""Difference between two medians of equal short runs on a busy machine."""


def time_ratio(
    before: SessionSpec, after: SessionSpec, inputs: InputSet, timeout: float
) -> TimeRatio | None:
    """Return the ratio of run times ``after / before`` of two sessions that are timed in turn.

    Processor times are compared if both were measured, as in `is_slower`; else elapsed times.
    None if a round measured no time.

    Raises:
        RuntimeUnavailableError: a model that has run does not run again.
    """
    ratios = []
    for _ in range(ROUNDS):
        peaks_before, peaks_after = (
            _timed_run(session, inputs, timeout) for session in (before, after)
        )
        time_before, time_after = peaks_before.effort, peaks_after.effort
        if time_before is None or time_after is None:
            time_before, time_after = peaks_before.milliseconds, peaks_after.milliseconds
        if time_before and time_after is not None:
            ratios.append(time_after / time_before)
    if len(ratios) < ROUNDS:
        return None
    low, median, high = quantiles(ratios, n=4, method="inclusive")
    return TimeRatio(round(median, 3), round(low, 3), round(high, 3), ROUNDS)


def _timed_run(session: SessionSpec, inputs: InputSet, timeout: float) -> Peaks:
    """Run a session for its times, in a new process."""
    spec = RunSpec(session, (inputs,), ("time",), runs=0)
    record = run_model(spec, timeout=timeout)
    return record.require(f"{session.model} could not be measured").peaks


def slower_note(ratio: TimeRatio | None) -> str:
    """Return a warning if a written model is slower than allowed; else an empty text."""
    if ratio is None or ratio.median <= SLOWEST:
        return ""
    return (
        f"a run of the written model takes {ratio.median:.2f} times as long as the original "
        f"({ratio.low:.2f} to {ratio.high:.2f}, the quartiles of {ratio.rounds} rounds in turn)"
    )


def is_slower(after: Peaks, before: Peaks) -> bool:
    """Return whether a run takes more than 5 % longer than before.

    Processor times are compared if both were measured (only on CPU): elapsed times depend on what
    else the machine does.
    """
    if after.effort is not None and before.effort is not None:
        return after.effort > max(SLOWEST * before.effort, before.effort + _NOISE_MILLISECONDS)
    now, then = after.milliseconds or 0.0, before.milliseconds or 0.0
    return now > max(SLOWEST * then, then + _NOISE_MILLISECONDS)


def is_far_slower(after: Peaks, before: Peaks) -> bool:
    """Return whether a run takes so much longer than before that even a few runs show it reliably."""
    now, then = after.effort or after.milliseconds, before.effort or before.milliseconds
    return (
        now is not None
        and then is not None
        and now > max(_FAR_RATIO * then, then + _FAR_MILLISECONDS)
    )
