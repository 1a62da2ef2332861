"""Have the runtime load a model, write the graph that it would run, and say what it gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.runtime.workers.session_graph import into, types_of_outputs
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Make the session, and return the types of its outputs.

    With ``out``, the optimised graph is written there, its weights beside it.
    """
    out = job.get("out")
    session = SessionJob.of(job).session(into(Path(str(out))) if out else None)
    return {"types": types_of_outputs(session)}
