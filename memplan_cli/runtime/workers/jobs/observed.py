"""Run a model once with the profiler on and say which shapes its nodes read and wrote."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json

AS_WRITTEN = RuntimeSettings(
    session={"graph_optimization_level": "ORT_DISABLE_ALL", "enable_profiling": True}
)
"""No node may be fused away: the file's own nodes are what is asked about."""


def run(job: Json) -> Json:
    """Return ``{"nodes": [[name, read, written]]}``, an entry for each kernel that ran.

    ``read`` and ``written`` are lists of ``[type, dims]``.
    """
    return {"nodes": nodes_of(SessionJob.of(job))}


def nodes_of(task: SessionJob, source: bytes | None = None) -> list[list[Any]]:
    """Run a session once, of other bytes where given; an entry for each kernel that ran."""
    feed = task.feed()
    with tempfile.TemporaryDirectory(prefix="memplan-shapes-") as folder:
        settings = AS_WRITTEN.updated(
            RuntimeSettings(session={"profile_file_prefix": f"{folder}/profile"})
        )
        session = (
            task.session(settings) if source is None else task.session_of(source, settings)
        )
        run_session(session, None, feed)
        profile = Path(session.end_profiling())
        events = json.loads(profile.read_text(encoding="utf-8"))
    return shapes_in(events)


def shapes_in(events: list[dict[str, Any]]) -> list[list[Any]]:
    """Return ``[name, read, written]`` for each kernel of the first run of a profile."""
    return [entry[:3] for entry in timed_shapes(events)]


def timed_shapes(events: list[dict[str, Any]]) -> list[list[Any]]:
    """Return ``[name, read, written, begin]`` for each kernel of the first run of a profile.

    They stand in the order in which they were done.
    """
    runs = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    end = runs[1] if len(runs) > 1 else 1 << 62
    return [entry for event in events if (entry := _entry(event)) and event["ts"] < end]


def _entry(event: dict[str, Any]) -> list[Any] | None:
    name, args = str(event.get("name")), event.get("args", {})
    if event.get("cat") != "Node" or "output_type_shape" not in args:
        return None
    kinds = (args.get("input_type_shape", []), args["output_type_shape"])
    seen: list[Any] = [[list(*k.items()) for k in s] for s in kinds]
    return [name.removesuffix("_kernel_time"), *seen, event["ts"]]
