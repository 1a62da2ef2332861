"""What a process with one session takes, with nothing else in it: no profile, no comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.meter import Meter
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Create the session and run it ``runs`` times; outputs are dropped before the next run."""
    task = SessionJob.of(job)
    feed = task.feed()
    options = run_options(task.settings)
    meter = Meter.start(task)
    session = task.session()
    meter.stands()
    for _ in range(int(str(job["runs"]))):
        values = run_session(session, None, feed, options)
        meter.ran()
        del values
        meter.dropped()
    process = meter.process()
    return {"process": to_json(process) if process else None}
