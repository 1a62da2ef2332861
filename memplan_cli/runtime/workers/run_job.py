"""The worker's side of a run: create the session, run it, and return what was recorded.

What would disturb the figures of the first input set comes after them, when its session is gone:
runs on other input sets, timed runs, and the runtime's own graph.
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
from memplan_cli.core.results.observations import Difference, Peaks, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.ort_values import run_session
from memplan_cli.runtime.workers.outputs import against, save, worst
from memplan_cli.runtime.workers.process_memory import SessionMeter
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.session_graph import write_graph
from memplan_cli.runtime.workers.session_profile import (
    arena_bytes_by_run,
    arena_peaks,
    kernels_by_run,
    read_profile,
)
from memplan_cli.runtime.workers.spec import RunSpec

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.inputs import Feed
    from memplan_cli.runtime.workers.spec import InputSet

_STATISTICS = "workspace.csv"
"""The file in which the runtime writes down what its kernels request."""

_LEAST_TIMED = 200.0
"""Milliseconds that are spent on timing at least."""

_MOST_TIMED = 500
"""Timed runs that are enough, however short they are."""


def run(job: Json) -> Json:
    """Run a `RunSpec`; its sessions are gone when this returns."""
    spec = from_json(RunSpec, job["spec"], "the job")
    # Imported before anything is measured: the runtime's own memory is no session's.
    importlib.import_module("onnxruntime")
    with tempfile.TemporaryDirectory(prefix="memplan-run-") as name:
        work = _Work(spec, Path(name))
        work.run()
        gc.collect()  # the runtime writes its statistics when the session is destroyed
        workspace = _workspace_in(Path(name) / _STATISTICS)
    if not work.ended:
        work.run_apart()
    timed = spec.collects("time") and not work.ended
    times = _timed(spec) if timed else (work.times[1:], work.effort[1:])
    graph = spec.graph if not work.ended else None
    return {
        "outputs": work.names,
        "inputs": work.inputs,
        "peaks": to_json(work.peaks),
        "process": work.process,
        "milliseconds": times[0],
        "effort": times[1],
        "workspace": workspace,
        "kernels": work.kernels,
        "types": write_graph(spec.session, graph) if graph else None,
    }


@dataclass(slots=True)
class _Work:
    """A run in progress: the fields below ``folder`` are filled by it."""

    spec: RunSpec
    folder: Path
    names: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    inputs: list[Json] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    effort: list[float] = field(default_factory=list)
    peaks: Peaks = field(default_factory=lambda: Peaks(None, None))
    process: object = None
    kernels: list[object] = field(default_factory=list)
    ended: bool = False

    def run(self) -> None:
        """Create the first session and run it; the session is gone when this returns.

        It runs all input sets, unless arena or process are measured: then the first only.
        """
        spec = self.spec
        if set(spec.collect) == {"time"}:
            return
        first = spec.inputs[0] if spec.inputs else None
        feed = first.draw() if first else {}
        meter = SessionMeter.start(spec.session) if spec.collects("process") else None
        session = spec.session.create(_profiled(self.folder) if spec.is_profiled else None)
        if meter:
            meter.note_loaded()
        known = [output.name for output in session.get_outputs()]
        self.names = [name for name in spec.outputs or known if name in known]
        self.missing = [name for name in spec.outputs if name not in known]
        begins: list[int] = []  # of each input set, among the runs of the profile
        if spec.failures == "recorded":
            self._try_each(session)
        else:
            begins.append(0)
            assert first is not None  # noqa: S101 - a model without inputs has an empty set
            done = self._run_set(session, first, feed, spec.runs, meter)
            for other in [] if self._is_measured else spec.inputs[1:]:
                begins.append(done)
                runs = max(spec.compared_runs, 1)
                done += self._run_set(session, other, other.draw(), runs)
        self._read_profile(session, begins, meter)

    @property
    def _is_measured(self) -> bool:
        return self.spec.collects("arena") or self.spec.collects("process")

    def run_apart(self) -> None:
        """Run each input set that has no result yet, in a session without profiler.

        That the model does not run on it is a result.
        """
        if not self._is_measured:
            return
        for other in self.spec.inputs[1:]:
            try:
                session = self.spec.session.create()
                self._run_set(session, other, other.draw(), self.spec.compared_runs)
            except Exception as error:  # noqa: BLE001 - whatever ONNX Runtime raises
                self.inputs.append(_result((), _text(error)))

    def _try_each(self, session: Any) -> None:  # noqa: ANN401 - ONNX Runtime has no types
        """Run input sets in turn, each once; a set that fails has a result too."""
        spec = self.spec
        until = time.monotonic() + spec.seconds if spec.seconds else None
        for one in spec.inputs:
            if until and time.monotonic() > until:
                self.inputs.append(_result((), "no time is left for larger sizes"))
                break
            try:
                self._run_set(session, one, one.draw(), 1)
            except Exception as error:  # noqa: BLE001 - whatever ONNX Runtime raises
                self.inputs.append(_result((), _text(error)))
            else:
                if spec.stop == "at a set that runs":
                    break

    def _run_set(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        inputs: InputSet,
        feed: Feed,
        runs: int,
        meter: SessionMeter | None = None,
    ) -> int:
        """Run one input set, append its result, and return the number of runs."""
        spec, found = self.spec, list[Difference]()
        measured = not self.inputs
        options = run_options(spec.session.settings)
        number = 0
        for number in range(1, runs + 1):
            began, worked = time.perf_counter(), time.process_time()
            values = run_session(session, self.names or None, feed, options)
            if measured:
                self.times.append(1000 * (time.perf_counter() - began))
                self.effort.append(1000 * (time.process_time() - worked))
            if meter:
                meter.note_run()
            if spec.collects("outputs") and number <= spec.compared_runs:
                found += self._compared(inputs, values, is_first=number == 1)
            # Outputs lie in the arena: kept, they would count in the next run.
            del values
            if meter:
                meter.note_dropped()
            if spec.stop == "at a difference" and any(each.beyond for each in found):
                self.ended = True
                break
        gone = [
            Difference(name, 0, 0.0, 1, "there is no such output") for name in self.missing
        ]
        self.inputs.append(_result((*gone, *worst(found)), ""))
        return number

    def _compared(
        self,
        inputs: InputSet,
        values: list[Any],
        *,
        is_first: bool,
    ) -> list[Difference]:
        """Save outputs, or return how they differ from those that were saved."""
        names, saved = self.names, inputs.compare_with or inputs.save_to
        assert saved is not None  # noqa: S101 - who collects outputs names a folder
        if inputs.compare_with is None and is_first:
            save(saved, names, names, values)
            return []
        found = against(saved, names, names, values, self.spec.tolerance)
        if found and is_first and inputs.save_to is not None:
            save(inputs.save_to, names, names, values)
        return found

    def _read_profile(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        begins: list[int],
        meter: SessionMeter | None,
    ) -> None:
        """End the profile and read what was collected from it."""
        spec = self.spec
        held: list[int] = []
        if spec.is_profiled:
            profile = Path(session.end_profiling())
            events = json.loads(profile.read_text(encoding="utf-8"))
            profile_runs = read_profile(events)
            held = arena_bytes_by_run(profile_runs)
            self.peaks = arena_peaks(profile_runs)
            if spec.collects("kernels"):
                every = kernels_by_run(events)
                self.kernels = [every[at] for at in begins if at < len(every)]
        if meter:
            process = meter.result(held)
            self.process = to_json(process) if process else None


def _result(differences: tuple[Difference, ...], failure: str) -> Json:
    return {"differences": to_json(differences), "failure": failure}


def _text(error: Exception) -> str:
    return " ".join(f"{error}".split())[:600]


def _profiled(folder: Path) -> RuntimeSettings:
    return RuntimeSettings(
        session={"enable_profiling": True, "profile_file_prefix": f"{folder}/profile"},
        session_config={
            "session.collect_node_memory_stats_to_file": f"{folder}/{_STATISTICS}"
        },
    )


def _workspace_in(statistics: Path) -> dict[str, int]:
    """Return the last column of each node that has one; the file writes ``<name>_<hash>``."""
    if not statistics.exists():
        return {}
    found: dict[str, int] = {}
    for line in statistics.read_text(encoding="utf-8").splitlines()[1:]:
        name, *_, temporary = line.rsplit(",", 4)
        if int(temporary):
            found[name.rpartition("_")[0]] = int(temporary)
    return found


def _timed(spec: RunSpec) -> tuple[list[float], list[float]]:
    """Return the milliseconds of ``spec.timed_runs`` runs or more, and those of the processor.

    They are runs of a session without profiler, which costs time itself.
    """
    session, feed = spec.session.create(), spec.inputs[0].draw()
    options = run_options(spec.session.settings)
    times: list[float] = []
    effort: list[float] = []
    while len(times) < 2 + spec.timed_runs or (
        sum(times[2:]) < _LEAST_TIMED and len(times) < 2 + _MOST_TIMED
    ):
        began, worked = time.perf_counter(), time.process_time()
        values = run_session(session, None, feed, options)
        times.append(1000 * (time.perf_counter() - began))
        effort.append(1000 * (time.process_time() - worked))
        del values
    # The first two runs grow the arena and make the memory pattern.
    return times[2:], effort[2:]
