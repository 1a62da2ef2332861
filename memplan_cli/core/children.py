"""Child processes that end with the process that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from memplan_cli.core.interrupts import deferred

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

PARENT = "MEMPLAN_PARENT"
"""The variable that tells a child the process whose end is its own."""

_PR_SET_PDEATHSIG = 1
"""Linux's ``prctl``: the signal that a process gets when its parent ends."""

_LOOK = 1.0
"""Seconds between two looks for the parent, where the system sends no signal."""


def run_child(
    command: Sequence[str], sink: BinaryIO, environment: Mapping[str, str], timeout: float
) -> int:
    """Run a command that reads nothing, and return its exit code.

    Raises:
        TimeoutExpired: it took longer; it is gone.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with deferred():  # nothing may come between a start and the name of what was started
            process = subprocess.Popen(  # noqa: S603 - our own module, our own arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**environment, PARENT: str(os.getpid())},
            )
        return process.wait(timeout)
    finally:
        with deferred():
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def end_with_parent(parent: int | None = None) -> None:
    """Let this process end with the one that started it.

    Linux sends a signal, even where this process is stuck. What ended before it was asked to
    is seen by its number: an orphan has another parent. Elsewhere a thread looks.

    Args:
        parent: the process that started this one; None: what the environment says.
    """
    expected = parent if parent is not None else int(os.environ.get(PARENT) or os.getppid())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    elif sys.platform != "win32":
        _watch(expected)
    if sys.platform != "win32" and os.getppid() != expected:
        os._exit(1)


def _watch(parent: int) -> None:
    import threading
    import time

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=look, name="memplan-parent", daemon=True).start()
