"""A process that has imported the runtime, and forks each job from itself.

A job still has a process of its own, which may crash, hang and take memory; only Python's
start and the imports happen once. It has loaded nothing else when it begins, and its open
files are its own. Requests are lines of JSON on stdin, one at a time, and each is answered
by a line on stdout: the exit code, or ``null`` where the job was ended for ``stop``.

    python -m memplan_cli.runtime.workers.server
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from memplan_cli.core.children import end_with_parent
from memplan_cli.runtime.workers.mapped_pages import Mapped
from memplan_cli.runtime.workers.request import STOP, Request
from memplan_cli.runtime.workers.warm import QUIET
from memplan_cli.runtime.workers.worker import JOBS, main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def _do_job(words: Sequence[str]) -> None:
    """Do one job, as `worker` itself does it when it is started."""
    main(words[0], Path(words[1]))


KINDS: Mapping[str, Callable[[Sequence[str]], None]] = {"job": _do_job}


def serve(kinds: Mapping[str, Callable[[Sequence[str]], None]] = KINDS) -> None:
    """Answer requests until there are no more, or the parent is gone."""
    end_with_parent()
    for name in ("SIGINT", "SIGHUP"):  # a terminal's, which its other processes hear too
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.environ.update({**QUIET, **os.environ})
    for name in ("numpy", "onnx", "onnxruntime", *JOBS.values()):
        importlib.import_module(name)
    mapped = Mapped.now()
    # What is there now stays: no collection of a forked process shall touch its pages.
    gc.freeze()
    lines = _Lines()
    while (line := lines.next()) is not None:
        if line == STOP:  # it came when the job had just ended
            continue
        request = Request(**json.loads(line))
        # A parent may give up before the server was there to start what it wanted.
        answer = None if lines.has_more() else _forked(request, kinds, mapped)
        os.write(1, json.dumps(answer).encode() + b"\n")


class _Lines:
    """Lines of stdin, of which no more is read than there is."""

    def __init__(self) -> None:
        self._kept = b""

    def has_more(self) -> bool:
        """Whether something was read behind the line that was returned."""
        return bool(self._kept)

    def next(self) -> bytes | None:
        """Return the next line; None where there are no more."""
        while b"\n" not in self._kept:
            read = os.read(0, 1 << 16)
            if not read:
                return None
            self._kept += read
        line, _, self._kept = self._kept.partition(b"\n")
        return line + b"\n"


def _forked(
    request: Request,
    kinds: Mapping[str, Callable[[Sequence[str]], None]],
    mapped: Mapped,
) -> int | None:
    """Run a request in a forked process; return its exit code, None if it was to be ended."""
    ended, held = os.pipe()
    server = os.getpid()
    process = os.fork()
    if not process:
        _work(request, kinds, mapped, server)
    os.close(held)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN)
    # What comes on stdin while a job runs is the request to end it, or the parent's end.
    over = any(file == ended for file, _ in poll.poll())
    if not over:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(ended)
    return code if over else None


def _work(
    request: Request,
    kinds: Mapping[str, Callable[[Sequence[str]], None]],
    mapped: Mapped,
    server: int,
) -> NoReturn:
    """Do in the forked process what was asked for; its end is never the server's."""
    code: Any = 1
    try:
        end_with_parent(server)
        for name in ("SIGINT", "SIGHUP"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, path in ((1, request.out), (2, request.err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
        os.environ.clear()
        os.environ.update({**QUIET, **request.environment})
        tempfile.tempdir = None
        os.chdir(request.folder)
        for limited, most in request.limits:
            resource.setrlimit(limited, (most, most))
        mapped.restore()
        kinds[request.kind](request.words)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - its end is the process's, never the server's
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
