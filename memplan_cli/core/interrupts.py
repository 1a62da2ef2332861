"""Signals that end memplan, raised as one exception, `Interrupted`, where that is safe.

Ctrl-C, SIGTERM (a canceled job) and SIGHUP (a closed terminal) unwind the stack alike, so that
worker processes and temporary files are removed as after an error. The exception is delayed in two
places: in `deferred` blocks, and while a compiled module is initialized, whose C++ code calls
Python and cannot handle an exception (onnx 1.23.2 crashes if its enumerations are interrupted).
An exception that Python dropped is raised once more.
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

_TERMINATING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that ask a process to end; Windows has no SIGHUP."""

_CLEANUP_SECONDS = 3.0
"""Further signals are ignored for this time after the first, so that cleaning up can finish."""

_RETRY_SECONDS = 0.005
"""A signal that came where no exception can be raised is sent again after this time."""

_MODULE_INITIALIZERS = frozenset(
    getattr(ExtensionFileLoader, name).__code__ for name in ("create_module", "exec_module")
)
"""The code objects of the functions that initialize a compiled module."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end.

    A subclass, because CPython kills a process by SIGINT if a plain `KeyboardInterrupt` passed
    through ``exec``, even if it was caught later.
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
        """The exit code that a shell reports for a program that the signal ended."""
        return 128 + self.number


@dataclass(slots=True)
class _SignalState:
    """State of signal handling in the main thread, where Python runs all signal handlers.

    Attributes:
        deferred_depth: the number of `deferred` blocks that are being executed.
        deferred_signal: the first signal that came in such a block; None: none.
        retry_scheduled: whether a timer will send a signal again.
        raised_at: the monotonic time of the last `Interrupted`, from which cleaning up is timed.
            None: none was raised, or Python dropped the last one.
        raised_signal: the signal of the last `Interrupted`, dropped or not; None: none was raised.
    """

    deferred_depth: int = 0
    deferred_signal: int | None = None
    retry_scheduled: bool = False
    raised_at: float | None = None
    raised_signal: int | None = None


_state = _SignalState()


def raise_on_signals() -> None:
    """Install handlers that raise `Interrupted`.

    A signal that the process ignores, or for which it has a handler other than Python's own, is left
    alone. An `Interrupted` in a finalizer or a C callback is printed and dropped by Python: a hook
    for such exceptions sends its signal again.

    To be called in the main thread of a process that belongs to memplan.
    """
    for number in _TERMINATING_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _on_signal)
    sys.unraisablehook = _on_unraisable


def ignore_signals() -> None:
    """Ignore all signals that end memplan, for the last steps of a process."""
    for number in _TERMINATING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def deferred() -> Iterator[None]:
    """Delay signals until the end of the block, so that a resource and its record stay together.

    In memplan's own processes, `raise_on_signals` has installed `_on_signal`, which delays all signals in
    the block. In a process that belongs to somebody else it is installed for the block, for Ctrl-C only,
    and only in place of Python's own handler. Other threads than the main thread receive no signals; there
    this does nothing.
    """
    if _thread.get_ident() != _main_thread_id():
        yield
        return
    # In memplan's own processes and in nested blocks it is installed already.
    replaces_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _state.deferred_depth += 1
    try:
        if replaces_handler:
            signal.signal(signal.SIGINT, _on_signal)
        yield
    finally:
        # First the handler is restored, then the depth is lowered. If the depth were lowered first, a signal
        # between these two steps would raise from `_on_signal`, and the handler would never be restored.
        try:
            if replaces_handler:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        finally:  # also if a signal raises `KeyboardInterrupt` from the restored handler
            _state.deferred_depth -= 1
        if not _state.deferred_depth and _state.deferred_signal is not None:
            number, _state.deferred_signal = _state.deferred_signal, None
            signal.raise_signal(number)


def last_interrupt() -> Interrupted | None:
    """Return the last `Interrupted` that was raised, even if it was swallowed; None: none was."""
    return None if _state.raised_signal is None else Interrupted(_state.raised_signal)


def interrupted_by(error: BaseException) -> Interrupted:
    """Return an exception as `Interrupted`; any other exception than that counts as Ctrl-C."""
    return error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)


def _main_thread_id() -> int | None:
    import threading

    return threading.main_thread().ident


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Handle a signal that asks the process to end, in the first way that applies.

    - In a `deferred` block, the first signal is kept for the end of the block; others are ignored.
    - Where Python would drop an exception, the signal is sent again later.
    - Shortly after the last `Interrupted`, while memplan cleans up, the signal is ignored.
    - Otherwise `Interrupted` is raised.
    """
    if _state.deferred_depth:
        if _state.deferred_signal is None:
            _state.deferred_signal = number
    elif _drops_exceptions(frame):
        _send_again(number)
    elif not _is_cleaning_up():
        _state.raised_at, _state.raised_signal = time.monotonic(), number
        raise Interrupted(number)


def _is_cleaning_up() -> bool:
    """Return whether an `Interrupted` was raised at most `_CLEANUP_SECONDS` ago."""
    since = _state.raised_at
    return since is not None and time.monotonic() - since <= _CLEANUP_SECONDS


def _drops_exceptions(frame: FrameType | None) -> bool:
    """Return whether an exception in this frame would not reach memplan.

    The frame or one of its callers initializes a compiled module, whose C++ code cannot handle an
    exception, or is the hook for dropped exceptions, from which Python drops exceptions too.
    """
    while frame is not None:
        if frame.f_code in _MODULE_INITIALIZERS or frame.f_code is _on_unraisable.__code__:
            return True
        frame = frame.f_back
    return False


def _on_unraisable(args: UnraisableHookArgs) -> None:
    """Send a signal again whose exception Python dropped, in a finalizer or a C callback."""
    if isinstance(args.exc_value, Interrupted):
        _state.raised_at = None  # else the second signal would count as a repeated one
        _send_again(args.exc_value.number)
    else:
        sys.__unraisablehook__(args)


def _send_again(number: int) -> None:
    """Send a signal to the main thread after `_RETRY_SECONDS`, unless one is scheduled already."""
    from threading import Timer, main_thread

    if _state.retry_scheduled:
        return
    _state.retry_scheduled = True

    def send() -> None:
        _state.retry_scheduled = False
        if hasattr(signal, "pthread_kill"):  # also ends a system call that waits
            signal.pthread_kill(main_thread().ident or 0, number)
        else:  # Windows
            _thread.interrupt_main(signal.Signals(number))

    timer = Timer(_RETRY_SECONDS, send)
    timer.daemon = True
    timer.start()
