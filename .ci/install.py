"""Install what one environment needs into the Python that runs this: by hashes, or by ranges.

    python .ci/install.py dev|docs|tools|fuzz

The locks in .ci/locks hold for the versions of Python in `LOCKED`, on every platform. Any
other takes the ranges of pyproject.toml, and so does LOCKED=no, which CI sets once a week
to see what the newest versions break. A file whose hash is another one is an error: what
decides between the two is never what could be fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOCKED = ((3, 11), (3, 12))
"""The versions of Python for which locks are made and tested."""

LOCKS = Path(".ci") / "locks"
OWN = {"dev": "[dev]", "docs": "[dev,docs]"}
"""The environments with memplan itself in them, as the extras that they have."""


def is_locked(version: tuple[int, int], wish: str) -> bool:
    """Whether an interpreter of this version installs by hashes."""
    return version in LOCKED and wish != "no"


def commands(name: str, *, locked: bool) -> list[list[str]]:
    """Return pip's words, call by call, for one environment."""
    if not locked:
        asked = ["-r", str(LOCKS / f"{name}.in")]
        return [["--editable", f".{OWN[name]}"] if name in OWN else asked]
    pinned = ["--require-hashes", "--only-binary", ":all:", "-r", str(LOCKS / f"{name}.txt")]
    itself = ["--no-deps", "--no-build-isolation", "--editable", "."]
    return [pinned, itself] if name in OWN else [pinned]


def main(name: str) -> int:
    """Run pip; the first call that fails ends it."""
    version = (sys.version_info.major, sys.version_info.minor)
    locked = is_locked(version, os.environ.get("LOCKED", ""))
    if not locked:
        number = ".".join(map(str, version))
        print(f"{name}: by ranges, not by hashes (Python {number})", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in commands(name, locked=locked):
        code = subprocess.run([*pip, *words], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
