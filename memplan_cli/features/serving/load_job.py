"""Several fresh processes that hold the same model at once, and what they take together.

What they share (mapped files, the runtime's libraries) counts to each in equal shares: the
proportional set size, which Linux alone says. Each process is started anew, as a server's workers
are: a fork would share what Python and the runtime have in memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from memplan_cli.runtime.workers.process_memory import proportional
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json

_RUNS = 3
"""Runs before it is measured, as of one process."""

_READY = "ready"


def run(job: Json) -> Json:
    """Return the proportional bytes of each process; None where the system does not say.

    The processes end with this one: their input is a pipe from it.
    """
    count = int(str(job["processes"]))
    if proportional(None) is None:
        return {"bytes": None}
    with ExitStack() as stack:
        waiting = [stack.enter_context(_Waiting(job)) for _ in range(count)]
        for process in waiting:
            process.wait_until_ready()
        return {"bytes": [proportional(process.number) for process in waiting]}


class _Waiting:
    """A process that runs the model a few times, and then waits."""

    def __init__(self, job: Json) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "memplan_cli.features.serving.load_job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.number = self._process.pid
        self._say(json.dumps({"session": job["session"], "inputs": job["inputs"]}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _say(self, line: str) -> None:
        assert self._process.stdin  # noqa: S101 - it is a pipe
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def wait_until_ready(self) -> None:
        """Wait for the runs.

        Raises:
            OSError: the process ended before.
        """
        assert self._process.stdout  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            if line.strip() == _READY:
                return
        raise OSError(
            f"a process ended with code {self._process.wait()} before it was measured"
        )


def main() -> None:
    """Run one model, and wait until nobody is there to measure this process any more."""
    document: Any = json.loads(sys.stdin.readline())
    spec = SessionSpec.of_job(document)
    session, feed = spec.create(), InputSet.of_job(document).draw()
    for _ in range(_RUNS):
        run_session(session, None, feed, run_options(spec.settings))
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
