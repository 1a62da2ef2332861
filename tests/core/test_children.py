"""A child process ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from memplan_cli.core.children import Child, end_with_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

WAITS = """
import os, sys, time
from pathlib import Path
from memplan_cli.core.children import end_with_parent
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(float(sys.argv[2]))
end_with_parent()
Path(sys.argv[1] + ".ready").touch()
time.sleep(60)
"""
STARTS = """
import sys
from memplan_cli.core.interrupts import raise_on_signals
from memplan_cli.core.children import Child
import os
raise_on_signals()
child = Child.start([sys.executable, "-c", *sys.argv[1:]], os.environ)
try:
    child.wait(60)
finally:
    child.end()
"""


def gone(process: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(500):
        try:
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if stat == "Z":
            return True
        time.sleep(0.02)
    return False


def _hear_signals() -> None:
    """Undo the ignoring of signals that a shell or nohup has set."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("sent", "late"),
    [
        (signal.SIGKILL, 0.0),
        (signal.SIGKILL, 0.5),
        (signal.SIGTERM, 0.0),
        (signal.SIGHUP, 0.0),
        (signal.SIGINT, 0.0),
    ],
)
def test_a_child_ends_with_its_parent(
    sent: signal.Signals, late: float, tmp_path: Path
) -> None:
    """Also one that had not asked to end with it when the parent was killed."""
    note = tmp_path / "pid"
    ready = note if late else tmp_path / "pid.ready"
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, WAITS, str(note), str(late)], stderr=subprocess.DEVNULL,
        preexec_fn=_hear_signals,  # noqa: PLW1509 - no thread runs here
    ) as parent:  # fmt: skip
        for _ in range(1000):
            if ready.exists() and note.read_text():
                break
            time.sleep(0.02)
        parent.send_signal(sent)
    assert gone(int(note.read_text()))


def test_a_child_that_takes_too_long_is_gone_when_it_is_ended() -> None:
    child = Child.start([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.2)
    child.end()
    assert gone(child.pid)


def test_a_child_reads_nothing_and_writes_into_the_sink(tmp_path: Path) -> None:
    code = "import sys; print(repr(sys.stdin.read())); sys.exit(3)"
    with (tmp_path / "log").open("wb") as sink:
        child = Child.start([sys.executable, "-c", code], os.environ, output=sink)
        assert child.wait(60) == 3
    child.end()
    assert (tmp_path / "log").read_text() == "''\n"


def test_a_child_whose_parent_ended_before_it_asked_ends_at_once() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries
        child = os.fork()
    if not child:
        try:
            end_with_parent(parent=os.getpid())  # which is no parent of this process
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
