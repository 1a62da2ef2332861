"""Worker processes, and commands, forked from a process that has imported everything.

A job still has a process of its own, which may crash, hang and take memory; only Python's
start and the imports, a third of a second each time, happen once.

python tests/warm_workers.py    the server: reads requests from stdin, answers on stdout
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Spawn = Callable[[list[str], Path, float], int]

WORKER = ["-m", "memplan_cli.runtime.workers.worker"]

_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "MKL_", "ORT_", "CUDA_")
"""Beginnings of variables that Python or a library reads when it starts."""


@dataclass(frozen=True)
class Request:
    """What a forked process is to do, where, and where its output goes.

    Attributes:
        kind: ``job`` of a worker, or ``command`` of memplan.
        words: what ``sys.argv`` would hold.
        home: the folder to run in.
        out: the file for stdout.
        err: the file for stderr.
        timeout: seconds.
        limits: pairs of a resource and its most.
    """

    kind: str
    words: Sequence[str]
    home: str
    out: str
    err: str
    timeout: float
    limits: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class WarmWorkers:
    """A server of forked processes, and the environment that it was started with."""

    server: subprocess.Popen[str]
    environment: Mapping[str, str]
    lock: Lock

    def spawning(self, cold: Spawn) -> Spawn:
        """Return a ``worker._spawn`` that forks what it can, and else does as ``cold``."""

        def spawn(arguments: list[str], log: Path, timeout: float) -> int:
            # What a process takes is counted from what it had, and a fork has nothing yet.
            fresh = "resident" in arguments
            if fresh or arguments[:2] != WORKER or self.environment != _read_at_import():
                return cold(arguments, log, timeout)
            return self._ask(
                Request("job", arguments[2:], str(Path.cwd()), str(log), str(log), timeout)
            )

        return spawn

    def command(
        self, words: list[str], home: Path, limits: Mapping[int, int], timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run memplan with these words, a folder to run in, and limits of its resources.

        Raises:
            TimeoutExpired: it took longer.
        """
        with tempfile.TemporaryDirectory() as name:
            out, err = (Path(name) / stream for stream in ("out", "err"))
            pairs = tuple(limits.items())
            code = self._ask(
                Request("command", words, str(home), str(out), str(err), timeout, pairs)
            )
            return subprocess.CompletedProcess(words, code, out.read_bytes(), err.read_bytes())

    def _ask(self, request: Request) -> int:
        with self.lock:
            requests = cast("IO[str]", self.server.stdin)
            asked = {"request": asdict(request), "environment": dict(os.environ)}
            requests.write(json.dumps(asked) + "\n")
            requests.flush()
            answer = json.loads(cast("IO[str]", self.server.stdout).readline())
        if answer is None:
            raise subprocess.TimeoutExpired(request.words, request.timeout)
        return cast("int", answer)

    def close(self) -> None:
        """End the server, and wait for it."""
        self.server.communicate()


def start() -> WarmWorkers:
    """Start the server; it imports while the tests go on."""
    roots = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
    )
    return WarmWorkers(server, _read_at_import(), Lock())


def _read_at_import() -> Mapping[str, str]:
    return {key: value for key, value in os.environ.items() if key.startswith(_AT_IMPORT)}


def _serve() -> None:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    for line in sys.stdin:
        asked = json.loads(line)
        request = Request(**asked["request"])
        _import_for(request.kind)
        process = os.fork()
        if not process:
            _work(request, asked["environment"])
        print(json.dumps(_ending(process, request.timeout)), flush=True)


@cache
def _import_for(kind: str) -> None:
    import memplan_cli
    from memplan_cli.runtime.workers import worker

    names = ["numpy", "onnx", "onnxruntime", *worker.JOBS.values()]
    if kind == "command":
        found = pkgutil.walk_packages(memplan_cli.__path__, "memplan_cli.")
        # Its import of pytest is what would take longest.
        names = [at.name for at in found if not at.name.endswith("pytest_plugin")]
    for name in names:
        importlib.import_module(name)
    # Nothing that is tested in a warm process goes by times, so few runs are enough of them.
    importlib.import_module(worker.JOBS["measure"])._LEAST_TIMED = 10.0  # type: ignore[attr-defined]
    # What is there now stays: no collection of a forked process shall touch its pages.
    gc.freeze()


def _ending(process: int, timeout: float) -> int | None:
    """Wait for a process and return its exit code; None if it had to be killed."""
    watch = os.pidfd_open(process)
    ended, _, _ = select.select([watch], [], [], timeout)
    os.close(watch)
    if not ended:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if ended else None


def _work(request: Request, environment: Mapping[str, str]) -> NoReturn:
    """Do what ``python -m`` with the worker's or memplan's own module would do."""
    from memplan_cli.__main__ import main
    from memplan_cli.core.children import end_with_parent
    from memplan_cli.runtime.workers import worker

    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, path in ((1, request.out), (2, request.err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        os.environ.clear()
        os.environ.update({"ORT_DISABLE_TELEMETRY": "1", **environment})
        os.chdir(request.home)
        end_with_parent(os.getppid())
        for limited, most in request.limits:
            resource.setrlimit(limited, (most, most))
        if request.kind == "command":
            sys.argv = ["memplan", *request.words]
            main()
        else:
            worker.main(request.words[0], Path(request.words[1]))
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
    _serve()
