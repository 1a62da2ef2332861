"""Run a model as it is written at several sizes, profiled, and say which shapes its nodes read and wrote."""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.runtime.workers.worker import Json

AS_WRITTEN = RuntimeSettings(
    session={"graph_optimization_level": "ORT_DISABLE_ALL", "enable_profiling": True}
)
"""No node may be fused away: the file's own nodes are what is asked about."""


def run(job: Json) -> Json:
    """Return ``{"runs": [[[name, read, written]]]}``, for each size each kernel that ran.

    ``read`` and ``written`` are lists of ``[type, dims]``.
    """
    return {"runs": nodes_of(SessionJob.of_sizes(job, job["sizes"]))}


def nodes_of(
    tasks: Sequence[SessionJob], source: bytes | None = None
) -> list[list[list[Any]]]:
    """Run a session once at each size, of other bytes where given; return the kernels that ran."""
    first = tasks[0]
    with tempfile.TemporaryDirectory(prefix="memplan-shapes-") as folder:
        settings = AS_WRITTEN.updated(
            RuntimeSettings(session={"profile_file_prefix": f"{folder}/profile"})
        )
        session = (
            first.session(settings) if source is None else first.session_of(source, settings)
        )
        for task in tasks:
            run_session(session, None, task.feed())
        profile = Path(session.end_profiling())
        events = json.loads(profile.read_text(encoding="utf-8"))
    return [[entry[:3] for entry in ran] for ran in timed_shapes(events)]


def timed_shapes(events: list[dict[str, Any]]) -> list[list[list[Any]]]:
    """Return ``[name, read, written, begin]`` for each kernel, run by run of a profile.

    The kernels of a run stand in the order in which they were done.
    """
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")[1:]
    runs: list[list[list[Any]]] = [[] for _ in range(len(starts) + 1)]
    for event in events:
        if entry := _entry(event):
            runs[bisect_right(starts, event["ts"])].append(entry)
    return runs


def _entry(event: dict[str, Any]) -> list[Any] | None:
    name, args = str(event.get("name")), event.get("args", {})
    if event.get("cat") != "Node" or "output_type_shape" not in args:
        return None
    kinds = (args.get("input_type_shape", []), args["output_type_shape"])
    seen: list[Any] = [[list(*k.items()) for k in s] for s in kinds]
    return [name.removesuffix("_kernel_time"), *seen, event["ts"]]
