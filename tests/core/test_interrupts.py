"""Signals end memplan where ending is safe, and are heard later everywhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from memplan_cli.core.interrupts import Interrupted, deferred, interrupted_by

needs_signals = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def hear_all() -> None:
    """Undo what a shell or nohup has had the tests ignore."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ended(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that hears signals as memplan does."""
    start = "import os, signal, sys, time\nfrom memplan_cli.core import interrupts\n"
    return subprocess.run(
        [sys.executable, "-c", f"{start}interrupts.raise_on_signals()\n{code}"],
        capture_output=True, text=True, check=False, timeout=60,
        preexec_fn=hear_all,
    )  # fmt: skip


@needs_signals
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_each_signal_unwinds_the_stack_and_says_its_exit_code(name: str) -> None:
    done = ended(
        f"try:\n    os.kill(os.getpid(), signal.{name})\n    time.sleep(9)\n"
        "except interrupts.Interrupted as error:\n    print(error.name, error.exit_code)"
    )
    assert done.stdout.split() == [name, str(128 + signal.Signals[name])]


@needs_signals
def test_an_ignored_signal_stays_ignored() -> None:
    done = ended(
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\ninterrupts.raise_on_signals()\n"
        "os.kill(os.getpid(), signal.SIGHUP)\nprint('alive')"
    )
    assert done.stdout == "alive\n"


@needs_signals
def test_a_second_signal_does_not_disturb_what_is_given_back() -> None:
    done = ended(
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)\n"
        "except interrupts.Interrupted:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('given back')"
    )
    assert done.stdout == "given back\n"


@needs_signals
@pytest.mark.parametrize("ours", [True, False])
def test_what_is_deferred_is_raised_when_the_block_is_left(*, ours: bool) -> None:
    """In a process of memplan's own, and in one that hears Ctrl-C as Python does."""
    done = ended(
        f"ours = {ours}\n"
        "if not ours: signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    with interrupts.deferred():\n        with interrupts.deferred():\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n        print('inner', flush=True)\n"
        "    print('never')\nexcept KeyboardInterrupt as error: print(type(error).__name__)\n"
        "print(signal.getsignal(signal.SIGINT).__name__)"
    )
    raised, handler = ("Interrupted", "_on_signal") if ours else (
        "KeyboardInterrupt", "default_int_handler"
    )  # fmt: skip
    assert done.stdout.split() == ["inner", raised, handler]


def test_deferring_in_another_thread_leaves_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@needs_signals
def test_an_interrupt_during_the_load_of_a_compiled_module_waits_for_its_end() -> None:
    """Interrupted in its enumerations, onnx's compiled module aborts the process.

    ``enum`` is made to send the signal from within: that is where it was seen.
    """
    done = ended(
        "import enum\nfrom memplan_cli.onnx_io.protobuf import ALONE, compiled, messages\n"
        "ALONE.set(True)\nmessages()\nsent = []\n"
        "def trace(frame, event, _):\n"
        "    if frame.f_globals.get('__name__') == 'enum' and len(sent) < 50:\n"
        "        sent.append(os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.setprofile(trace)\n"
        "try:\n    compiled()\n    sys.setprofile(None); sys.stdout.write('loaded\\n')\n"
        "    time.sleep(9)\nexcept interrupts.Interrupted: print('interrupted', len(sent) > 0)"
    )
    assert done.stdout.split() == ["loaded", "interrupted", "True"], done


@needs_signals
def test_a_signal_in_a_finalizer_is_heard_again() -> None:
    """Python prints what a finalizer raises, and goes on."""
    done = ended(
        "class Last:\n    def __del__(self): os.kill(os.getpid(), signal.SIGTERM); len('a')\n"
        "try:\n    last = Last()\n    del last\n    time.sleep(9)\n"
        "except interrupts.Interrupted as error: print(error.exit_code)"
    )
    assert (done.stdout, done.stderr) == ("143\n", "")


@needs_signals
def test_a_signal_that_is_sent_again_too_early_is_heard_all_the_same() -> None:
    """It comes while Python still handles the dropped exception of the first."""
    done = ended(
        "import threading\nstart = threading.Timer.start\n"
        "def slow_start(timer):\n    threading.Timer.start = start\n"
        "    start(timer)\n    time.sleep(0.2)\n"
        "threading.Timer.start = slow_start\n"
        "class Last:\n    def __del__(self): os.kill(os.getpid(), signal.SIGTERM); len('a')\n"
        "try:\n    last = Last()\n    del last\n    time.sleep(9)\n"
        "except interrupts.Interrupted as error: print(error.exit_code)"
    )
    assert (done.stdout, done.stderr) == ("143\n", "")


def test_an_interrupt_of_pythons_own_counts_as_ctrl_c() -> None:
    assert interrupted_by(KeyboardInterrupt()).exit_code == 130
    assert interrupted_by(Interrupted(signal.SIGTERM)).exit_code == 143
