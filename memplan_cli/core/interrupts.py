"""Signals that end memplan, raised as one exception where ending is safe, and nowhere else.

Ctrl-C, SIGTERM (every cancelled job) and SIGHUP (a closed terminal) unwind the stack alike, so
that worker processes and temporary files go as they do after an error. Two places are kept
from them: blocks under `deferred`, and the initialisation of compiled modules, which calls
Python without a way to fail (onnx 1.23.2 ends in SIGABRT or SIGSEGV where an enumeration of
its module is interrupted).
"""

from __future__ import annotations

import _thread
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from sys import UnraisableHookArgs
    from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")

ENDING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""The signals that ask for an end; Windows has no SIGHUP."""

_CLEANING = 3.0
"""Seconds after a signal for which further ones are ignored: what ends is giving back."""

_AGAIN = 0.005
"""Seconds after which a signal is looked at again that came while a module was initialised."""

_INITIALISING = frozenset(
    getattr(ExtensionFileLoader, name).__code__ for name in ("create_module", "exec_module")
)


class Interrupted(KeyboardInterrupt):
    """A signal asks this process to end.

    Of `KeyboardInterrupt` itself CPython keeps, wherever it passes through ``exec``, that
    the process shall die of SIGINT, even if it was handled.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    @property
    def name(self) -> str:
        """The signal's name."""
        return signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """What a shell says of a program that the signal ended."""
        return 128 + self.number


@dataclass(slots=True)
class _Seen:
    """What is known of signals, in the main thread, which alone hears of them."""

    depth: int = 0
    waiting: int = 0
    again: bool = False
    raised: float = 0.0
    number: int = 0


_seen = _Seen()


def raise_on_signals() -> None:
    """Let the signals that end a process raise `Interrupted`; ignored ones stay ignored.

    For a process that is memplan's own, in its main thread.
    """
    for number in ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _heard)
    sys.unraisablehook = _unraisable


def ignore_signals() -> None:
    """Let nothing but SIGKILL disturb what little is left to do."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def deferred() -> Iterator[None]:
    """Let signals wait until the block is left: what it starts is recorded before it ends.

    Without effect in other threads than the main one, where no signal is heard.
    """
    if _thread.get_ident() != _main_thread():
        yield
        return
    former = signal.getsignal(signal.SIGINT)
    _seen.depth += 1
    try:
        if former is signal.default_int_handler:  # a process of somebody else's
            signal.signal(signal.SIGINT, _heard)
        yield
    finally:
        try:
            if former is signal.default_int_handler:
                signal.signal(signal.SIGINT, former)
        finally:
            _seen.depth -= 1
        if not _seen.depth and _seen.waiting:
            number, _seen.waiting = _seen.waiting, 0
            signal.raise_signal(number)


def _main_thread() -> int | None:
    import threading

    return threading.main_thread().ident


def _heard(number: int, frame: FrameType | None) -> None:
    if _seen.depth:
        _seen.waiting = _seen.waiting or number
    elif _initialises(frame):
        _hear_again(number)
    elif time.monotonic() - _seen.raised > _CLEANING or not _seen.raised:
        _seen.raised, _seen.number = time.monotonic(), number
        raise Interrupted(number)


def _initialises(frame: FrameType | None) -> bool:
    """Whether a compiled module is just being loaded, below whatever Python code runs."""
    while frame is not None:
        if frame.f_code in _INITIALISING:
            return True
        frame = frame.f_back
    return False


def _unraisable(args: UnraisableHookArgs) -> None:
    """Hear a signal again that came in a finalizer or a callback, which raise nothing."""
    if isinstance(args.exc_value, Interrupted):
        _seen.raised = 0.0
        _hear_again(args.exc_value.number)
    else:
        sys.__unraisablehook__(args)


def _hear_again(number: int) -> None:
    from threading import Timer

    if _seen.again:
        return
    _seen.again = True

    def hear() -> None:
        _seen.again = False
        _thread.interrupt_main(signal.Signals(number))

    timer = Timer(_AGAIN, hear)
    timer.daemon = True
    timer.start()


def heard() -> Interrupted | None:
    """Return the signal that was raised, whatever became of the exception; None: there was none."""
    return Interrupted(_seen.number) if _seen.number else None


def interrupted_by(error: BaseException) -> Interrupted:
    """Return what an exception says of the signal: Ctrl-C where it says nothing."""
    return error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
