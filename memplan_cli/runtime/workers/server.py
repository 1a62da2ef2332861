"""A process that has imported the runtime, and forks each job from itself.

A job still has a process of its own, which may crash, hang and take memory; only Python's
start and the imports happen once. It has loaded nothing else when it begins, and its open
files are its own. One that has a name waits for more jobs, of the same model, and does them
when it is asked. Requests are lines of JSON on stdin, one at a time, and each is answered by
a line on stdout: the process, and its exit code, ``null`` where it was ended for ``stop``.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from memplan_cli.core.children import end_with_parent
from memplan_cli.runtime.workers.mapped_pages import Mapped
from memplan_cli.runtime.workers.process_memory import give_back
from memplan_cli.runtime.workers.request import STOP, Request
from memplan_cli.runtime.workers.warm import QUIET
from memplan_cli.runtime.workers.worker import JOBS, main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def _do_job(words: Sequence[str]) -> None:
    """Do one job, as `worker` itself does it when it is started."""
    main(words[0], Path(words[1]))


_MOST_WAITING = 2
"""Processes that wait for more: that of a model, and that of the one written from it."""

KINDS: Mapping[str, Callable[[Sequence[str]], None]] = {"job": _do_job}


def serve(kinds: Mapping[str, Callable[[Sequence[str]], None]] = KINDS) -> None:
    """Answer requests until there are no more, or the parent is gone."""
    end_with_parent()
    for name in ("SIGINT", "SIGHUP"):  # a terminal's, which its other processes hear too
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.environ.update({**QUIET, **os.environ})
    for name in ("numpy", "onnx", "onnxruntime", *JOBS.values()):
        importlib.import_module(name)
    forking = _Forking(kinds, Mapped.now())
    # What is there now stays: no collection of a forked process shall touch its pages.
    gc.freeze()
    lines = Lines(0)
    while (line := lines.next()) is not None:
        if line == STOP:  # it came when the job had just ended
            continue
        # A parent may give up before the server was there to start what it wanted.
        answer = (0, None) if lines.has_more() else forking.done(line)
        os.write(1, json.dumps(answer).encode() + b"\n")


class Lines:
    """Lines of a file, of which no more is read than there is."""

    def __init__(self, file: int) -> None:
        self._file, self._kept = file, b""

    def has_more(self) -> bool:
        """Whether something was read behind the line that was returned."""
        return bool(self._kept)

    def next(self) -> bytes | None:
        """Return the next line; None where there are no more."""
        while b"\n" not in self._kept:
            read = os.read(self._file, 1 << 16)
            if not read:
                return None
            self._kept += read
        line, _, self._kept = self._kept.partition(b"\n")
        return line + b"\n"


@dataclass(frozen=True, slots=True)
class _Process:
    """A forked process: its number, where it is told of jobs, and where it says their ends."""

    number: int
    told: int
    says: int

    def end(self) -> int:
        """Kill it if it is there still; return its exit code."""
        os.kill(self.number, signal.SIGKILL)
        return self.ended()

    def ended(self) -> int:
        """Return the exit code of a process that has ended or is about to."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])
        os.close(self.told)
        os.close(self.says)
        return code


class _Forking:
    """Forked processes, and those of them that wait for more, by name."""

    def __init__(
        self, kinds: Mapping[str, Callable[[Sequence[str]], None]], mapped: Mapped
    ) -> None:
        self._kinds, self._mapped = kinds, mapped
        self._waiting: dict[str, _Process] = {}

    def done(self, line: bytes) -> tuple[int, int | None]:
        """Have a request done; return the process and its code, None if it was to be ended."""
        process = self._asked(line)
        name = Request(**json.loads(line)).worker
        poll = select.poll()
        poll.register(process.says, select.POLLIN)
        poll.register(0, select.POLLIN)
        # What comes on stdin while a job runs is the request to end it, or the parent's end.
        if all(file != process.says for file, _ in poll.poll()):
            process.end()
            return process.number, None
        said = os.read(process.says, 1 << 6)
        if not said:
            return process.number, process.ended()
        self._waiting[name] = process
        if len(self._waiting) > _MOST_WAITING:  # in the order in which they were last asked
            self._waiting.pop(next(iter(self._waiting))).end()
        return process.number, int(said)

    def _asked(self, line: bytes) -> _Process:
        """Return the process that does a request: one that waits for it, or a new one."""
        request = Request(**json.loads(line))
        process = self._waiting.pop(request.worker, None)
        if process is not None and request.begin == "waiting":
            try:
                os.write(process.told, line)
            except OSError:  # it has died, of whatever it was
                process.ended()
            else:
                return process
        elif process is not None:
            process.end()
        return self._forked(request)

    def _forked(self, request: Request) -> _Process:
        hears, told = os.pipe()
        says, answers = os.pipe()
        server = os.getpid()
        number = os.fork()
        if not number:
            others = [f for p in self._waiting.values() for f in (p.told, p.says)]
            for file in (told, says, *others):
                os.close(file)
            self._work(request, server, hears, answers)
        os.close(hears)
        os.close(answers)
        return _Process(number, told, says)

    def _work(self, request: Request, server: int, hears: int, answers: int) -> NoReturn:
        """Do in the forked process what was asked for; its end is never the server's."""
        code = 1
        try:
            end_with_parent(server)
            for name in ("SIGINT", "SIGHUP"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for limited, most in request.limits:
                resource.setrlimit(limited, (most, most))
            self._mapped.restore()
            code = self._code(request)
            lines = Lines(hears)
            while request.worker:
                give_back()
                os.write(answers, f"{code}\n".encode())
                line = lines.next()
                if line is None:
                    break
                request = Request(**json.loads(line))
                code = self._code(request)
        except BaseException:  # noqa: BLE001 - its end is the process's, never the server's
            traceback.print_exc()
        finally:
            os._exit(code)

    def _code(self, request: Request) -> int:
        """Do a request, and return its exit code."""
        try:
            for stream, path in ((1, request.out), (2, request.err)):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(file, stream)
                os.close(file)
            os.environ.clear()
            os.environ.update({**QUIET, **request.environment})
            tempfile.tempdir = None
            os.chdir(request.folder)
            self._kinds[request.kind](request.words)
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:  # noqa: BLE001 - the job has failed, whatever it was
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 0


if __name__ == "__main__":
    serve()
