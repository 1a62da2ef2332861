"""Jobs: functions that work with ONNX Runtime, each run in a child process.

A crash, a hang or an error in the child becomes a failed `Outcome`. A job is named
``module:function``; the function takes a JSON object and returns one. Parent and child exchange
files in a temporary folder: ``job.json``, ``result.json``, and ``log`` with the output of the
child. Arrays are passed as files in folders that the job names.

    python -m memplan_cli.runtime.workers.worker MODULE:FUNCTION FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from memplan_cli.core.children import Child, end_with_parent
from memplan_cli.core.interrupts import deferred
from memplan_cli.core.results.observations import CUDA, DEFAULT_TIMEOUT
from memplan_cli.errors import (
    MemplanError,
    RuntimeMissingError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
)
from memplan_cli.runtime.workers.device_failures import device_failure
from memplan_cli.runtime.workers.fork_client import (
    ForkedJob,
    Request,
    ServerGoneError,
    fork_job,
    worker_environment,
)

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json

_MODULE = "memplan_cli.runtime.workers.worker"

WORKER = ["-m", _MODULE]
"""Arguments of Python that run `main`."""

_MAX_MESSAGE = 1200
"""Characters kept of a log (the last) and of an error message (the first)."""

_NAME_LIST = re.compile(r"\[('[^']*')((?:, '[^']*'){2,})\]")
"""Three or more names in a message of ONNX Runtime: a model may have hundreds."""

_NO_SPACE = 74
"""EX_IOERR of sysexits.h: the exit code of a child that could not write its result."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job, or why there is none.

    Attributes:
        how: ``error`` if the job raised an exception, ``missing`` if ONNX Runtime is not installed,
            ``crash`` if its process died, ``timeout`` if the process was killed after the time of the
            job.
        result: what the job returned; empty if it failed.
        reason: the error message; empty if it succeeded.
    """

    how: Literal["ok", "error", "missing", "crash", "timeout"]
    result: Json
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.how == "ok"

    @property
    def timed_out(self) -> bool:
        """Whether the process was killed because it took too long."""
        return self.how == "timeout"

    def require(self, failure: str) -> Json:
        """Return the result.

        Raises:
            RuntimeMissingError: ONNX Runtime is not installed.
            RuntimeTimeoutError: the job took too long.
            RuntimeUnavailableError: the job failed otherwise. Either message is
                ``failure: reason``.
        """
        if self.ok:
            return self.result
        if self.how == "missing":
            raise RuntimeMissingError
        error = RuntimeTimeoutError if self.timed_out else RuntimeUnavailableError
        raise error(
            f"{failure}: {self.reason}",
            hint="--no-validate leaves the runtime out; `memplan doctor` shows what works here",
        )


class Job:
    """A job that was started. Leaving the ``with`` block kills its process if it still runs.

    A thread runs one job at a time.
    """

    def __init__(self, function: str, content: Json, *, timeout: float) -> None:
        """Start a job when the earlier one of this thread has ended: two would need the memory of both.

        Args:
            function: ``module:function``; the module is imported in the child only.
            content: the argument of the function, which is written to ``job.json``.
            timeout: seconds that the job may take.

        Raises:
            RuntimeUnavailableError: ``job.json`` cannot be written.
        """
        self._function, self._timeout = function, timeout
        self._known_outcome: Outcome | None = None
        self._process: Child | ForkedJob | None = None
        if _running.job is not None:
            _running.job.outcome()  # waits for its end; the job keeps its outcome
        text = json.dumps(content)
        self._needs_gpu = CUDA in text  # the provider's name, which the session of the job has
        # CUDA does not work in a fork of a process that has loaded the driver: such a job starts a new Python.
        self._can_fork = not self._needs_gpu
        self._temporary = tempfile.TemporaryDirectory(prefix="memplan-")
        self._folder = Path(self._temporary.name)
        self._deadline = time.monotonic() + timeout
        try:
            self._write_content(text)
            self._start()
        except BaseException:
            self.end()
            raise
        _running.job = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def outcome(self) -> Outcome:
        """Wait for the job to end, and return its result or failure."""
        if self._known_outcome is None:
            outcome = self._wait()
            if self._needs_gpu:
                outcome = replace(outcome, reason=device_failure(outcome.reason))
            self._known_outcome = outcome
            self.end()
        return self._known_outcome

    def end(self) -> None:
        """Kill the process if it still runs, and remove the job's temporary files."""
        if _running.job is self:
            _running.job = None
        if self._process is not None:
            self._process.end()
        self._temporary.cleanup()

    def _write_content(self, text: str) -> None:
        """Write ``job.json``.

        Raises:
            RuntimeUnavailableError: it cannot be written.
        """
        try:
            (self._folder / "job.json").write_text(text, encoding="utf-8")
        except OSError as error:
            raise RuntimeUnavailableError(
                f"no room for temporary files in {self._folder.parent}: {error.strerror}",
                hint="set TMPDIR to a folder on a larger disk",
            ) from error

    def _start(self) -> None:
        """Fork a process for the job, or start a new Python if it cannot be forked."""
        log, arguments = self._folder / "log", [self._function, str(self._folder)]
        # Temporary files that a killed worker leaves behind are removed with the job's folder.
        environment = {**worker_environment(), "TMPDIR": str(self._folder)}
        with deferred():  # a signal must not come between the start and the assignment
            if self._can_fork:
                request = Request(
                    function=f"{_MODULE}:main",
                    arguments=arguments,
                    folder=_current_folder(),
                    log=str(log),
                    environment=environment,
                )
                self._process = fork_job(request)
            if self._process is None:
                with log.open("wb") as output:
                    command = [sys.executable, *WORKER, *arguments]
                    self._process = Child.start(command, environment, output=output)

    def _wait(self) -> Outcome:
        """Wait until the process ends or the time is over, and return its outcome.

        A process whose time is over still runs: `outcome` ends it.
        """
        assert self._process is not None  # noqa: S101 - it was started
        try:
            code = self._process.wait(max(self._deadline - time.monotonic(), 0))
        except ServerGoneError:
            # The job has ended with its fork server. It starts again in a new Python, with the same deadline.
            self._can_fork, self._process = False, None
            self._start()
            return self._wait()
        except subprocess.TimeoutExpired:
            return Outcome("timeout", {}, f"no answer within {self._timeout:g} s")
        result = self._folder / "result.json"
        if not result.exists():
            log = (self._folder / "log").read_text(encoding="utf-8", errors="replace").strip()
            end_of_log = f": {log[-_MAX_MESSAGE:]}" if log else ""
            return Outcome("crash", {}, f"{_exit_reason(code)}{end_of_log}")
        answer = json.loads(result.read_text(encoding="utf-8"))
        return Outcome(answer["how"], answer["result"], answer["reason"])


class _RunningJob(threading.local):
    """The job that the current thread started last, until its outcome is known."""

    job: Job | None = None


_running = _RunningJob()


def run_job(function: str, content: Json, *, timeout: float = DEFAULT_TIMEOUT) -> Outcome:
    """Run a job in a child process, as `start_job` does, and wait for its outcome."""
    with start_job(function, content, timeout=timeout) as job:
        return job.outcome()


def start_job(function: str, content: Json, *, timeout: float = DEFAULT_TIMEOUT) -> Job:
    """Return a new `Job`, which starts at once, with a default timeout."""
    return Job(function, content, timeout=timeout)


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return os.sep


def _exit_reason(code: int) -> str:
    """Return in words how a process without a result ended; ``-n`` is signal n."""
    if code < 0:
        try:
            return f"the runtime's process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the runtime's process died of signal {-code}"
    if code == _NO_SPACE:
        return f"no room for temporary files in {tempfile.gettempdir()}"
    return f"the runtime's process ended with exit code {code}"


def main(function: str, job_folder: str) -> None:
    """Run one job in this process: read ``job.json`` of the folder, write ``result.json``."""
    folder = Path(job_folder)
    content = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    module, _, name = function.partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(content)
        answer = {"how": "ok", "result": result, "reason": ""}
    except Exception as error:  # noqa: BLE001 - the parent reports every error
        answer = _failure(error)
    # Renaming is atomic: a crash while writing leaves no incomplete result.
    draft = folder / "draft.json"
    try:
        draft.write_text(json.dumps(answer), encoding="utf-8")
        draft.replace(folder / "result.json")
    except OSError as error:
        raise SystemExit(_NO_SPACE) from error


def _failure(error: Exception) -> Json:
    """Return the answer of a job that raised an error."""
    if isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime":
        return {"how": "missing", "result": {}, "reason": str(RuntimeMissingError())}
    if isinstance(error, MemplanError):
        reason = error.message
    else:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        # The list of all inputs of a model, ['a', 'b', 'c'], is shortened to ['a' and 2 more].
        short_message = _NAME_LIST.sub(
            lambda names: f"[{names[1]} and {names[2].count(', ')} more]", message
        )
        reason = short_message[:_MAX_MESSAGE]
    return {"how": "error", "result": {}, "reason": reason}


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1], sys.argv[2])
