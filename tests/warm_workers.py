"""Worker processes, and commands, forked from a process that has imported everything.

The server is memplan's own. This one knows how to run the command line too, lives as long as
the tests do, and takes few runs for times.

python tests/warm_workers.py    the server
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.children import PARENT, Child
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.fork_client import Request, Server, using, worker_environment
from memplan_cli.runtime.workers.spec import RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.observations import RuntimeSettings

_SPINNING = "session.intra_op.allow_spinning"

_NOT_IMPORTED = ("memplan_cli.integrations.", "memplan_cli.cli.pytest_plugin")
"""Modules for packages that may not be there, and one whose import of pytest takes longest."""


@dataclass(frozen=True)
class WarmWorkers:
    """A server of forked processes."""

    server: Server

    def command(
        self, words: list[str], home: Path, limits: Mapping[int, int], timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run memplan with these words, a folder to run in, and limits of its resources.

        Raises:
            TimeoutExpired: it took longer.
        """
        with tempfile.TemporaryDirectory() as name:
            out, err = (Path(name) / stream for stream in ("out", "err"))
            arguments = (str(out), json.dumps(list(limits.items())), *words)
            where = str(home), str(err), dict(os.environ)
            job = self.server.start_job(Request("__main__:run_command", arguments, *where))
            try:
                code = job.wait(timeout)
            finally:
                job.end()
            return subprocess.CompletedProcess(words, code, out.read_bytes(), err.read_bytes())

    def close(self) -> None:
        """End the server."""
        self.server.close()


def start() -> WarmWorkers:
    """Start the server; it imports while the tests go on."""
    return WarmWorkers(Server.start([__file__], worker_environment()))


def run_command(out: str, limits: str, *words: str) -> None:
    """Run memplan with these words, stdout in a file, and limits of its resources."""
    from memplan_cli.__main__ import main

    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.close(file)
    for limited, most in json.loads(limits):
        resource.setrlimit(limited, (most, most))
    sys.argv = ["memplan", *words]
    server = _fork_server()
    try:
        with using(server):
            main()
    finally:
        server.close()


class _ForkedProcess:
    """A fork of this process, with the methods of ``Popen`` that `Child.end` calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.returncode = 0
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)
        self.returncode = 0


def _fork_server() -> Server:
    """Start the server of a command as a fork of it, which has imported all that jobs need."""
    from memplan_cli.runtime.workers import fork_server

    own_end, server_end = Pipe()
    os.environ[PARENT] = str(os.getpid())
    pid = os.fork()
    if not pid:
        own_end.close()
        sys.argv = ["server", str(server_end.fileno())]
        fork_server.serve()
        os._exit(0)
    server_end.close()
    return Server(Child(_ForkedProcess(pid)), own_end, worker_environment())  # type: ignore[arg-type]


def _stop_spinning() -> None:
    """Let idle threads of sessions sleep: spinning takes most of the time of a small model."""
    from memplan_cli.runtime.workers import session

    with_settings = session.session_options

    def without_spinning(settings: RuntimeSettings) -> Any:  # noqa: ANN401 - as in the module
        options = with_settings(settings)
        if _SPINNING not in settings.session_config:
            options.add_session_config_entry(_SPINNING, "0")
        return options

    session.session_options = without_spinning


def _serve() -> None:
    import memplan_cli
    from memplan_cli.runtime.workers import fork_server

    for at in pkgutil.walk_packages(memplan_cli.__path__, "memplan_cli."):
        if not at.name.startswith(_NOT_IMPORTED):
            importlib.import_module(at.name)
    # Nothing that is tested in a warm process goes by times, so few runs are enough of them.
    job = importlib.import_module("memplan_cli.runtime.workers.model_run")
    job._MIN_TIMED_MILLISECONDS = 10.0  # type: ignore[attr-defined]
    _stop_spinning()
    # Fill the caches of `from_json` before forking, so that no job fills them again.
    spec = RunSpec(SessionSpec(Path("model.onnx")), ())
    from_json(RunSpec, to_json(spec), "a job")
    fork_server.serve()


if __name__ == "__main__":
    _serve()
