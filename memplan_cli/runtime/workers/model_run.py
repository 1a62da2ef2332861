"""Job: create a session, run it, and return what a `RunSpec` collects.

Memory and time are those of the first input set. What would disturb these figures comes later, when
the measured session is gone: runs on other input sets, timed runs, and the runtime's own graph.
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
from memplan_cli.core.results.observations import CUDA, Difference, Peaks, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.device_failures import device_failure
from memplan_cli.runtime.workers.ort_values import run_session
from memplan_cli.runtime.workers.outputs import (
    compare_with_saved,
    save_values,
    worst_by_output,
)
from memplan_cli.runtime.workers.process_memory import SessionMeter
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.session_graph import write_light_graph
from memplan_cli.runtime.workers.session_profile import (
    arena_peaks,
    kernels_by_run,
    read_profile,
)
from memplan_cli.runtime.workers.spec import RunSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.inputs import Feed
    from memplan_cli.runtime.workers.session_profile import Kernel
    from memplan_cli.runtime.workers.spec import InputSet

_STATISTICS = "workspace.csv"
"""The file in which ONNX Runtime writes the bytes that each node requests."""

_MIN_TIMED_MILLISECONDS = 200.0
"""Timing goes on until the runs have taken this long in total."""

_MIN_TIMED_RUNS, _MAX_TIMED_RUNS = 5, 500

_WARM_UP_RUNS = 2
"""Runs that are not timed: the first grows the arena, the second makes the memory pattern."""

_MAX_MESSAGE = 600
"""Characters kept of an error message."""


@dataclass(slots=True)
class RunTimes:
    """The times of consecutive runs of one session, in milliseconds.

    Attributes:
        elapsed: wall-clock time of each run.
        processor: processor time of each run, over all threads.
    """

    elapsed: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def run(job: Json) -> Json:
    """Job: run a model as a `RunSpec` says. All sessions are gone when this returns.

    Args:
        job: ``spec`` is the `RunSpec`.

    Returns:
        ``outputs``: names of the outputs that were saved or compared;
        ``inputs``: for each input set that was run, ``differences`` and ``failure``;
        ``peaks``: of the arena; ``process``: bytes of the process; None if not measured;
        ``milliseconds``, ``effort``: elapsed and processor times of runs after the first;
        ``workspace``: bytes by node; ``kernels``: those of the first run of each input set;
        ``types``: of the values of the graph that was written; None if none was written.
    """
    spec = from_json(RunSpec, job["spec"], "the job")
    # Import first, so that the memory of the library does not count as that of a session.
    importlib.import_module("onnxruntime")
    with tempfile.TemporaryDirectory(prefix="memplan-run-") as name:
        model_run = _ModelRun(spec, Path(name))
        if set(spec.collect) != {"time"}:  # else only the session of `_time_runs` is needed
            model_run.run_first_session()
        gc.collect()  # ONNX Runtime writes the statistics when it destroys the session
        workspace = _workspace_by_node(Path(name) / _STATISTICS)
    # Returned if nothing else is timed. The first run grows the arena, so its time is left out.
    times = RunTimes(model_run.times.elapsed[1:], model_run.times.processor[1:])
    types = None
    if not model_run.has_stopped_at_difference:
        # The sessions here write neither a profile nor statistics.
        model_run.run_other_input_sets()
        if spec.collects("time"):
            times = _time_runs(spec)
        if spec.graph is not None:
            types = write_light_graph(spec.session, spec.graph)
    return {
        "outputs": model_run.outputs,
        "inputs": model_run.results,
        "peaks": to_json(model_run.peaks),
        "process": model_run.process,
        "milliseconds": times.elapsed,
        "effort": times.processor,
        "workspace": workspace,
        "kernels": model_run.kernels,
        "types": types,
    }


@dataclass(slots=True)
class _ModelRun:
    """The runs of one model, and what they have produced so far.

    Attributes:
        spec: what is run and collected.
        folder: for the profile and the statistics.
        outputs: names of the outputs that are saved or compared.
        missing: a difference for each wanted output that the model does not have.
        results: ``differences`` and ``failure`` of each input set that was run.
        times: of the runs on the first input set.
        peaks: of the arena.
        process: memory of the process as JSON; None if it was not measured.
        kernels: for each input set, the kernels of its first run.
        has_stopped_at_difference: whether an output differed, and ``spec`` wants no further run then.
    """

    spec: RunSpec
    folder: Path
    outputs: list[str] = field(default_factory=list)
    missing: list[Difference] = field(default_factory=list)
    results: list[Json] = field(default_factory=list)
    times: RunTimes = field(default_factory=RunTimes)
    peaks: Peaks = field(default_factory=lambda: Peaks(None, None))
    process: object = None
    kernels: list[list[Kernel]] = field(default_factory=list)
    has_stopped_at_difference: bool = False

    def run_first_session(self) -> None:
        """Run the first session, and set the attributes that ``spec`` collects. The session is gone afterwards."""
        spec = self.spec
        # Draw before the meter starts, so that the inputs do not count as memory of the session.
        first_feed = spec.inputs[0].draw()
        meter = SessionMeter.start(spec.session) if spec.collects("process") else None
        session_spec = spec.session
        if spec.is_profiled:
            session_spec = session_spec.updated(_profiling_settings(self.folder))
        session = session_spec.create()
        if meter:
            meter.note_loaded()
        all_outputs = [output.name for output in session.get_outputs()]
        self.outputs = [name for name in spec.outputs or all_outputs if name in all_outputs]
        reason = "there is no such output"
        self.missing = [
            Difference(name, elements=0, max_abs_diff=0.0, beyond=1, reason=reason)
            for name in spec.outputs
            if name not in all_outputs
        ]
        if spec.failures == "recorded":
            self._try_input_sets(session)
            return  # such a spec collects neither memory nor kernels, so no attribute is left to set
        first_run_indices = self._run_input_sets(session, first_feed, meter)
        arena_bytes: list[int] = []
        if spec.is_profiled:
            arena_bytes = self._read_profile(Path(session.end_profiling()), first_run_indices)
        if meter and (process := meter.result(arena_bytes)):
            self.process = to_json(process)

    @property
    def _measures_memory(self) -> bool:
        """Whether memory of the arena or of the process is measured, on the first input set only."""
        return self.spec.collects("arena") or self.spec.collects("process")

    @property
    def _runs_of_other_sets(self) -> int:
        """Runs on each input set but the first: those whose outputs are compared, at least one."""
        return max(self.spec.compared_runs, 1)

    def _run_input_sets(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        first_feed: Feed,
        meter: SessionMeter | None,
    ) -> list[int]:
        """Run a session on each input set; if memory is measured, only on the first.

        Returns the index of the first run of each input set that was run, among all runs of the session.
        """
        first_set, *other_sets = self.spec.inputs
        run_count = self._run_input_set(session, first_set, first_feed, self.spec.runs, meter)
        first_run_indices = [0]
        if self._measures_memory:  # `run_other_input_sets` runs the others
            return first_run_indices
        for input_set in other_sets:
            first_run_indices.append(run_count)
            run_count += self._run_input_set(
                session, input_set, input_set.draw(), self._runs_of_other_sets
            )
        return first_run_indices

    def run_other_input_sets(self) -> None:
        """Run the input sets that `run_first_session` left out, and append their results.

        If memory is measured, these are all but the first, because their runs would change the figures. Otherwise
        there are none. Each has a new session without profiler. A failure is the result of its input set.
        """
        if not self._measures_memory:
            return
        for input_set in self.spec.inputs[1:]:
            try:
                session, feed = self.spec.session.create(), input_set.draw()
                self._run_input_set(session, input_set, feed, self._runs_of_other_sets)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime raises errors of many types
                self.results.append(_result((), self._message(error)))

    def _try_input_sets(self, session: Any) -> None:  # noqa: ANN401 - ONNX Runtime has no types
        """Run each input set once, in order, and record failures as results.

        Ends after ``spec.seconds``, or with ``spec.stop`` at the first input set that runs. Later sets are
        usually larger.
        """
        spec = self.spec
        deadline = time.monotonic() + spec.seconds if spec.seconds else None
        for input_set in spec.inputs:
            if deadline and time.monotonic() > deadline:
                self.results.append(_result((), "no time is left for larger sizes"))
                break
            try:
                self._run_input_set(session, input_set, input_set.draw(), runs=1)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime raises errors of many types
                self.results.append(_result((), self._message(error)))
            else:
                if spec.stop == "at a set that runs":
                    break

    def _message(self, error: Exception) -> str:
        """Return the message of a run that failed, on one line."""
        text = " ".join(f"{error}".split())
        is_on_gpu = self.spec.session.provider == CUDA
        return (device_failure(text) if is_on_gpu else text)[:_MAX_MESSAGE]

    def _run_input_set(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        input_set: InputSet,
        feed: Feed,
        runs: int,
        meter: SessionMeter | None = None,
    ) -> int:
        """Run a session on one input set, append its result, and return the number of runs.

        There are ``runs`` runs, or fewer if ``spec.stop`` ends the job at a difference. ``feed`` are the
        drawn inputs of the set. ``meter`` measures the memory of the process after each run.
        """
        spec = self.spec
        times = RunTimes() if self.results else self.times  # those of the first set are kept
        options = run_options(spec.session.settings)
        differences: list[Difference] = []
        number = 0  # if there are no runs
        for number in range(1, runs + 1):
            values = _timed_run(session, feed, options, times, self.outputs)
            if meter:
                meter.note_run()
            if spec.collects("outputs") and number <= spec.compared_runs:
                differences += self._save_or_compare(input_set, values, is_first=number == 1)
            # Outputs lie in the arena: if they are kept, they count in the memory noted now, and in the next run.
            if spec.caller == "drops outputs":
                del values
            if meter:
                meter.note_after_run()
            is_different = any(difference.beyond for difference in differences)
            if spec.stop == "at a difference" and is_different:
                self.has_stopped_at_difference = True
                break
        self.results.append(_result((*self.missing, *worst_by_output(differences)), ""))
        return number

    def _save_or_compare(
        self, input_set: InputSet, values: list[Any], *, is_first: bool
    ) -> list[Difference]:
        """Save the outputs of a run, or return how they differ from the saved ones.

        Outputs are compared with those in ``input_set.compare_with``. Without such a folder, the outputs of the
        first run are saved in ``save_to``, and later runs are compared with these. If the first run differs from
        ``compare_with``, its outputs are saved in ``save_to`` too.
        """
        names, reference = self.outputs, input_set.compare_with or input_set.save_to
        value_of = dict(zip(names, values, strict=True))
        assert reference is not None  # noqa: S101 - a spec that collects outputs has a folder
        if input_set.compare_with is None and is_first:
            save_values(reference, names, value_of)
            return []
        differences = compare_with_saved(reference, names, value_of, self.spec.tolerance)
        if differences and is_first and input_set.save_to is not None:
            save_values(input_set.save_to, names, value_of)
        return differences

    def _read_profile(self, profile: Path, first_run_indices: list[int]) -> list[int]:
        """Set ``peaks`` and ``kernels`` from a profile; return the most bytes that the arena held in each run.

        ``first_run_indices`` has the index of the first run of each input set, among all runs of the session.
        """
        events = json.loads(profile.read_text(encoding="utf-8"))
        runs = read_profile(events, self.spec.session.provider)
        self.peaks = arena_peaks(runs)
        if self.spec.collects("kernels"):
            kernels = kernels_by_run(events)
            # ONNX Runtime records a million events at most, so the last runs may be missing.
            self.kernels = [kernels[i] for i in first_run_indices if i < len(kernels)]
        return [max((event.held for event in run), default=0) for run in runs]


def _result(differences: tuple[Difference, ...], failure: str) -> Json:
    return {"differences": to_json(differences), "failure": failure}


def _profiling_settings(folder: Path) -> RuntimeSettings:
    """Return settings with which a session writes a profile and node statistics to a folder."""
    return RuntimeSettings(
        session={"enable_profiling": True, "profile_file_prefix": f"{folder}/profile"},
        session_config={
            "session.collect_node_memory_stats_to_file": f"{folder}/{_STATISTICS}"
        },
    )


def _workspace_by_node(statistics: Path) -> dict[str, int]:
    """Return the bytes that each node requests besides its outputs, without nodes that request none.

    They are the last column (temp) of the file; the node's name has a suffix there. Empty without a file:

        #name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations
        Where_9694575703011749489,0,0,256,32
    """
    if not statistics.exists():
        return {}
    workspace: dict[str, int] = {}
    for line in statistics.read_text(encoding="utf-8").splitlines()[1:]:
        name, *_, size = line.rsplit(",", 4)  # a name may have commas
        if int(size):
            workspace[name.rpartition("_")[0]] = int(size)
    return workspace


def _timed_run(
    session: Any,  # noqa: ANN401 - ONNX Runtime has no types
    feed: Feed,
    options: Any,  # noqa: ANN401
    times: RunTimes,
    outputs: Sequence[str] = (),
) -> list[Any]:
    """Run a session once, append its time to ``times``, and return the outputs named, or all if none is named."""
    elapsed_start, processor_start = time.perf_counter(), time.process_time()
    values = run_session(session, outputs or None, feed, options)
    times.elapsed.append(1000 * (time.perf_counter() - elapsed_start))
    times.processor.append(1000 * (time.process_time() - processor_start))
    return values


def _time_runs(spec: RunSpec) -> RunTimes:
    """Return the times of steady runs on the first input set, `_MIN_TIMED_RUNS` or more.

    They are runs of a new session without profiler, because profiling takes time.
    """
    session, feed = spec.session.create(), spec.inputs[0].draw()
    options = run_options(spec.session.settings)
    times = RunTimes()
    for _ in range(_WARM_UP_RUNS):
        _timed_run(session, feed, options, RunTimes())  # this time is not kept
    while len(times.elapsed) < _MIN_TIMED_RUNS or (
        sum(times.elapsed) < _MIN_TIMED_MILLISECONDS and len(times.elapsed) < _MAX_TIMED_RUNS
    ):
        _timed_run(session, feed, options, times)
    return times
