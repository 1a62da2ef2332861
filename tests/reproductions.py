"""The scripts in ``docs/upstream``, run as their readers run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UPSTREAM = Path(__file__).parents[1] / "docs" / "upstream"


def reproduce(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder; a crash may be what it shows."""
    return subprocess.run(
        [sys.executable, str(UPSTREAM / name)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
