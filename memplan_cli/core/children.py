"""Child processes that end with the process that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Protocol, Self

from memplan_cli.core.interrupts import deferred

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

PARENT = "MEMPLAN_PARENT"
"""The variable that tells a child the process whose end is its own."""

_PR_SET_PDEATHSIG = 1
"""Linux's ``prctl``: the signal that a process gets when its parent ends."""

_LOOK = 1.0
"""Seconds between two looks for the parent, where the system sends no signal."""

_MOMENT = 1.0
"""Seconds that a process may take to be gone when all that it had open is closed."""


class Ending(Protocol):
    """A process that was started and will end."""

    def wait(self, timeout: float) -> int:
        """Return the exit code; after so many seconds raise ``subprocess.TimeoutExpired``."""

    def end(self) -> None:
        """Kill it if it is there still; it is gone then."""


class Child:
    """A child process, whose end is heard of at once."""

    def __init__(self, process: subprocess.Popen[bytes], ended: int | None) -> None:
        """Keep a process, and a pipe that is closed when it ends, where there are any."""
        self.process = process
        self._ended = ended

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.STDOUT,
    ) -> Self:
        """Start a command that can tell by its environment who its parent is."""
        # Popen looks for an end every 50 ms; the end of a pipe is heard of when it comes.
        read, write = os.pipe() if sys.platform != "win32" else (None, None)
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module, our own arguments
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={**environment, PARENT: str(os.getpid())},
                pass_fds=() if write is None else (write,),
            )
        except BaseException:
            if read is not None:
                os.close(read)
            raise
        finally:
            if write is not None:
                os.close(write)
        return cls(process, read)

    def wait(self, timeout: float) -> int:
        """Return the exit code.

        Raises:
            TimeoutExpired: it takes longer.
        """
        until = time.monotonic() + timeout
        if self._ended is not None:
            if not readable(self._ended, timeout):
                raise subprocess.TimeoutExpired(self.process.args, timeout)
            self._close()
        return self.process.wait(max(until - time.monotonic(), _MOMENT))

    def end(self) -> None:
        """Kill the process if it is there still; it is gone then."""
        with deferred():
            self._close()
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def _close(self) -> None:
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None


def readable(file: int, timeout: float) -> bool:
    """Wait for something to read, or for the end of what there is; return whether it came."""
    import select

    until = time.monotonic() + timeout
    poll = select.poll()
    poll.register(file, select.POLLIN)
    while not poll.poll(max(1000 * (until - time.monotonic()), 0)):
        if time.monotonic() >= until:
            return False
    return True


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
