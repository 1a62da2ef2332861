"""A simulated CUDA device (``tests/simulated_cuda``) for the jobs of a test, or for a whole process."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from memplan_cli.runtime.workers import session, worker
from memplan_cli.runtime.workers.fork_client import SERVER, Request, Server, worker_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pytest

    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.fork_client import ForkedJob

FOLDER = Path(__file__).parent / "simulated_cuda"

_VARIABLE = "SIMULATED_CUDA"


def environment(mode: str) -> dict[str, str]:
    """Return the environment of a process beside such a device.

    ``mode`` is how the device behaves; ``simulated_cuda/sitecustomize.py`` lists the ways.
    """
    variables = worker_environment()
    path = os.pathsep.join(map(str, (FOLDER, FOLDER.parent, variables["PYTHONPATH"])))
    return {**variables, _VARIABLE: mode, "PYTHONPATH": path}


def start_server() -> Server:
    """Start a process with a device that works. It imports in the background, and forks jobs on CUDA."""
    return Server.start(SERVER, environment("works"))


@contextmanager
def device_of(server: Server) -> Iterator[SimulatedDevice]:
    """Give this process a device, which works at first."""
    import pytest

    with pytest.MonkeyPatch.context() as monkeypatch:
        yield SimulatedDevice(server, monkeypatch)
    session.probe_provider.cache_clear()


class SimulatedDevice:
    """The device of a test: jobs on CUDA are forked from a server, and do not start a new Python each."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._monkeypatch = server, monkeypatch
        self._load_library = ctypes.CDLL
        monkeypatch.setattr(worker, "Child", self)
        monkeypatch.setattr(ctypes, "CDLL", self._library)
        library = importlib.import_module(f"{FOLDER.name}.pynvml")
        monkeypatch.setitem(sys.modules, "pynvml", library)
        self.behave("works")

    def behave(self, mode: str) -> None:
        """Let the device behave in one of the ways of `environment`, or have ``no driver``."""
        session.probe_provider.cache_clear()
        self._monkeypatch.setenv(_VARIABLE, mode)

    def put_temporary_files(self, folder: Path) -> None:
        """Let this process and its jobs have their temporary files in a folder."""
        self._monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def start(
        self, command: Sequence[str], variables: Mapping[str, str], *, output: IO[bytes]
    ) -> ForkedJob:
        """Start a job like ``Child.start``: the words of the command after Python and `WORKER` are its own."""
        arguments = command[1 + len(worker.WORKER) :]
        function = f"{worker.__name__}:main"
        where = os.fspath(Path.cwd()), output.name, variables
        return self._server.start_job(Request(function, arguments, *where))

    def _library(self, name: str | None, mode: int = ctypes.DEFAULT_MODE) -> object:
        if name is None or "cuda.so" not in name:
            return self._load_library(name, mode)
        if os.environ[_VARIABLE] == "no driver":
            raise OSError(f"{name}: cannot open shared object file")
        return object()


def load(job: Json) -> Json:
    """Job: load ``model`` with ``arguments``; return the provider of the session, or the error."""
    import memplan

    try:
        loaded = memplan.load(job["model"], **job["arguments"])
    except memplan.MemplanError as error:
        return {"printed": str(error)}
    return {"printed": loaded.get_providers()[0]}
