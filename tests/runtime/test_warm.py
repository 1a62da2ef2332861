"""Jobs are forked from one process, and nothing that happens to one of them matters to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.runtime.run.run_model import process_of_run
from memplan_cli.runtime.workers import fork_client, worker
from memplan_cli.runtime.workers.fork_client import (
    Request,
    Server,
    ServerGoneError,
    worker_environment,
)
from memplan_cli.runtime.workers.spec import RunConditions
from memplan_cli.runtime.workers.worker import run_job, start_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.results.observations import ProcessBytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no process is forked here")

SERVER = """
import os, sys, time
from pathlib import Path
from memplan_cli.runtime.workers import fork_server
def runs(note, code):
    note = Path(note)
    note.with_suffix(".draft").write_text(f"{os.getpid()} {os.getppid()}")
    note.with_suffix(".draft").rename(note)
    exec(code)
fork_server.serve()
"""

PROBE = "memplan_cli.runtime.workers.session:run_on_provider"

PARENT = """
import os, sys, time
from memplan_cli.core.interrupts import raise_on_signals
from memplan_cli.runtime.workers.fork_client import Request, Server, worker_environment
raise_on_signals()
server = Server.start(["-c", sys.argv[1]], worker_environment())
sleeps = Request("__main__:runs", sys.argv[2:], "/", os.devnull, dict(os.environ))
try:
    server.start_job(sleeps).wait(60)
finally:
    server.close()
"""


@pytest.fixture
def _warm() -> None:
    """Leave the server of other tests alone."""


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server.start(["-c", SERVER], worker_environment())
    yield started
    started.close()


def asked(note: Path, code: str) -> Request:
    log = str(note.with_suffix(".log"))
    where = str(note.parent), log, dict(os.environ)
    return Request("__main__:runs", [str(note), code], *where)


def processes(note: Path) -> tuple[int, ...]:
    """Return the forked process and the server, when they are there."""
    for _ in range(1000):
        if note.exists():
            return tuple(map(int, note.read_text().split()))
        time.sleep(0.02)
    raise AssertionError("nothing was started")


def gone(process: int) -> bool:
    for _ in range(500):
        try:
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if stat == "Z":
            return True
        time.sleep(0.02)
    return False


def test_jobs_are_forked_from_one_process(server: Server, tmp_path: Path) -> None:
    found = []
    for name in "ab":
        assert server.start_job(asked(tmp_path / name, "sys.exit(3)")).wait(60) == 3
        found.append(processes(tmp_path / name))
    assert found[0][1] == found[1][1] == server.pid
    assert found[0][0] != found[1][0]


@pytest.mark.parametrize(("code", "ended"), [("os.abort()", -6), ("1 / 0", 1)])
def test_a_job_that_crashes_leaves_the_server_there(
    code: str, ended: int, server: Server, tmp_path: Path
) -> None:
    assert server.start_job(asked(tmp_path / "first", code)).wait(60) == ended
    assert server.start_job(asked(tmp_path / "second", "pass")).wait(60) == 0


def test_a_job_that_exits_with_a_text_has_code_1_and_its_text_in_the_log(
    server: Server, tmp_path: Path
) -> None:
    job = asked(tmp_path / "exits", "sys.exit('no room')")
    assert server.start_job(job).wait(60) == 1
    assert Path(job.log).read_text() == "no room\n"


def test_a_job_that_hangs_is_ended_after_its_time(server: Server, tmp_path: Path) -> None:
    job = server.start_job(asked(tmp_path / "hangs", "time.sleep(60)"))
    process, _ = processes(tmp_path / "hangs")
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(0.1)
    job.end()
    assert gone(process)
    assert server.start_job(asked(tmp_path / "next", "pass")).wait(60) == 0


def test_a_job_that_is_given_up_before_the_server_is_there_is_not_started(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "_CANCEL_SECONDS", 60.0)  # a busy machine imports slowly
    job = server.start_job(asked(tmp_path / "never", "time.sleep(60)"))
    job.end()
    assert server.start_job(asked(tmp_path / "next", "pass")).wait(60) == 0
    assert not (tmp_path / "never").exists()


def test_a_job_goes_with_its_server(server: Server, tmp_path: Path) -> None:
    job = server.start_job(asked(tmp_path / "sleeps", "time.sleep(60)"))
    process, parent = processes(tmp_path / "sleeps")
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(ServerGoneError):
        job.wait(60)
    assert gone(process)


@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
)
def test_a_server_and_its_job_go_with_the_parent(sent: signal.Signals, tmp_path: Path) -> None:
    def heed_signals() -> None:
        """Undo what a background shell and nohup do: processes ignore these signals."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    note = tmp_path / "note"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, SERVER, str(note), "time.sleep(60)"],
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_signals,  # noqa: PLW1509 - no thread runs here
    ) as parent:
        found = processes(note)
        parent.send_signal(sent)
    assert all(gone(process) for process in found)


def test_a_job_starts_anew_where_the_server_has_gone() -> None:
    with fork_client.warm_workers():
        assert run_job(PROBE, {"provider": CPU}).ok
        with start_job(PROBE, {"provider": CPU}) as job:
            assert fork_client.running is not None
            os.kill(fork_client.running.pid, signal.SIGKILL)
            assert job.outcome().ok
        assert run_job(PROBE, {"provider": CPU}).ok


def test_a_signal_while_the_server_starts_ends_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = Server.start
    servers: list[Server] = []

    def interrupted_start(command: Sequence[str], environment: Mapping[str, str]) -> Server:
        servers.append(start(command, environment))
        os.kill(os.getpid(), signal.SIGINT)
        return servers[0]

    monkeypatch.setattr(Server, "start", interrupted_start)
    # A shell that starts the tests in the background lets them ignore Ctrl-C.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), fork_client.warm_workers():
            pytest.fail("the signal came later")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert gone(servers[0].pid)


def test_a_library_that_would_read_another_variable_is_loaded_anew(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.accepts(worker_environment())
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert not server.accepts(worker_environment())


def test_two_jobs_never_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alone.py").write_text(
        "import os, time\n"
        "def run(job):\n    os.mkdir(job['folder'])\n    time.sleep(0.2)\n    os.rmdir(job['folder'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = {"folder": str(tmp_path / "running")}
    with (
        fork_client.warm_workers(),
        start_job("alone:run", job) as first,
        start_job("alone:run", job) as second,
    ):
        assert first.outcome().ok
        assert second.outcome().ok


def process_bytes(model: Path) -> ProcessBytes:
    process = process_of_run(model, RuntimeSettings(), RunConditions())
    assert process is not None
    return process


def test_a_forked_job_takes_what_one_takes_that_starts_anew(samples: Path) -> None:
    """What the import has touched before is no session's, in either."""
    model = samples / "branchy_cnn.onnx"
    anew = process_bytes(model)
    with fork_client.warm_workers():
        forked = process_bytes(model)
    for one, other in zip(astuple(anew), astuple(forked), strict=True):
        if one is None:  # what is observed in other places alone
            assert other is None
        else:
            assert abs(one - other) <= max(0.02 * one, 1 << 20)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with fork_client.warm_workers():
        running = fork_client.running
        assert running is not None
        with start_job(PROBE, {"provider": CPU}):
            assert list(tmp_path.iterdir())
    assert gone(running.pid)
    assert not list(tmp_path.iterdir())
    assert worker.run_job(PROBE, {"provider": CPU}).ok
