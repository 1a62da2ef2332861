"""``python -m memplan_cli`` and the ``memplan`` script."""

from __future__ import annotations

import gc

from memplan_cli.cli import main as run
from memplan_cli.onnx_io.messages import ALONE

_ALLOCATIONS = 20_000_000


def main() -> None:
    """Run the command line.

    A plan of a large graph is millions of small objects without a cycle among them. Looking
    for cycles every 700 allocations, as Python does, takes a sixth of the whole time, and
    every 200,000 still a tenth; what long searches leave behind is found all the same. The
    end of the process frees everything, and need not be preceded by two looks for cycles.
    """
    gc.set_threshold(_ALLOCATIONS)
    ALONE.set(True)
    try:
        run()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
