"""Have the runtime write the graph that it would run, and say the types in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.runtime.workers.session_graph import write_graph
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Write the session's graph to ``out``, without its weights."""
    return {"types": write_graph(SessionJob.of(job), Path(str(job["out"])))}
