"""Everything that is asked of one model, from one session: outputs, counters, memory, graph.

What would disturb the figures comes after them, when that session is gone: the runs on other
inputs, and the runtime's own graph, from a session that runs nothing.
"""

from __future__ import annotations

import gc
import importlib
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import Difference, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.examination import Examination, Look
from memplan_cli.runtime.workers.jobs.measure import STATISTICS, workspace_in
from memplan_cli.runtime.workers.jobs.observed import timed_shapes
from memplan_cli.runtime.workers.jobs.outputs import against, save, worst
from memplan_cli.runtime.workers.meter import Meter
from memplan_cli.runtime.workers.profile import Recording, held_after, peaks_of, read_profile
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.session_graph import write_graph

if TYPE_CHECKING:
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.runtime.workers.inputs import Feed
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Examine a model; the session is gone when this returns."""
    return _examined(from_json(Examination, job["examination"], "the job"))


@dataclass(slots=True)
class _Seen:
    """What the session has shown so far."""

    outputs: list[str] = field(default_factory=list)
    looks: list[Json] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    effort: list[float] = field(default_factory=list)
    process: ProcessBytes | None = None
    ended: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    recording: Recording = field(default_factory=lambda: Recording((), ()))


def _examined(asked: Examination) -> Json:
    with tempfile.TemporaryDirectory(prefix="memplan-profile-") as name:
        folder = Path(name)
        seen = _session(asked, folder)
        gc.collect()
        # The statistics are written when the session goes.
        workspace = workspace_in(folder / STATISTICS)
        graph = asked.graph
        if seen.ended:
            graph = None
        else:  # their workspace would count among that of the first
            seen.looks += [_at(asked, seen.outputs, look) for look in asked.looks[1:]]
    return {
        "outputs": seen.outputs,
        "looks": seen.looks,
        "peaks": to_json(peaks_of(seen.recording)),
        "milliseconds": seen.milliseconds,
        "effort": seen.effort,
        "workspace": workspace,
        "process": to_json(seen.process) if seen.process else None,
        "nodes": timed_shapes(seen.events)[0] if graph else [],
        "types": write_graph(asked.session, graph) if graph else {},
    }


def _session(asked: Examination, folder: Path) -> _Seen:
    """Create the session and run it; it is gone when this returns."""
    # Imported before anything is counted: what the runtime itself takes is no session's.
    importlib.import_module("onnxruntime")
    feed = asked.session.feed()
    meter = Meter.start(asked.session)
    session = asked.session.session(_profiled(folder))
    meter.stands()
    known = [output.name for output in session.get_outputs()]
    wanted = [name for name in asked.outputs or known if name in known]
    seen = _Seen(outputs=wanted)
    missing = [name for name in asked.outputs if name not in known]
    runs = _Runs(asked, session, feed, wanted, asked.looks[0], missing, meter)
    for number in range(asked.runs):
        runs.run(number, seen)
        seen.ended = asked.until == "difference" and any(d.beyond for d in runs.differences)
        if seen.ended:
            break
    profile = Path(session.end_profiling())
    seen.events = json.loads(profile.read_text(encoding="utf-8"))
    seen.recording = read_profile(seen.events)
    seen.process = meter.process(held_after(seen.recording))
    seen.looks.append(runs.result())
    return seen


def _at(asked: Examination, wanted: list[str], look: Look) -> Json:
    """Run on other inputs; that the model does not take them is an answer."""
    task = asked.at(look)
    try:
        runs = _Runs(asked, task.session(), task.feed(), wanted, look)
        for number in range(asked.compared):
            runs.run(number, _Seen())
    except Exception as error:  # noqa: BLE001 - ONNX Runtime raises what it likes
        return {"differences": [], "failure": " ".join(f"{error}".split())[:400]}
    return runs.result()


@dataclass(slots=True)
class _Runs:
    """Runs on one set of inputs, and how their outputs differ from what they should be."""

    asked: Examination
    session: Any
    feed: Feed
    wanted: list[str]
    look: Look
    missing: list[str] = field(default_factory=list)
    meter: Meter | None = None
    differences: list[Difference] = field(default_factory=list)

    def run(self, number: int, seen: _Seen) -> None:
        """Run once; note the time, and keep or compare the outputs."""
        options = run_options(self.asked.session.settings)
        began, worked = time.perf_counter(), time.process_time()
        values = run_session(self.session, self.wanted, self.feed, options)
        seen.milliseconds.append(1000 * (time.perf_counter() - began))
        seen.effort.append(1000 * (time.process_time() - worked))
        if self.meter is not None:
            self.meter.ran()
        if number < self.asked.compared:
            self._compare(number, values)
        # Outputs lie in the arena: kept, they would count in the next run.
        del values
        if self.meter is not None:
            self.meter.dropped()

    def _compare(self, number: int, values: list[Any]) -> None:
        folder, wanted = self.look.folder, self.wanted
        if self.asked.then == "save" and number == 0:
            save(folder, wanted, wanted, values)
            return
        found = against(folder, wanted, wanted, values, self.asked.tolerance)
        if found and number == 0 and self.look.kept is not None:
            save(self.look.kept, wanted, wanted, values)
        self.differences += found

    def result(self) -> Json:
        """Return the worst difference of each output."""
        gone = [
            Difference(name, 0, 0.0, 1, "there is no such output") for name in self.missing
        ]
        return {"differences": to_json([*gone, *worst(self.differences)]), "failure": ""}


def _profiled(folder: Path) -> RuntimeSettings:
    return RuntimeSettings(
        session={"enable_profiling": True, "profile_file_prefix": f"{folder}/profile"},
        session_config={"session.collect_node_memory_stats_to_file": str(folder / STATISTICS)},
    )
