"""Print the oldest versions that pyproject.toml allows, as constraints for pip.

    python .ci/oldest.py > constraints.txt

A lower bound that nobody tests is a guess: `make test-oldest` runs the tests with these.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?>=([0-9][^;,\s]*)\s*(;.*)?")


def constraints(text: str) -> list[str]:
    """Return ``name==version`` for each lower bound of a pyproject.toml, markers kept."""
    project = tomllib.loads(text)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    found = []
    for requirement in wanted:
        bound = _BOUND.fullmatch(requirement)
        if bound:
            name, version, marker = bound.groups()
            found.append(f"{name}=={version}{' ' + marker if marker else ''}")
    return found


if __name__ == "__main__":
    print(*constraints(PROJECT.read_text(encoding="utf-8")), sep="\n")
