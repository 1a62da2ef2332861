"""Run a model with the profiler on and read what the arena did."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.meter import Meter
from memplan_cli.runtime.workers.profile import held_after, read_profile
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.inputs import Feed
    from memplan_cli.runtime.workers.worker import Json


STATISTICS = "workspace.csv"
"""The name of the file in which the runtime writes down what its kernels ask for."""

_LEAST_TIMED = 200.0
"""Milliseconds to spend on timing at least, where runs are short."""

_MOST_RUNS = 500
"""Timed runs that are enough, however short they are."""


def run(job: Json) -> Json:
    """Return the node events of each profiled run, and the times of unprofiled ones.

    Times come from a second session: the profiler itself costs time. It shares nothing
    with the first but, where the arena is the environment's, that arena.
    """
    task = SessionJob.of(job)
    feed = task.feed()
    with tempfile.TemporaryDirectory(prefix="memplan-profile-") as folder:
        profiled = RuntimeSettings(
            session={
                "enable_profiling": True,
                "profile_file_prefix": f"{folder}/profile",
                # Each further thread has memory of its own.
                "intra_op_num_threads": 1,
            }
        )
        statistics = Path(folder) / STATISTICS
        if job.get("workspace"):
            entry = {"session.collect_node_memory_stats_to_file": str(statistics)}
            profiled = profiled.updated(RuntimeSettings(session_config=entry))
        meter, before = Meter.start(task), time.perf_counter()
        session = task.session(profiled)
        loading = time.perf_counter() - before
        meter.stands()
        _repeat(session, feed, task.settings, int(str(job["runs"])), meter)
        profile = Path(session.end_profiling())
        recording = read_profile(json.loads(profile.read_text(encoding="utf-8")))
        process = meter.process(held_after(recording))
        # The statistics are written when the session goes.
        del session
        workspace = workspace_in(statistics)
    times, effort = _times(task, feed, int(str(job["timing_runs"])))
    runs = [[asdict(event) for event in run] for run in recording.runs]
    return {
        "runs": runs,
        "milliseconds": times,
        "effort": effort,
        "loading_seconds": loading,
        "workspace": workspace,
        "process": to_json(process) if process else None,
    }


def workspace_in(statistics: Path) -> dict[str, int]:
    """Return the last column of each node that has one; the file writes ``<name>_<hash>``."""
    if not statistics.exists():
        return {}
    found: dict[str, int] = {}
    for line in statistics.read_text(encoding="utf-8").splitlines()[1:]:
        name, *_, temporary = line.rsplit(",", 4)
        if int(temporary):
            found[name.rpartition("_")[0]] = int(temporary)
    return found


def _times(task: SessionJob, feed: Feed, count: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of ``count`` runs or more, and those of the processor."""
    if not count:
        return [], []
    session, settings = task.session(), task.settings
    # The first two runs grow the arena and make the memory pattern.
    _repeat(session, feed, settings, 2)
    times, effort = _repeat(session, feed, settings, count)
    # A run of microseconds needs many for a median that a busy machine cannot move.
    while sum(times) < _LEAST_TIMED and len(times) < _MOST_RUNS:
        more = _repeat(session, feed, settings, count)
        times += more[0]
        effort += more[1]
    return times, effort


def _repeat(
    session: Any,  # noqa: ANN401 - ONNX Runtime has no types
    feed: Feed,
    settings: RuntimeSettings,
    runs: int,
    meter: Meter | None = None,
) -> tuple[list[float], list[float]]:
    times, effort = [], []
    for _ in range(runs):
        before, worked = time.perf_counter(), time.process_time()
        outputs = run_session(session, None, feed, run_options(settings))
        times.append(1000 * (time.perf_counter() - before))
        effort.append(1000 * (time.process_time() - worked))
        if meter is not None:
            meter.ran()
        # Outputs lie in the arena: kept, they would count in the next run.
        del outputs
        if meter is not None:
            meter.dropped()
    return times, effort
