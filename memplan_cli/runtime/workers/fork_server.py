"""The fork server: a process that has imported ONNX Runtime and forks a process for each job.

A job can crash, hang and use memory without consequences for the next one, and pays neither
for the start of Python nor for the imports. Requests arrive one at a time; the answer to each is
the exit code of the job, or None if the job was canceled.

    python -m memplan_cli.runtime.workers.fork_server FILE-DESCRIPTOR
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from memplan_cli.core.children import end_with_parent
from memplan_cli.runtime.workers.fork_client import CANCEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

_MADV_POPULATE_READ = 22
"""Reads pages into memory; since Linux 5.14. Older systems refuse it."""

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
    parent, imported_pages = Connection(int(sys.argv[-1])), _resident_file_pages()
    # Objects of the server are exempt from collection, which would copy their pages in a fork.
    gc.freeze()
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            request = parent.recv()
            if request != CANCEL:  # a job may have ended just before it was canceled
                parent.send(_fork_and_wait(request, parent, imported_pages))


def _fork_and_wait(
    request: Request, parent: Connection, imported_pages: Sequence[tuple[int, int]]
) -> int | None:
    """Do a job in a forked process, and return its exit code, negative for a signal.

    If the parent cancels the job or closes the connection, the process is killed and the result
    is None.
    """
    if parent.poll():  # it was canceled while the server was starting
        return None
    job_end, open_while_job_runs = os.pipe()
    server_pid = os.getpid()
    pid = os.fork()
    if not pid:
        os.close(job_end)
        parent.close()
        _work(request, server_pid, imported_pages)
    os.close(open_while_job_runs)
    # `job_end` is readable once the job has ended, `parent` once the parent has sent or closed.
    is_canceled = job_end not in wait([job_end, parent])
    os.close(job_end)
    if is_canceled:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if is_canceled else code


def _work(
    request: Request, server_pid: int, imported_pages: Sequence[tuple[int, int]]
) -> NoReturn:
    """In the forked process: do a job with its folder, variables and log, and end the process.

    A fork must never return into the server's code, whatever the job raises.
    """
    code = 1
    try:
        end_with_parent(server_pid)
        for name in _TERMINAL_SIGNALS:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        # A fork starts without the file pages of its parent. They are loaded now, or the job would
        # count those of the libraries as memory of its own.
        library = ctypes.CDLL(None)
        for start, size in imported_pages:
            library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_READ)
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
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the exit code tells that the job has failed
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _resident_file_pages() -> list[tuple[int, int]]:
    """Return address and bytes of each run of pages of mapped files that are in memory now.

    Empty if the system does not list them.
    """
    import numpy as np

    runs = []
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
            for start, end in _file_mappings():
                # Eight bytes for each page; the highest bit is set if the page is in memory.
                first, count = start // mmap.PAGESIZE, (end - start) // mmap.PAGESIZE
                entries = os.pread(pagemap.fileno(), 8 * count, 8 * first)
                is_present = np.frombuffer(entries, np.uint64) >> np.uint64(63) == 1
                changes = np.flatnonzero(np.diff(is_present, prepend=False, append=False))
                runs += [
                    (start + begin * mmap.PAGESIZE, (after - begin) * mmap.PAGESIZE)
                    for begin, after in changes.reshape(-1, 2).tolist()
                ]
    except OSError:
        return []
    return runs


def _file_mappings() -> Iterator[tuple[int, int]]:
    """Yield start and end address of each readable mapping of a file.

    Raises:
        OSError: the system does not list them.
    """
    for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines():
        addresses, permissions, _, _, inode = line.split(maxsplit=5)[:5]
        if inode != "0" and permissions.startswith("r"):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)


if __name__ == "__main__":
    serve()
