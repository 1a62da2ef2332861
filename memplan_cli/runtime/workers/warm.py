"""The parent's side of the fork server: jobs in forks of a process that has imported ONNX Runtime.

A job that cannot be forked (another system than Linux, another thread, other variables that a
library reads when it is loaded, a server that was killed) gets a new Python process instead;
`worker` decides.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from memplan_cli.core.children import Child
from memplan_cli.core.interrupts import deferred

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

SERVER = ("-m", "memplan_cli.runtime.workers.server")

CANCEL = "cancel"
"""The message that ends the job which the server runs."""

_AT_IMPORT = (
    "PYTHON",
    "LD_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "ORT_",
    "CUDA_",
    "MALLOC_",
    "GLIBC_",
)
"""Prefixes of variables that Python or a library reads when it starts."""

QUIET: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime's wheels send events to their maker and leave files in the folder for
temporary ones, unless this is set when the library is loaded (its Privacy.md). A user who sets
the variable to another value gets that value."""

_CANCEL_SECONDS = 5.0
"""How long a server may take to end a job, or to start, before it is killed itself."""

Begin = Literal["waiting", "new"]
"""Whether the waiting worker of a model does a job, or a new process that replaces it."""

Answer = tuple[int, int | None]
"""The process id of a job and its exit code; None: the job was cancelled."""


@dataclass(frozen=True, slots=True)
class Request:
    """A job for a forked process.

    Attributes:
        function: ``module:name`` of a function that takes the arguments.
        arguments: what the function is called with.
        folder: the current folder of the job.
        log: the file to which stdout and stderr are appended.
        environment: all variables of the job.
        worker: the process with this name waits for further requests; empty: the process ends.
        begin: whether a process that waits under this name does the job.
    """

    function: str
    arguments: Sequence[str]
    folder: str
    log: str
    environment: Mapping[str, str]
    worker: str = ""
    begin: Begin = "waiting"


class ServerGoneError(Exception):
    """The server has ended, and with it the job."""


class Server:
    """A process that forks one job at a time."""

    def __init__(
        self, child: Child, connection: Connection, environment: Mapping[str, str]
    ) -> None:
        self._child, self._connection = child, connection
        self._environment = _read_at_import(environment)
        self._thread = threading.get_ident()

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Server:
        """Start a server and return at once; the server imports in the background.

        Args:
            command: arguments of Python that end in a call of `server.serve`.
            environment: its variables.
        """
        from multiprocessing import Pipe

        ours, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            words = [sys.executable, *command, str(number)]
            child = Child.start(words, environment, connections=(number,))
        return cls(child, ours, environment)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._child.pid

    def accepts(self, environment: Mapping[str, str]) -> bool:
        """Return whether a job with these variables can be forked from this thread."""
        return (
            self._thread == threading.get_ident()
            and self._child.process.returncode is None
            and self._environment == _read_at_import(environment)
        )

    def start_job(self, request: Request) -> ForkedJob:
        """Start a job in a forked process.

        Raises:
            ServerGoneError: the server has ended.
        """
        try:
            self._connection.send(request)
        except OSError as error:
            self.close()
            raise ServerGoneError from error
        return ForkedJob(self)

    def answer(self, timeout: float) -> Answer:
        """Wait for the job that runs.

        Raises:
            TimeoutExpired: the job still runs after ``timeout`` seconds.
            ServerGoneError: the server has ended.
        """
        try:
            if not self._connection.poll(timeout):
                raise subprocess.TimeoutExpired(SERVER, timeout)
            with deferred():  # a message is read whole
                answer: Answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise ServerGoneError from error
        return answer

    def cancel(self) -> None:
        """Kill the job that runs and wait until it has ended; kill the server if it hangs."""
        try:
            self._connection.send(CANCEL)
            self.answer(_CANCEL_SECONDS)
        except (OSError, ServerGoneError, subprocess.TimeoutExpired):
            self.close()

    def close(self) -> None:
        """Kill the server with all its processes."""
        with deferred():
            self._child.end()
            self._connection.close()


class ForkedJob:
    """A job that a server has forked."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_over = False
        self.pid = 0
        """The process id of the job, known when it has ended."""

    def wait(self, timeout: float) -> int:
        """Return the exit code of the job, negative for a signal.

        Raises:
            TimeoutExpired: the job still runs after ``timeout`` seconds.
            ServerGoneError: the server has ended, and the job with it.
        """
        try:
            self.pid, code = self._server.answer(timeout)
        except ServerGoneError:
            self._is_over = True
            raise
        self._is_over = True
        return 1 if code is None else code

    def end(self) -> None:
        """Kill the job if it still runs."""
        with deferred():
            if not self._is_over:
                self._server.cancel()
                self._is_over = True


running: Server | None = None
"""The server from which this process forks its jobs."""


def can_fork() -> bool:
    """Return whether this system can fork a process that has imported the runtime."""
    return sys.platform == "linux"


@contextmanager
def warm_workers() -> Iterator[None]:
    """Fork the jobs of this thread from one server while the block lasts.

    The server starts at once and imports in the background. A block inside such a block uses
    the same server.
    """
    if not can_fork() or running is not None:
        yield
        return
    with deferred():
        server = Server.start(SERVER, worker_environment())
    try:
        with using(server):
            yield
    finally:
        server.close()


@contextmanager
def using(server: Server) -> Iterator[None]:
    """Fork the jobs of this thread from a given server while the block lasts."""
    global running  # noqa: PLW0603 - a process has one server, or none
    former, running = running, server
    try:
        yield
    finally:
        running = former


def fork_job(request: Request) -> ForkedJob | None:
    """Start a job in a fork of the running server; None if it cannot be forked."""
    if running is None or not running.accepts(request.environment):
        return None
    try:
        return running.start_job(request)
    except ServerGoneError:
        return None


def worker_environment() -> dict[str, str]:
    """Return this process's variables, with those by which a worker finds memplan."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**QUIET, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _read_at_import(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_AT_IMPORT)}
