"""The client of the fork server: jobs in forks of a process that has imported ONNX Runtime.

Jobs are forked on Linux, from the thread that started the server, while the environment
variables that Python and the libraries read at import are unchanged. Other jobs get a new Python
process (`worker.Job`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.children import Child
from memplan_cli.core.interrupts import deferred

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

SERVER = ("-m", "memplan_cli.runtime.workers.fork_server")

CANCEL = "cancel"
"""The message that ends the job which the server runs."""

_READ_AT_IMPORT = (
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
"""Prefixes of the variables that Python or a library reads when it starts."""

_NO_TELEMETRY: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
"""Without this variable, ONNX Runtime's wheels send events to their maker and leave files in the
temporary folder (see its Privacy.md). A value that the user sets is kept."""

_CANCEL_SECONDS = 5.0
"""How long a server may take to end a job, or to start, before it is killed itself."""


@dataclass(frozen=True, slots=True)
class Request:
    """A job for a forked process.

    Attributes:
        function: ``module:name`` of a function that takes the arguments.
        arguments: the arguments of the function.
        folder: the current folder of the job.
        log: the file to which stdout and stderr are appended.
        environment: all variables of the job.
    """

    function: str
    arguments: Sequence[str]
    folder: str
    log: str
    environment: Mapping[str, str]


class ServerGoneError(Exception):
    """The server has ended, and with it the job."""


class Server:
    """A fork server that was started. It runs one job at a time."""

    def __init__(
        self, child: Child, connection: Connection, environment: Mapping[str, str]
    ) -> None:
        self._child, self._connection = child, connection
        self._environment = _variables_read_at_import(environment)
        self._thread = threading.get_ident()

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Server:
        """Start a server and return at once; the server imports in the background.

        Args:
            command: arguments of Python that end in a call of `fork_server.serve`.
            environment: the variables of the server.
        """
        from multiprocessing import Pipe

        own_end, server_end = Pipe()
        with server_end:
            descriptor = server_end.fileno()
            words = [sys.executable, *command, str(descriptor)]
            child = Child.start(words, environment, connections=(descriptor,))
        return cls(child, own_end, environment)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._child.pid

    def accepts(self, environment: Mapping[str, str]) -> bool:
        """Return whether a job with these variables can be forked from this thread."""
        return (
            self._thread == threading.get_ident()
            and self._child.process.returncode is None
            and self._environment == _variables_read_at_import(environment)
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

    def answer(self, timeout: float) -> int | None:
        """Wait for the end of the job that runs, and return its exit code; None: it was canceled.

        Raises:
            TimeoutExpired: the job still runs after ``timeout`` seconds.
            ServerGoneError: the server has ended.
        """
        try:
            if not self._connection.poll(timeout):
                raise subprocess.TimeoutExpired(SERVER, timeout)
            with deferred():  # a signal must not come in the middle of a message
                exit_code: int | None = self._connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise ServerGoneError from error
        return exit_code

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

    def wait(self, timeout: float) -> int:
        """Wait for the job and return its exit code: negative for a signal, 1 if the job was canceled.

        Raises:
            TimeoutExpired: the job still runs after ``timeout`` seconds.
            ServerGoneError: the server has ended, and the job with it.
        """
        try:
            code = self._server.answer(timeout)
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
"""The server from which this process forks its jobs. It accepts only those of the thread that started it
(`Server.accepts`); jobs of other threads get new processes."""


@contextmanager
def warm_workers() -> Iterator[None]:
    """Start the server from which `fork_job` forks the jobs of this thread, and end it after the block."""
    # A process has one server, which takes the jobs of the thread that started it. So jobs in a block inside this one
    # use the same server, and jobs in a block of a second thread get new processes.
    if sys.platform != "linux" or running is not None:
        yield
        return
    server: Server | None = None
    try:
        # A signal waits until `server` is set, and is raised inside the `try`.
        with deferred():
            server = Server.start(SERVER, worker_environment())  # imports in the background
        with using(server):
            yield
    finally:
        if server is not None:
            server.close()


@contextmanager
def using(server: Server) -> Iterator[None]:
    """Make a server the one from which jobs are forked (`running`) while the block lasts."""
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
    """Return the variables of a worker: those of this process, and memplan's folder to import."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**_NO_TELEMETRY, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _variables_read_at_import(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)
    }
