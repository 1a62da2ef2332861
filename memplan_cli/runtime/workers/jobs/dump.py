"""Have the runtime load a model, write the graph that it would run, and say what it gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.runtime.workers.session_graph import into, types_of_outputs, write_graph
from memplan_cli.runtime.workers.spec import SessionSpec

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Make the session, and return the types of its outputs.

    With ``out``, the optimised graph is written there, its weights beside it; with ``light``,
    without them, and the types are those of every value in it.
    """
    spec, out = SessionSpec.of_job(job), Path(str(job.get("out")))
    if job.get("light"):
        return {"types": write_graph(spec, out)}
    return {"types": types_of_outputs(spec.create(into(out) if job.get("out") else None))}
