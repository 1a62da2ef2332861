"""A server of forked jobs for the time of a command, where the system can fork.

Where there is none, or it has gone, or what a library reads when it is loaded has changed
since it started, a job gets a process that starts anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from memplan_cli.core.children import Child, readable
from memplan_cli.core.interrupts import deferred
from memplan_cli.runtime.workers.request import STOP, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.runtime.workers.request import Begin

SERVER = ("-m", "memplan_cli.runtime.workers.server")

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
"""Beginnings of variables that Python or a library reads when it starts."""

QUIET: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime 1.31's wheels send events to their maker and leave files in the folder for
temporary ones, unless this is set when the library is loaded (its Privacy.md). Nothing of
a user's model shall leave the machine because memplan ran it; who sets it is heard."""

_GOING = 5.0
"""Seconds that a server has to end a job, or to be there at all, before it is ended itself."""


class ServerGoneError(Exception):
    """The server has ended, and with it the job."""


class Server:
    """A process that forks one job at a time."""

    def __init__(self, child: Child, environment: Mapping[str, str]) -> None:
        """Keep a process, and what it read when it started."""
        self._child, self._environment = child, environment
        self._busy = False
        self._thread = threading.get_ident()
        self._answers = b""

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Server:
        """Start a server; it imports while the caller goes on."""
        child = Child.start(
            [sys.executable, *command],
            environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return cls(child, _read_at_import(environment))

    @property
    def process(self) -> int:
        """Its number."""
        return self._child.process.pid

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether a job with these variables can be forked now, from this thread."""
        return (
            not self._busy
            and self._thread == threading.get_ident()
            and self._child.process.returncode is None
            and self._environment == _read_at_import(environment)
        )

    def fork(self, request: Request) -> Forked:
        """Start a request in a process of its own.

        Raises:
            ServerGoneError: the server is no more.
        """
        line = json.dumps(asdict(request)).encode() + b"\n"
        requests = cast("IO[bytes]", self._child.process.stdin)
        try:
            requests.write(line)
            requests.flush()
        except OSError as error:
            self.close()
            raise ServerGoneError from error
        self._busy = True
        return Forked(self)

    def answer(self, timeout: float) -> tuple[int, int | None]:
        """Return which process did the request, and its exit code, None if it was ended.

        Raises:
            TimeoutError: nothing was said in that time.
            ServerGoneError: the server is no more.
        """
        answers = cast("IO[bytes]", self._child.process.stdout)
        while b"\n" not in self._answers:
            if not readable(answers.fileno(), timeout):
                raise TimeoutError
            read = os.read(answers.fileno(), 1 << 12)
            if not read:
                self._busy = False
                self.close()
                raise ServerGoneError
            self._answers += read
        line, _, self._answers = self._answers.partition(b"\n")
        self._busy = False
        process, code = json.loads(line)
        return process, code

    def stop(self) -> None:
        """End the job that runs, and wait until it is gone."""
        requests = cast("IO[bytes]", self._child.process.stdin)
        try:
            requests.write(STOP)
            requests.flush()
            self.answer(_GOING)
        except (OSError, ServerGoneError):
            self.close()
        self._busy = False

    def close(self) -> None:
        """End the server, and whatever it runs."""
        with deferred():
            self._child.end()
            for stream in (self._child.process.stdin, self._child.process.stdout):
                with suppress(OSError):
                    cast("IO[bytes]", stream).close()


@dataclass(slots=True)
class Forked:
    """A job that a server has forked."""

    server: Server
    code: int | None = None
    over: bool = False
    process: int = 0

    def wait(self, timeout: float) -> int:
        """Return the exit code.

        Raises:
            TimeoutExpired: it takes longer.
            ServerGoneError: the server is no more, nor is the job.
        """
        if not self.over:
            try:
                self.process, self.code = self.server.answer(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(SERVER, timeout) from None
            except ServerGoneError:
                self.over = True
                raise
            self.over = True
        return 1 if self.code is None else self.code

    def end(self) -> None:
        """End the job if it is there still."""
        if not self.over:
            with deferred():
                self.server.stop()
                self.over = True


running: Server | None = None
"""The server that jobs are forked from, if there is one."""


def can_fork() -> bool:
    """Whether a process that has imported the runtime can be forked here."""
    return sys.platform == "linux"


@contextmanager
def warm_workers() -> Iterator[None]:
    """Fork the jobs of this thread from one process for as long as the block lasts.

    The process starts at once and imports while the caller goes on. Within such a block
    another one does nothing.
    """
    global running  # noqa: PLW0603 - there is one, or none, in a process
    if not can_fork() or running is not None:
        yield
        return
    try:
        with deferred():
            running = Server.start(SERVER, worker_environment())
        yield
    finally:
        with deferred():
            server, running = running, None
            if server is not None:
                server.close()


@contextmanager
def using(server: Server) -> Iterator[None]:
    """Fork jobs from a server that is there already."""
    global running  # noqa: PLW0603 - as in `warm_workers`
    former, running = running, server
    try:
        yield
    finally:
        running = former


def forked(
    words: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    worker: str = "",
    begin: Begin = "new",
) -> Forked | None:
    """Start a worker's job as a fork; None where it has to start anew.

    Under the name of a ``worker`` the process waits for more; ``begin`` says whether one that
    waits under it does this job.
    """
    server = running
    if server is None or not server.takes(environment):
        return None
    try:
        folder = str(Path.cwd())
        where = folder, str(log), str(log), environment
        request = Request("job", words, *where, worker=worker, begin=begin)
        return server.fork(request)
    except (OSError, ServerGoneError):
        return None


def worker_environment() -> dict[str, str]:
    """Return the variables with which a worker finds memplan."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**QUIET, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _read_at_import(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_AT_IMPORT)}
