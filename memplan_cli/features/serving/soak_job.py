"""Serve many requests of changing size in one process, and sample what it takes."""

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
from memplan_cli.core.results.observations import CPU
from memplan_cli.onnx_io.runs.prepared_models import smallest_model
from memplan_cli.runtime.workers.inputs import InputsAhead
from memplan_cli.runtime.workers.process_memory import baseline, resident
from memplan_cli.runtime.workers.profile import read_profile
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import given_options_count, run_options
from memplan_cli.runtime.workers.spec import SessionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.runtime.workers.worker import Json


_SAMPLES_A_READING = 8
"""Times at which memory is sampled, for each reading of the arena: that takes memory too."""


def run(job: Json) -> Json:
    """Return times, samples of memory and digests of outputs.

    ``job`` has ``order``, the index into ``sizes`` of each request, ``every``, after how
    many requests memory is sampled, ``compared``, the requests whose outputs are wanted, and
    ``seconds``, after which no further request is begun. Bytes are those beyond the process
    in which the session stands.
    """
    spec, given = SessionSpec.of_job(job), dict[str, Any](job)
    sizes = [
        [from_json(FeedSpec, each, "the job") for each in specs] for specs in given["sizes"]
    ]
    session, options = spec.create(), run_options(spec.settings)
    inputs = InputsAhead(sizes)
    _digest(inputs.largest)
    compared = set(given["compared"])
    until = time.monotonic() + float(given["seconds"])
    milliseconds, effort, digests = [], [], {}
    samples: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(prefix="memplan-soak-") as folder:
        meter = _Meter(spec, Path(folder))
        start = baseline()
        for number, size in enumerate(given["order"]):
            if number and time.monotonic() > until:
                break
            feed = inputs.of(sizes[size])
            before, worked = time.perf_counter(), time.process_time()
            outputs = run_session(session, None, feed, options)
            milliseconds.append(1000 * (time.perf_counter() - before))
            effort.append(1000 * (time.process_time() - worked))
            if number in compared:
                digests[str(number)] = _digest(outputs)
            # Outputs lie in the arena: kept, they would count in the next run.
            del outputs, feed
            now = resident()
            if now and start and not number % given["every"]:
                samples.append((number, now.anonymous - start.anonymous))
                if not len(samples) % _SAMPLES_A_READING:
                    meter.read()
        end = resident()
        if end and start:
            samples.append((len(milliseconds) - 1, end.anonymous - start.anonymous))
        meter.read()
        held = meter.readings()
    highest = end.highest - start.now if end and start else None
    return {
        "milliseconds": milliseconds,
        "effort": effort,
        "digests": digests,
        "samples": samples,
        "highest": highest,
        "held": held,
    }


class _Meter:
    """Reads what the arena of the process has taken, by a session of one op on it.

    Only the profile of a session says it, and the profile of the model itself would be long.
    A session without an arena of the environment has one of its own, that nobody else can read.
    """

    def __init__(self, spec: SessionSpec, folder: Path) -> None:
        self._session: Any = None
        if spec.settings.arena and spec.provider == CPU:
            import onnxruntime as ort

            options = ort.SessionOptions()
            options.log_severity_level = 3
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "meter")
            options.add_session_config_entry("session.use_env_allocators", "1")
            with given_options_count():
                self._session = ort.InferenceSession(
                    smallest_model(), options, providers=[CPU]
                )

    def read(self) -> None:
        """Take a reading."""
        if self._session is not None:
            self._session.run(None, {"x": np.ones(4, np.float32)})

    def readings(self) -> list[int]:
        """Return all readings in bytes, weights left out; none where there is nothing to read.

        What is in use between requests are weights: they lie beside the arena's regions, and
        are counted with them.
        """
        if self._session is None:
            return []
        profile = Path(self._session.end_profiling())
        recording = read_profile(json.loads(profile.read_text(encoding="utf-8")))
        return [event.held - event.requested_before for run in recording.runs for event in run]


def _digest(outputs: Sequence[Any]) -> str:
    found = hashlib.sha256()
    for output in outputs:
        for part in output if isinstance(output, list) else [output]:
            array = np.asarray(part)
            found.update(f"{array.dtype} {array.shape}".encode())
            is_text = array.dtype == object
            # A view: a copy would be the largest block that the process ever asks for.
            found.update(
                repr(array.tolist()).encode()
                if is_text
                else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            )
    return found.hexdigest()
