"""Look for known faults of every locked dependency, and say so where nobody could be asked.

    python .ci/audit.py PIP-AUDIT

Exit codes: 0 no known fault, 1 known faults, 3 not done: no service of advisories answered.
The second is a finding and the third is none, so CI never takes one for the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = ("dev", "docs", "tools", "fuzz")
SERVICES = ("pypi", "osv")
"""Where pip-audit may ask, in turn."""

CLEAN, FAULTS, NOT_DONE = 0, 1, 3


def asked(tool: str, lock: str, service: str) -> dict[str, Any] | str:
    """Return what a service says about a lock, or why it said nothing."""
    path = ROOT / ".ci" / "locks" / f"{lock}.txt"
    words = [
        tool, "--requirement", str(path), "--require-hashes", "--disable-pip", "--strict",
        "--vulnerability-service", service, "--timeout", "15", "--format", "json",
        "--progress-spinner", "off",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return said[-1][:200]
    return answer


def faults(answer: dict[str, Any]) -> list[str]:
    """Return a line for each known fault."""
    return [
        f"{package['name']} {package['version']}: {fault['id']}"
        f" (mended in {', '.join(fault['fix_versions']) or 'no version yet'})"
        for package in answer["dependencies"]
        for fault in package.get("vulns", ())
    ]


def main(tool: str) -> int:
    """Ask about each lock and say what was found."""
    found: list[str] = []
    for lock in LOCKS:
        refusals = []
        for service in SERVICES:
            answer = asked(tool, lock, service)
            if isinstance(answer, dict):
                found += faults(answer)
                print(f"audit: {lock}: {len(answer['dependencies'])} packages, by {service}")
                break
            refusals.append(f"{service}: {answer}")
        else:
            print(*(f"audit: {lock}: {line}" for line in refusals), sep="\n", file=sys.stderr)
            print("audit: not done: no service of advisories answered", file=sys.stderr)
            return NOT_DONE
    for line in sorted(set(found)):
        print(f"audit: {line}")
    print(f"audit: {len(set(found))} known faults")
    return FAULTS if found else CLEAN


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
