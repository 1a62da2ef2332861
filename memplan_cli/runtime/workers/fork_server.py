"""The fork server: a process that has imported ONNX Runtime and forks a process for each job.

A job can crash, hang and use memory without consequences for the next one, and pays neither
for the start of Python nor for the imports. A process with a name waits for further jobs under
that name. Requests arrive one at a time; the answer to each is the process id of the job and
its exit code.

    python -m memplan_cli.runtime.workers.fork_server FILE-DESCRIPTOR
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, NoReturn

from memplan_cli.core.children import end_with_parent
from memplan_cli.runtime.workers.fork_client import CANCEL
from memplan_cli.runtime.workers.memory_release import FilePages, release_free_memory

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.fork_client import Answer, Request

_MAX_WAITING = 2
"""Processes that wait for jobs: one for a model, and one for the model written from it."""

_PRELOADED = (
    "numpy",
    "onnx",
    "onnxruntime",
    "memplan_cli.runtime.graph.dump_job",
    "memplan_cli.runtime.replay.job",
    "memplan_cli.runtime.workers.model_run",
)
"""Modules that are imported once, before any fork."""

_TERMINAL_SIGNALS = ("SIGINT", "SIGHUP")
"""Signals that a terminal sends to all its processes; the parent handles them for the server."""


def serve() -> None:
    """Run requests from the connection whose file descriptor is the last argument.

    Returns when the connection is closed.
    """
    end_with_parent()
    for name in _TERMINAL_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    for name in _PRELOADED:
        importlib.import_module(name)
    server = _ForkServer(Connection(int(sys.argv[-1])))
    # Objects of the server are exempt from collection, which would copy their pages in a fork.
    gc.freeze()
    server.run()


@dataclass(frozen=True, slots=True)
class _Worker:
    """A forked process, and the connection on which it gets requests and sends exit codes."""

    pid: int
    connection: Connection

    def kill(self) -> int:
        """Kill the process and return its exit code."""
        os.kill(self.pid, signal.SIGKILL)
        return self.reap()

    def reap(self) -> int:
        """Wait for the process to end, and return its exit code, negative for a signal."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.connection.close()
        return code


class _ForkServer:
    """Forked processes that wait for jobs, by name, least recently used first."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._waiting: dict[str, _Worker] = {}
        self._imported_pages = FilePages.resident()

    def run(self) -> None:
        """Answer requests until the parent closes the connection."""
        while True:
            try:
                request = self._parent.recv()
                if request != CANCEL:  # a job may have ended just before it was cancelled
                    self._parent.send(self._answer(request))
            except (EOFError, OSError):
                return

    def _answer(self, request: Request) -> Answer:
        """Run a job, and kill it if the parent cancels it or closes the connection."""
        if self._parent.poll():  # it was cancelled while the server was starting
            return 0, None
        worker = self._send_to_waiting(request) or self._fork(request)
        if worker.connection not in wait([worker.connection, self._parent]):
            worker.kill()
            return worker.pid, None
        try:
            code: int = worker.connection.recv()
        except (EOFError, OSError):
            return worker.pid, worker.reap()
        assert request.worker is not None  # noqa: S101 - another process ends with its job
        self._waiting[request.worker.name] = worker
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.pop(next(iter(self._waiting))).kill()
        return worker.pid, code

    def _send_to_waiting(self, request: Request) -> _Worker | None:
        """Send a request to the process that waits under its name, and return that process.

        None if there is no such process. It is killed if the request wants a new one.
        """
        choice = request.worker
        worker = self._waiting.pop(choice.name, None) if choice else None
        if choice is None or worker is None:
            return None
        if choice.kind == "new":
            worker.kill()
            return None
        try:
            worker.connection.send(request)
        except OSError:  # the process died while it waited
            worker.reap()
            return None
        return worker

    def _fork(self, request: Request) -> _Worker:
        """Fork a process that does a job."""
        server_end, worker_end = Pipe()
        server_pid = os.getpid()
        pid = os.fork()
        if not pid:
            waiting = (worker.connection for worker in self._waiting.values())
            for connection in (server_end, self._parent, *waiting):
                connection.close()
            self._work(request, worker_end, server_pid)
        worker_end.close()
        return _Worker(pid, server_end)

    def _work(self, request: Request, connection: Connection, server_pid: int) -> NoReturn:
        """In the forked process: do a job, then the jobs that arrive; end the process.

        After the last job, or the only one of a process without a name, its exit code is the
        exit code of the process. The exit codes of other jobs are sent to the server.
        """
        code = 1
        try:
            end_with_parent(server_pid)
            for name in _TERMINAL_SIGNALS:
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            self._imported_pages.load()
            code = _run(request)
            while request.worker:
                release_free_memory()
                connection.send(code)
                request = connection.recv()
                code = _run(request)
        except EOFError:  # the server has ended
            pass
        except BaseException:  # noqa: BLE001 - a fork must never return into the server's code
            traceback.print_exc()
        finally:
            os._exit(code)


def _run(request: Request) -> int:
    """Run a job in this process, with its folder, variables and log, and return its exit code."""
    try:
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(request.environment)
        tempfile.tempdir = None
        os.chdir(request.folder)
        module, _, name = request.function.partition(":")
        getattr(importlib.import_module(module), name)(*request.arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - whatever was raised, the job has failed
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve()
