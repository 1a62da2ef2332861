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

_ALLOCATIONS = 20_000_000


def main() -> None:
    """Run the command line.

    A plan of a large graph is millions of small objects without a cycle among them. Looking
    for cycles every 700 allocations, as Python does, takes a sixth of the whole time, and
    every 200,000 still a tenth; what long searches leave behind is found all the same. The
    end of the process frees everything, and need not be preceded by two looks for cycles.
    """
    try:
        raise_on_signals()
        gc.set_threshold(_ALLOCATIONS)
        with run_folder():
            _run()
    except Interrupted as ended:  # before the command line could hear it, or after
        raise SystemExit(ended.exit_code) from None
    finally:
        ignore_signals()
        for stream in (sys.stdout, sys.stderr):
            _let_go(stream)
        gc.freeze()


def _run() -> None:
    # Imported when signals are heard and end well.
    from memplan_cli.cli import main as run
    from memplan_cli.onnx_io.protobuf import ALONE

    ALONE.set(True)
    run()


def _let_go(stream: TextIO | None) -> None:
    """See that what could not be written is not tried again at the very end.

    Python flushes once more when a process ends, and where that fails its exit code is 120,
    whatever ours was.
    """
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    main()
