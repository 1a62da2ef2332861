"""``python -m memplan_cli`` and the ``memplan`` script."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from memplan_cli.core.interrupts import Interrupted, ignore_signals, raise_on_signals
from memplan_cli.core.temporary import run_folder

if TYPE_CHECKING:
    from typing import TextIO

_ALLOCATIONS_BETWEEN_COLLECTIONS = 20_000_000
"""The threshold of Python's cyclic garbage collector.

A plan of a large graph has millions of small objects and no reference cycles. With Python's default
threshold the collector takes a sixth of the time of planning.
"""


def main() -> None:
    """Run the command line."""
    try:
        raise_on_signals()
        gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
        with run_folder():
            _run_command_line()
    except Interrupted as interrupt:  # before or after the command line, which handles its own
        raise SystemExit(interrupt.exit_code) from None
    finally:
        ignore_signals()
        for stream in (sys.stdout, sys.stderr):
            _discard_unwritable_output(stream)
        gc.freeze()  # skips the collection of all objects at exit


def _run_command_line() -> None:
    # Imported here, so that signals are handled during the imports already.
    from memplan_cli.cli import main as run
    from memplan_cli.onnx_io.protobuf import ALONE

    ALONE.set(True)
    run()


def _discard_unwritable_output(stream: TextIO | None) -> None:
    """Flush a stream, and redirect it to the null device if that fails.

    Python flushes both streams again at exit, and changes the exit code to 120 if that fails.
    """
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except OSError:
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, stream.fileno())
        os.close(null_device)


if __name__ == "__main__":
    main()
