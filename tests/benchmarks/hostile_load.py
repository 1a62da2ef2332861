"""`memplan.load` of one file as a program, which ends as a command does."""

from __future__ import annotations

import sys
import warnings

import memplan
from memplan_cli.errors import MemplanError


def main(path: str) -> int:
    """Load a file; refusals of memplan's and of ONNX Runtime's own are messages."""
    warnings.simplefilter("ignore")
    try:
        memplan.load(path)
    except Exception as error:
        # ONNX Runtime's own have no base; what a file made it say is no fault of memplan's.
        theirs = type(error).__module__.startswith("onnxruntime.")
        if not theirs and not isinstance(error, MemplanError):
            raise
        print(f"Error: {str(error)[:300]!a}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
