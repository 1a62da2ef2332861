"""Job: serve many requests of changing size in one process, and sample its memory."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.bindings import FeedSpec
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.onnx_io.runs.prepared_models import smallest_model
from memplan_cli.runtime.workers.inputs import PreparedInputs
from memplan_cli.runtime.workers.ort_values import run_session
from memplan_cli.runtime.workers.process_memory import baseline, resident
from memplan_cli.runtime.workers.session import make_session, run_options
from memplan_cli.runtime.workers.session_profile import read_profile
from memplan_cli.runtime.workers.spec import SessionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.json_types import Json

_SAMPLES_PER_READING = 8
"""Samples of memory for each reading of the arena, because readings take memory too."""


def run(job: Json) -> Json:
    """Job: serve requests in order, and return their times, samples of memory, and digests.

    Args:
        job: ``session``: of the model; ``sizes``: for each size, how its inputs are drawn;
            ``order``: the size of each request, as an index into ``sizes``; ``every``: the number
            of requests between two samples of memory; ``compared``: the requests whose outputs
            get a digest; ``seconds``: the time after which no further request begins.

    Returns:
        ``milliseconds``, ``cpu_milliseconds``: of each request.
        ``digests``: of the outputs of the compared requests, by request.
        ``samples``, ``highest``, ``held``: of the memory, see `_MemorySampler.end`.
    """
    spec = SessionSpec.of_job(job)
    sizes = [
        [from_json(FeedSpec, entry, "the job") for entry in specs] for specs in job["sizes"]
    ]
    session, options = spec.create(), run_options(spec.settings)
    inputs = PreparedInputs(sizes)
    _digest(inputs.largest)  # what hashing allocates is part of the baseline
    compared = set(job["compared"])
    deadline = time.monotonic() + float(job["seconds"])
    milliseconds: list[float] = []
    cpu_milliseconds: list[float] = []
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="memplan-soak-") as folder:
        memory = _MemorySampler(_ArenaReader(spec, Path(folder)))
        for request, size in enumerate(job["order"]):
            if request and time.monotonic() > deadline:
                break
            feed = inputs.feed(sizes[size])
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            outputs = run_session(session, None, feed, options)
            milliseconds.append(1000 * (time.perf_counter() - wall_start))
            cpu_milliseconds.append(1000 * (time.process_time() - cpu_start))
            if request in compared:
                digests[str(request)] = _digest(outputs)
            # Outputs lie in the arena: kept, they would count in the next run.
            del outputs, feed
            if not request % job["every"]:
                memory.sample(request)
        return {
            "milliseconds": milliseconds,
            "cpu_milliseconds": cpu_milliseconds,
            "digests": digests,
            **memory.end(last_request=len(milliseconds) - 1),
        }


class _MemorySampler:
    """Samples the memory of this process, beyond what it takes when the object is created.

    There are no samples where the operating system does not tell the memory of a process.
    """

    def __init__(self, arena: _ArenaReader) -> None:
        """Record the memory of this process before any request."""
        self._arena = arena
        self._samples: list[tuple[int, int]] = []  # (request, bytes beyond those of `_start`)
        self._start = baseline()

    def sample(self, request: int) -> None:
        """Sample the memory after a request, and the arena once for several samples."""
        memory = resident()
        if memory is None or self._start is None:
            return
        self._samples.append((request, memory.anonymous - self._start.anonymous))
        if not len(self._samples) % _SAMPLES_PER_READING:
            self._arena.read()

    def end(self, *, last_request: int) -> dict[str, Any]:
        """Sample the memory and read the arena a last time, and return what was recorded.

        Returns:
            ``samples``: ``[request, bytes]``: memory after a request, beyond that at the start, without
            mapped files, which the system reads and drops at its own times.
            ``highest``: the same with mapped files, at the highest time; None if unknown.
            ``held``: the bytes that the arena held, without weights, each time it was read.
        """
        last, start = resident(), self._start
        if last and start:
            self._samples.append((last_request, last.anonymous - start.anonymous))
        self._arena.read()
        return {
            "samples": self._samples,
            "highest": last.highest - start.now if last and start else None,
            "held": self._arena.end(),
        }


class _ArenaReader:
    """Reads the bytes that the arena of the process holds, by a session of one op that uses this arena too.

    Only the profile of a session has these bytes, and a profile of the model would be long. So a model of
    one op is run between requests, and its profile is read at the end. An arena that belongs to one
    session cannot be read so; then there are no readings.
    """

    def __init__(self, spec: SessionSpec, folder: Path) -> None:
        """Create the session of one op, if the model's session (of ``spec``) uses the arena of the process.

        The profile of the new session, a file in ``folder``, tells the bytes that this arena holds at each `read`.
        """
        self._session: Any = None  # None: the arena cannot be read
        # A session on the CPU with arena settings uses the arena of the process (see `make_session`), others an
        # arena of their own.
        model_uses_process_arena = spec.settings.arena and spec.provider == CPU
        if model_uses_process_arena:
            profiled = RuntimeSettings(
                session={
                    "enable_profiling": True,
                    "profile_file_prefix": str(folder / "arena"),
                },
                session_config={"session.use_env_allocators": "1"},
            )
            self._session = make_session(smallest_model(), profiled, CPU)

    def read(self) -> None:
        """Record the bytes that the arena holds now, if the arena can be read.

        The run of one op adds an event with these bytes to the profile.
        """
        if self._session is not None:
            self._session.run(None, {"x": np.ones(4, np.float32)})

    def end(self) -> list[int]:
        """End the session, and return the bytes that the arena held at each `read`, without weights."""
        if self._session is None:
            return []
        profile = Path(self._session.end_profiling())
        runs = read_profile(json.loads(profile.read_text(encoding="utf-8")))
        events = [event for run in runs for event in run]  # one for each `read`
        # The model serves no request during a `read`. So the bytes that are requested and not freed
        # before its op are those of weights.
        return [event.held - event.requested_before for event in events]


def _digest(outputs: Sequence[Any]) -> str:
    """Return a digest of the types, shapes and elements of outputs; a list is a sequence of tensors."""
    digest = hashlib.sha256()
    for output in outputs:
        for element in output if isinstance(output, list) else [output]:
            array = np.asarray(element)
            digest.update(f"{array.dtype} {array.shape}".encode())
            if array.dtype == object:
                digest.update(repr(array.tolist()).encode())
            else:
                # A view: a copy would be the largest block that the process ever allocates.
                flat = np.ascontiguousarray(array).reshape(-1)
                digest.update(flat.view(np.uint8).data)
    return digest.hexdigest()
