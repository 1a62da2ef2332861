"""Run a model as it is written at several sizes in turn, and say what its nodes read and wrote."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.workers.jobs.observed import AS_WRITTEN, shapes_in
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Return ``{"runs": [nodes]}``, for each size what `observed.run` gives of one."""
    sizes: Any = job["sizes"]
    tasks = [SessionJob.of({"session": {**job["session"], "specs": s}}) for s in sizes]  # type: ignore[dict-item] # as it was written
    with tempfile.TemporaryDirectory(prefix="memplan-shapes-") as folder:
        prefix = RuntimeSettings(session={"profile_file_prefix": f"{folder}/profile"})
        session = tasks[0].session(AS_WRITTEN.updated(prefix))
        for task in tasks:
            run_session(session, None, task.feed())
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    ends = [*starts[1:], 1 << 62]
    nodes = [event for event in events if event.get("cat") == "Node"]
    return {
        "runs": [
            shapes_in([event for event in nodes if start <= event["ts"] < end])
            for start, end in zip(starts, ends, strict=True)
        ]
    }
