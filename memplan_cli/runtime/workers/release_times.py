"""Job: time runs that give the arena back to the system, against runs of the same session that keep it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.runtime.workers.ort_values import run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json

_TIMED_RUNS = 2
"""Runs of each kind that are timed in a round. One more precedes them, which finds the arena as runs of the
other kind have left it."""

_MAX_RATIOS = 20

_MAX_SECONDS = 5.0
"""After this processor time no further round begins."""


def run(job: Json) -> Json:
    """Job: run a session in rounds, with and without its run options.

    Args:
        job: ``session`` is a `SessionSpec` whose run options release the arena, ``inputs`` an `InputSet`.

    Returns:
        ``ratios``: the processor time of a run that releases the arena, divided by that of a run in the same
        round that keeps it.
    """
    spec, feed = SessionSpec.of_job(job), InputSet.of_job(job).draw()
    session = spec.create()
    releasing = run_options(spec.settings)
    keeping = run_options(replace(spec.settings, run_config={}))

    def processor_times(options: object) -> list[float]:
        """Return the processor times of `_TIMED_RUNS` runs."""
        run_session(session, None, feed, options)
        times = []
        for _ in range(_TIMED_RUNS):
            start = time.process_time()
            run_session(session, None, feed, options)
            times.append(time.process_time() - start)
        return times

    ratios: list[float] = []
    end = time.process_time() + _MAX_SECONDS
    while True:
        releases, keeps = processor_times(releasing), processor_times(keeping)
        # The clock may be coarser than a short run, whose time is then 0.
        ratios += (
            release / keep for release, keep in zip(releases, keeps, strict=True) if keep
        )
        if len(ratios) >= _MAX_RATIOS or time.process_time() > end:
            return {"ratios": ratios}
