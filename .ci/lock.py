"""Pin what CI installs, with hashes, for every platform and each Python that is tested.

    python .ci/lock.py UV

One file for each environment in .ci/locks: versions and the hashes of their files, and the
conditions under which each is installed. `make lock` runs this; what changed is reviewed
as a diff. No file says where packages come from: that is pip's own configuration.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / ".ci" / "locks"

SETS: Mapping[str, tuple[str, ...]] = {
    "dev": ("dev",),
    "run": ("cpu", "fast"),
    "docs": ("dev", "docs"),
}
"""The extras of each environment. The first, with which the tests run, binds the versions of all
others. Those with ``dev`` also have what builds memplan."""

OTHERS = ("tools", "fuzz")
"""Environments whose wishes stand in a file of their own."""

HEADER = "# Made by `make lock`: each file that pip may install here is known by its hash.\n"


def wishes(name: str) -> str:
    """Return the requirements of one environment."""
    if name in OTHERS:
        return (LOCKS / f"{name}.in").read_text(encoding="utf-8")
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = data["project"]
    extras = [one for extra in SETS[name] for one in project["optional-dependencies"][extra]]
    build = data["build-system"]["requires"] if "dev" in SETS[name] else []
    return "\n".join([*build, *project["dependencies"], *extras])


def pin(uv: str, name: str) -> None:
    """Write the lock of one environment."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / f"{name}.in", Path(folder) / f"{name}.txt"
        source.write_text(wishes(name), encoding="utf-8")
        bound = [] if name == next(iter(SETS)) else ["--constraint", str(LOCKS / "dev.txt")]
        command = [
            uv, "pip", "compile", "--quiet", "--system-certs", "--universal",
            "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--no-header",
            *bound, "--output-file", str(out), str(source),
        ]  # fmt: skip
        subprocess.run(command, check=True, cwd=folder)
        (LOCKS / f"{name}.txt").write_text(HEADER + out.read_text("utf-8"), encoding="utf-8")


if __name__ == "__main__":
    for environment in (*SETS, *OTHERS):
        pin(sys.argv[1], environment)
