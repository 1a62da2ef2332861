"""Run commands in processes that find a simulated CUDA device (``tests/simulated_cuda``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "simulated_cuda"


def environment(mode: str, temporary: Path | None = None) -> dict[str, str]:
    """Return the environment of such a process.

    Args:
        mode: how the device behaves; ``simulated_cuda/sitecustomize.py`` lists the ways.
        temporary: a folder for temporary files; None: the usual one.
    """
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    places = {} if temporary is None else {"TMPDIR": str(temporary)}
    return {**os.environ, "SIMULATED_CUDA": mode, "PYTHONPATH": path, **places}


def python(
    mode: str, *words: object, temporary: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments beside such a device."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment(mode, temporary),
        capture_output=True,
        text=True,
        check=False,
    )
