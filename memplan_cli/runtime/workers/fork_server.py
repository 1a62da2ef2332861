"""The fork server: a process that has imported ONNX Runtime and forks a process for each job.

A job can crash, hang and use memory without consequences for the next one, and pays neither
for the start of Python nor for the imports. Requests arrive one at a time; the answer to each is
the exit code of the job, or None if the job was canceled.

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
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, NoReturn

from memplan_cli.core.children import end_with_parent
from memplan_cli.runtime.workers.fork_client import CANCEL
from memplan_cli.runtime.workers.process_memory import note_imported_pages

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.fork_client import Request

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
    parent = Connection(int(sys.argv[-1]))
    note_imported_pages()
    # Objects of the server are exempt from collection, which would copy their pages in a fork.
    gc.freeze()
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            request = parent.recv()
            if request != CANCEL:  # a job may have ended just before it was canceled
                parent.send(_fork_and_wait(request, parent))


def _fork_and_wait(request: Request, parent: Connection) -> int | None:
    """Do a job in a forked process, and return its exit code, negative for a signal.

    If the parent cancels the job or closes the connection, the process is killed and the result
    is None. Only this process returns: the forked one ends with the job.
    """
    if parent.poll():  # it was canceled while the server was starting
        return None
    job_end, open_while_job_runs = os.pipe()
    server_pid = os.getpid()
    pid = os.fork()
    if not pid:
        os.close(job_end)
        parent.close()
        _do_and_exit(request, server_pid)
    os.close(open_while_job_runs)
    # `job_end` is readable once the job has ended, `parent` once the parent has sent or closed.
    is_canceled = job_end not in wait([job_end, parent])
    os.close(job_end)
    if is_canceled:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if is_canceled else code


def _do_and_exit(request: Request, server_pid: int) -> NoReturn:
    """In the forked process: do a job with its folder, variables and log, and end the process.

    A fork must never return into the server's code, whatever the job raises.
    """
    code = 1
    try:
        end_with_parent(server_pid)
        for name in _TERMINAL_SIGNALS:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(request.environment)
        tempfile.tempdir = None  # Python's cache of TMPDIR
        os.chdir(request.folder)
        module, _, name = request.function.partition(":")
        getattr(importlib.import_module(module), name)(*request.arguments)
        code = 0
    except SystemExit as error:
        if isinstance(error.code, int | None):
            code = error.code or 0
        else:  # a text: as in Python, it is printed, and the code is 1
            sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001 - the exit code tells that the job has failed
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    serve()
