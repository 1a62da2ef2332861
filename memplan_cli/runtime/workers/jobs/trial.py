"""Try several sizes in one session, the first that runs wins; look at its run where asked."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.workers.jobs.observed import nodes_of
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json

_PLAIN = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})
"""Nothing is gained by fusing what runs once."""


def run(job: Json) -> Json:
    """Return which try ran, why those before it did not, and the nodes of its run.

    ``{"ran": [index], "reasons": [text], "nodes": [...]}``: with ``every``, all that run are
    in ``ran``. ``nodes`` are those of the model in ``observed``, as of a size in `observed.run`.
    """
    tasks = SessionJob.of_sizes(job, job["tries"])
    ran, reasons = _tried(tasks, job) if job["observed"] == "" or len(tasks) > 1 else ([0], [])
    nodes: list[Any] = []
    if ran and job["observed"]:
        # The copy may lie anywhere: the model's own folder may not take a file.
        (nodes,) = nodes_of([tasks[ran[0]]], Path(str(job["observed"])).read_bytes())
    return {"ran": ran, "reasons": reasons, "nodes": nodes}


def _tried(tasks: list[SessionJob], job: Json) -> tuple[list[int], list[str]]:
    """Run one after the other in one session, until one works or time is over."""
    until = monotonic() + float(str(job["seconds"]))
    session = tasks[0].session(_PLAIN)
    ran: list[int] = []
    reasons: list[str] = []
    for index, task in enumerate(tasks):
        if monotonic() > until:
            reasons.append("no time is left for larger sizes")
            break
        try:
            run_session(session, None, task.feed())
        except Exception as error:  # noqa: BLE001 - whatever the runtime says of these sizes
            reasons.append(" ".join(str(error).split())[:600])
        else:
            ran.append(index)
            if not job["every"]:
                break
    return ran, reasons
