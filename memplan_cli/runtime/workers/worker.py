"""ONNX Runtime in a process of its own, so that a crash there is no crash here.

A job is a kind and a JSON object; the child writes a JSON object back. A native crash, a
hang or an error in the child is an `Outcome` with a failure, never ours. Arrays travel as
files in folders that the job names.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from memplan_cli.core.children import Child, end_with_parent
from memplan_cli.core.interrupts import deferred
from memplan_cli.core.results.observations import CUDA, DEFAULT_TIMEOUT
from memplan_cli.errors import MemplanError, RuntimeTimeoutError, RuntimeUnavailableError
from memplan_cli.runtime.workers.warm import (
    ForkedJob,
    Request,
    ServerGoneError,
    fork_job,
    worker_environment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.runtime.workers.warm import Begin

_MODULE = "memplan_cli.runtime.workers.worker"

WORKER = ["-m", _MODULE]
"""Arguments of Python that run `main`."""

Json = dict[str, object]

JOBS: Mapping[str, str] = {
    "probe": "memplan_cli.runtime.workers.jobs.probe",
    "run": "memplan_cli.runtime.workers.jobs.run",
    "measure": "memplan_cli.runtime.workers.jobs.run",
    "donated": "memplan_cli.features.donation.proof_job",
    "decode": "memplan_cli.features.kv_cache.decode_job",
    "dump": "memplan_cli.runtime.workers.jobs.dump",
    "offline": "memplan_cli.runtime.workers.jobs.offline",
    "replay": "memplan_cli.runtime.proofs.replay_job",
    "inplace": "memplan_cli.runtime.workers.jobs.inplace",
    "together": "memplan_cli.features.serving.load_job",
    "soak": "memplan_cli.features.serving.soak_job",
}
"""Each module has ``run(job) -> result``; it is imported in the child only."""

_MEASURING = frozenset({"measure", "together", "soak"})
"""Kinds of jobs whose figures are those of a process that has done nothing before.

A run that needs no such process is a ``run``, which a waiting process may do.
"""

_TAIL = 1200
"""Characters kept of a log (the last) and of an error (the first)."""

_NO_ROOM = 74
"""EX_IOERR of sysexits.h: the exit code of a child that could not write its result."""


How = Literal["ok", "error", "crash", "timeout"]
"""``error``: the child raised an exception. ``crash``: the child died."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job, or how and why the job failed."""

    how: How
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

    def require(self, what: str) -> Json:
        """Return the result.

        Raises:
            RuntimeTimeoutError: the job took too long.
            RuntimeUnavailableError: the job failed otherwise. Either message starts with
                ``what``.
        """
        if self.ok:
            return self.result
        failure = RuntimeTimeoutError if self.timed_out else RuntimeUnavailableError
        raise failure(
            f"{what}: {self.reason}",
            hint="--no-validate leaves the runtime out; `memplan doctor` shows what works here",
        )


class Job:
    """A job in a child process; leaving the ``with`` block ends the process."""

    def __init__(
        self,
        arguments: list[str],
        job: Mapping[str, object],
        timeout: float,
        about: About | None = None,
    ) -> None:
        """Start a job; an earlier job of this thread ends before.

        Args:
            arguments: of Python; a folder with ``job.json`` is appended.
            job: the content of ``job.json``.
            timeout: seconds that the job may take.
            about: the model of the job, for a fork that waits for further jobs.

        Raises:
            RuntimeUnavailableError: there is no room for the job's temporary files.
        """
        self._arguments, self._timeout, self._about = arguments, timeout, about
        self._found: Outcome | None = None
        self._process: Child | ForkedJob | None = None
        # Two sessions at the same time would take the memory of both.
        if _latest.job is not None:
            _latest.job.outcome()
        text = json.dumps(job)
        # A CUDA driver does not work in a fork of a process that has loaded it.
        self._forks = arguments[:-1] == WORKER and CUDA not in text
        self._room = tempfile.TemporaryDirectory(prefix="memplan-")
        self._folder = Path(self._room.name)
        try:
            try:
                (self._folder / "job.json").write_text(text, encoding="utf-8")
            except OSError as error:
                raise RuntimeUnavailableError(
                    f"no room for temporary files in {self._folder.parent}: {error.strerror}",
                    hint="set TMPDIR to a folder on a larger disk",
                ) from error
            self._until = time.monotonic() + timeout
            self._start()
        except BaseException:
            self.end()
            raise
        _latest.job = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def outcome(self) -> Outcome:
        """Wait for the job and return its result or failure."""
        if self._found is None:
            self._found = self._waited()
            self.end()
        return self._found

    @property
    def process(self) -> int:
        """The id of the process that did the job; one process may do several jobs."""
        return 0 if self._process is None else self._process.pid

    def end(self) -> None:
        """Kill the process if it still runs, and remove the job's temporary files."""
        if _latest.job is self:
            _latest.job = None
        if self._process is not None:
            self._process.end()
        self._room.cleanup()

    def _start(self) -> None:
        log, words = self._folder / "log", [*self._arguments, str(self._folder)]
        # Temporary files that a killed worker leaves behind are removed with the job's folder.
        environment = {**worker_environment(), "TMPDIR": str(self._folder)}
        with deferred():  # a signal must not come between the start and the assignment
            if self._forks:
                where = _current_folder(), str(log), environment
                kept = () if self._about is None else (self._about.model, self._about.begin)
                arguments = words[len(WORKER) :]
                self._process = fork_job(Request(f"{_MODULE}:main", arguments, *where, *kept))
            if self._process is None:
                with log.open("wb") as output:
                    command = [sys.executable, *words]
                    self._process = Child.start(command, environment, output=output)

    def _waited(self) -> Outcome:
        assert self._process is not None  # noqa: S101 - it was started
        try:
            code = self._process.wait(max(self._until - time.monotonic(), 0))
        except ServerGoneError:
            self._forks, self._process = False, None
            self._start()
            return self._waited()
        except subprocess.TimeoutExpired:
            return Outcome("timeout", {}, f"no answer within {self._timeout:g} s")
        return _outcome(self._folder / "result.json", self._folder / "log", code)


@dataclass(frozen=True, slots=True)
class About:
    """The model by which a waiting process is found, and whether that process is replaced."""

    model: str
    begin: Begin


class _Latest(threading.local):
    """The last job that this thread has started, until its outcome is known."""

    def __init__(self) -> None:
        self.job: Job | None = None


_latest = _Latest()


def run_job(
    kind: str,
    job: Mapping[str, object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    about: Path | None = None,
) -> Outcome:
    """Run one job in a child process and wait for it at most ``timeout`` seconds."""
    with start_job(kind, job, timeout=timeout, about=about) as started:
        return started.outcome()


def start_job(
    kind: str,
    job: Mapping[str, object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    about: Path | None = None,
) -> Job:
    """Start one job in a child process; an earlier job of this thread ends before.

    Args:
        kind: a key of `JOBS`.
        job: what the job's function is called with, as JSON.
        timeout: seconds that the job may take.
        about: the model of the job. Within `warm_workers` its process waits for further jobs
            of that model; a job that measures a process starts a new one.

    Raises:
        RuntimeUnavailableError: there is no room for the job's temporary files.
    """
    begin: Begin = "new" if kind in _MEASURING else "waiting"
    whose = About(str(about.absolute()), begin) if about is not None else None
    return start_script([*WORKER, kind], job, timeout=timeout, about=whose)


def start_script(
    arguments: list[str],
    job: Mapping[str, object],
    *,
    timeout: float,
    about: About | None = None,
) -> Job:
    """Start Python with these arguments and the job's folder, or fork a `WORKER`.

    Raises:
        RuntimeUnavailableError: there is no room for the job's temporary files.
    """
    return Job(arguments, job, timeout, about)


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return os.sep


def _outcome(result: Path, log: Path, code: int) -> Outcome:
    if not result.exists():
        return Outcome("crash", {}, f"{_exit_reason(code)}{_tail(log)}")
    answer = json.loads(result.read_text(encoding="utf-8"))
    return Outcome(answer["how"], answer["result"], answer["reason"])


def _exit_reason(code: int) -> str:
    if code < 0:
        try:
            return f"the runtime's process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the runtime's process died of signal {-code}"
    if code == _NO_ROOM:
        return f"no room for temporary files in {tempfile.gettempdir()}"
    return f"the runtime's process ended with exit code {code}"


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return f": {text[-_TAIL:]}" if text else ""


def main(kind: str, job_folder: str) -> None:
    """Run one job in this process: read ``job.json`` of the folder, write ``result.json``."""
    folder = Path(job_folder)
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        result = importlib.import_module(JOBS[kind]).run(job)
        answer = {"how": "ok", "result": result, "reason": ""}
    except MemplanError as error:
        answer = {"how": "error", "result": {}, "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - the parent reports every error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_TAIL]
        answer = {"how": "error", "result": {}, "reason": reason}
    # Renaming is atomic: a crash while writing leaves no incomplete result.
    draft = folder / "draft.json"
    try:
        draft.write_text(json.dumps(answer), encoding="utf-8")
        draft.replace(folder / "result.json")
    except OSError as error:
        raise SystemExit(_NO_ROOM) from error


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1], sys.argv[2])
