"""How long does a run take, one variant against another, on a machine that is never quiet?

Each variant lives in a process of its own, since a CPU arena belongs to the process, and
the processes run in turns: what slows one down slows its neighbor down too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.core.bindings import FeedSpec

LEAST_ROUNDS = 15
MOST_ROUNDS = 400
SECONDS = 20.0
"""Enough rounds are done when both the least rounds and a fifth of this, or this, are over."""

WARM = 3
"""Runs that grow the arena and make the memory pattern."""


def alternate(
    trials: Mapping[str, tuple[Path, Mapping[str, Any]]],
    specs: tuple[FeedSpec, ...] | None,
    dims: Mapping[str, int],
) -> dict[str, float]:
    """Return the median milliseconds of a run of each variant.

    Args:
        trials: the model and the settings (as JSON) of each variant, by name.
        specs: how to draw the inputs; None reads it from the first model.
        dims: values for symbolic dims, where ``specs`` is None.
    """
    model = next(iter(trials.values()))[0]
    chosen = specs if specs is not None else feed_specs(load_model(model), dims)
    workers = {
        name: _started(
            SessionSpec(path, CPU, from_json(RuntimeSettings, settings, "the settings")),
            InputSet(chosen),
        )
        for name, (path, settings) in trials.items()
    }
    try:
        for worker in workers.values():
            _answer(worker)
        return _rounds(workers)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()


def _rounds(workers: Mapping[str, subprocess.Popen[str]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in workers}
    began = time.perf_counter()
    for number in range(MOST_ROUNDS):
        spent = time.perf_counter() - began
        if spent > SECONDS or (number >= LEAST_ROUNDS and spent > SECONDS / 5):
            break
        # Another one goes first in each round: nobody always follows the same neighbor.
        names = list(workers)
        shift = number % len(names)
        for name in (*names[shift:], *names[:shift]):
            _ask(workers[name])
            times[name].append(_answer(workers[name]))
    return {name: median(found) for name, found in times.items()}


def _started(session: SessionSpec, inputs: InputSet) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.benchmarks.alternating"]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    _say(worker, json.dumps({"session": to_json(session), "inputs": to_json(inputs)}))
    return worker


def _say(worker: subprocess.Popen[str], text: str) -> None:
    assert worker.stdin
    worker.stdin.write(f"{text}\n")
    worker.stdin.flush()


def _ask(worker: subprocess.Popen[str]) -> None:
    _say(worker, "run")


def _answer(worker: subprocess.Popen[str]) -> float:
    assert worker.stdout
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError("a timed process died")
    return float(line)


def main() -> None:
    """Load one model, and run it each time a line comes in."""
    job = json.loads(sys.stdin.readline())
    spec = SessionSpec.of_job(job)
    session, feed, settings = spec.create(), InputSet.of_job(job).draw(), spec.settings
    for _ in range(WARM):
        session.run(None, feed, run_options(settings))
    print(0.0, flush=True)
    for _ in sys.stdin:
        before = time.perf_counter()
        outputs = session.run(None, feed, run_options(settings))
        spent = 1000 * (time.perf_counter() - before)
        del outputs
        print(spent, flush=True)


if __name__ == "__main__":
    main()
