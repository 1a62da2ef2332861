"""Signals in a block that must not be left half done, in a process that is not memplan's own."""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.interrupts import deferred

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def _as_python_starts() -> Iterator[None]:
    """A process in the background may have been told to ignore interrupts."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def test_an_interrupt_waits_until_the_block_is_left() -> None:
    former, reached = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), deferred():  # noqa: PT012 - the block is what is tested
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the end of the block")
    assert reached
    assert signal.getsignal(signal.SIGINT) is former


def test_an_interrupt_waits_for_the_outer_block() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), deferred():  # noqa: PT012 - the block is what is tested
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("inner")
        reached.append("outer")
    assert reached == ["inner", "outer"]


def test_a_block_that_nobody_interrupts_leaves_no_trace() -> None:
    former = signal.getsignal(signal.SIGINT)
    with deferred():
        assert signal.getsignal(signal.SIGINT) is not former
    assert signal.getsignal(signal.SIGINT) is former


def test_an_interrupt_is_heard_once() -> None:
    with pytest.raises(KeyboardInterrupt), deferred():
        os.kill(os.getpid(), signal.SIGINT)
    with deferred():
        pass


def test_a_handler_of_the_process_own_is_called_at_once() -> None:
    heard: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, former)


def test_another_thread_is_not_kept_from_anything() -> None:
    former, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert found == [former]
