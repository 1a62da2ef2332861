"""Measure the memory of several processes that hold the same model at the same time.

Memory that they share (mapped files, the libraries of the runtime) counts to each in equal
shares: the proportional set size, which only Linux provides. Each process is started anew, as the
workers of a web server are; forks would also share the memory of Python and the runtime.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.workers.spec import MEASURED_RUNS, InputSet, SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.spec import RunConditions

_MODULE = "memplan_cli.runtime.several_processes"

_READY = "ready"
"""The line that a process prints after its runs."""


def memory_of_processes(
    model: Path, settings: RuntimeSettings, conditions: RunConditions, count: int
) -> int | None:
    """Return the proportional bytes of ``count`` processes that hold a model at the same time.

    Each process has one intra-op thread. None if the system does not provide the bytes.

    Raises:
        RuntimeUnavailableError: weights are missing, or a run failed.
    """
    require_weights(model)
    one_thread = RuntimeSettings(session={"intra_op_num_threads": 1})
    session = conditions.session(model, one_thread.updated(settings))
    job = {
        "session": to_json(session),
        "inputs": to_json(conditions.input_set(model)),
        "processes": count,
    }
    outcome = run_job(f"{_MODULE}:measure_processes", job, timeout=conditions.timeout)
    result = outcome.require(f"{model} could not be held by {count} processes")
    sizes: list[int | None] | None = result["bytes"]
    measured = [size for size in sizes or () if size is not None]
    return sum(measured) if sizes is not None and len(measured) == len(sizes) else None


def measure_processes(job: Json) -> Json:
    """Job: start processes that run a model, and measure each while all of them live.

    Args:
        job: ``session`` and ``inputs``: of the model; ``processes``: their number.

    Returns:
        ``bytes``: the proportional bytes of each process; None if the system does not provide
        them.
    """
    from memplan_cli.runtime.workers.process_memory import proportional_bytes

    if proportional_bytes(None) is None:
        return {"bytes": None}
    with ExitStack() as stack:
        # The processes end with this one, whose end closes their standard input.
        processes = [stack.enter_context(_ModelProcess(job)) for _ in range(job["processes"])]
        for process in processes:
            process.wait_until_ready()
        return {"bytes": [proportional_bytes(process.pid) for process in processes]}


class _ModelProcess:
    """A process that runs the model a few times, and then waits until it is killed."""

    def __init__(self, job: Json) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stdin  # noqa: S101 - it is a pipe
        content = json.dumps({"session": job["session"], "inputs": job["inputs"]})
        self._process.stdin.write(f"{content}\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_until_ready(self) -> None:
        """Wait until the process has run the model.

        Raises:
            OSError: the process ended.
        """
        assert self._process.stdout  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            if line.strip() == _READY:
                return
        raise OSError(
            f"a process ended with code {self._process.wait()} before it was measured"
        )


def main() -> None:
    """Run the model in the first line of stdin, print `_READY`, and wait for the end of stdin."""
    from memplan_cli.runtime.workers.ort_values import run_session
    from memplan_cli.runtime.workers.session import run_options

    job: Any = json.loads(sys.stdin.readline())
    spec = SessionSpec.of_job(job)
    session, feed = spec.create(), InputSet.of_job(job).draw()
    for _ in range(MEASURED_RUNS):
        run_session(session, None, feed, run_options(spec.settings))
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
