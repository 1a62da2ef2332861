"""Worker processes forked from one that has imported the runtime already.

A job still has a process of its own, which may crash, hang and take memory; only Python's
start and the import of ONNX Runtime, a third of a second each time, happen once.

python tests/warm_workers.py    the server: reads requests from stdin, answers on stdout
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Spawn = Callable[[list[str], Path, float], int]

WORKER = ["-m", "memplan_cli.runtime.workers.worker"]

_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "MKL_", "ORT_", "CUDA_")
"""Beginnings of variables that Python or a library reads when it starts."""


@dataclass(frozen=True)
class WarmWorkers:
    """A server of forked processes, and the environment that it was started with."""

    server: subprocess.Popen[str]
    environment: Mapping[str, str]
    lock: Lock

    def spawning(self, cold: Spawn) -> Spawn:
        """Return a ``worker._spawn`` that forks what it can, and else does as ``cold``."""

        def spawn(arguments: list[str], log: Path, timeout: float) -> int:
            if arguments[:2] != WORKER or self.environment != _read_at_import():
                return cold(arguments, log, timeout)
            request = {
                "kind": arguments[2],
                "folder": arguments[3],
                "log": str(log),
                "timeout": timeout,
                "environment": dict(os.environ),
                "home": str(Path.cwd()),
            }
            code = self._ask(request)
            if code is None:
                raise subprocess.TimeoutExpired(arguments, timeout)
            return code

        return spawn

    def _ask(self, request: Mapping[str, object]) -> int | None:
        with self.lock:
            requests = cast("IO[str]", self.server.stdin)
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            answer = cast("IO[str]", self.server.stdout).readline()
        return cast("int | None", json.loads(answer))

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
    for name in ("numpy", "onnx", "onnxruntime"):
        importlib.import_module(name)
    from memplan_cli.runtime.workers import worker

    for name in worker.JOBS.values():
        importlib.import_module(name)
    # What is there now stays: no collection of a forked process shall touch its pages.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if not process:
            _work(request)
        print(json.dumps(_ending(process, request["timeout"])), flush=True)


def _ending(process: int, timeout: float) -> int | None:
    """Wait for a process and return its exit code; None if it had to be killed."""
    watch = os.pidfd_open(process)
    ended, _, _ = select.select([watch], [], [], timeout)
    os.close(watch)
    if not ended:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if ended else None


def _work(request: Mapping[str, object]) -> NoReturn:
    """Do one job as ``python -m memplan_cli.runtime.workers.worker`` would."""
    from memplan_cli.runtime.workers import worker

    code = 1
    try:
        sink = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.environ.clear()
        os.environ.update({"ORT_DISABLE_TELEMETRY": "1"})
        os.environ.update(cast("dict[str, str]", request["environment"]))
        os.chdir(str(request["home"]))
        worker._end_with_parent()
        worker.main(str(request["kind"]), Path(str(request["folder"])))
        code = 0
    except SystemExit as error:
        code = cast("int", error.code)
    except BaseException:  # noqa: BLE001 - its end is the process's, never the server's
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
