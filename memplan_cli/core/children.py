"""Child processes that end when their parent process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from memplan_cli.core.interrupts import deferred

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

PARENT = "MEMPLAN_PARENT"
"""The environment variable that tells a child the process id of its parent."""

_PR_SET_PDEATHSIG = 1
"""Option of Linux's ``prctl``: the signal that a process gets when its parent thread ends.

The call fails only for a signal that does not exist.
"""

_SECONDS_BETWEEN_CHECKS = 1.0
"""How often a child checks for its parent on systems without that signal."""


class Child:
    """A child process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: int | IO[bytes] = subprocess.DEVNULL,
        connections: Sequence[int] = (),
    ) -> Self:
        """Start a command, which should call `end_with_parent` first.

        Args:
            command: the program and its arguments.
            environment: its environment variables; `PARENT` is added.
            output: the file for its stdout and stderr.
            connections: file descriptors that the child inherits.
        """
        process = subprocess.Popen(  # noqa: S603 - the arguments are memplan's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, PARENT: str(os.getpid())},
            pass_fds=connections,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def wait(self, timeout: float) -> int:
        """Wait for the process to end and return its exit code, negative for a signal.

        Raises:
            TimeoutExpired: the process still runs after ``timeout`` seconds.
        """
        return self.process.wait(timeout)

    def end(self) -> None:
        """Kill the process if it still runs, and wait until it has ended."""
        with deferred():
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


def end_with_parent(parent: int | None = None) -> None:
    """Make this process end when its parent ends, for whatever reason the parent ends.

    On Linux the kernel kills the process, even if it hangs; on macOS a thread checks once a second.
    Linux takes the thread that started the process for its parent: a process that was started by
    another thread than the main one ends with that thread.

    If the parent ended before this call, the process exits now: it has another parent by then.
    Windows is not supported.

    Args:
        parent: the process id of the parent; None: the one that `Child.start` set in the environment.
    """
    expected = int(os.environ[PARENT]) if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    elif sys.platform != "win32":
        _start_parent_check(expected)
    if sys.platform != "win32" and os.getppid() != expected:
        os._exit(1)


def _start_parent_check(parent: int) -> None:
    """Start a thread that exits this process once the parent has ended."""

    def check() -> None:
        while os.getppid() == parent:  # an orphan gets another parent
            time.sleep(_SECONDS_BETWEEN_CHECKS)
        os._exit(1)

    threading.Thread(target=check, name="memplan-parent", daemon=True).start()
