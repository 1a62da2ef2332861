"""The smallest memory limit under which a model loads and runs three times.

    python -m tests.benchmarks.process_limits [MODEL...]    after ``process bytes``; into out/process/

The limit is that of a control group (version 1 or 2) that is made for each trial; nothing can be
swapped. Everything that the process has in memory of its own counts, Python included, and what it
reads from the model's files, whose cached pages are dropped before; pages of libraries that other
processes have in memory are not charged to it. Where no group can be made, the highest resident
size of the process stands instead, and is called so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.onnx_io.load import load_model

from .process import OUT, child

if TYPE_CHECKING:
    from collections.abc import Iterator

CHOSEN = ("bert_base_dyn_ts", "gpt2_small", "resnet50", "swin_tiny", "wiring_unetpp")
PARTS = ("default", "cpu")

STEP = 2 << 20
"""Bytes to which a limit is found."""

TIMEOUT = 240.0
"""Seconds after which a process that reads its weights again and again counts as failed."""

VERSION_2 = Path("/sys/fs/cgroup/cgroup.controllers")
ROOT = Path("/sys/fs/cgroup") if VERSION_2.exists() else Path("/sys/fs/cgroup/memory")
LIMIT = "memory.max" if VERSION_2.exists() else "memory.limit_in_bytes"


def group_of(limit: int) -> Path | None:
    """Make a control group with a limit; None where the machine does not allow it."""
    group = ROOT / f"memplan-limit-{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
        (group / LIMIT).write_text(str(limit))
    except OSError:
        return None
    return group


def survives(name: str, part: str, limit: int) -> bool | None:
    """Run the model under a limit; None where there can be no limit."""
    group = group_of(limit)
    if group is None:
        return None
    for path in files_of(name, part):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    procs = group / "cgroup.procs"
    command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), *child(name, part)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return False
    finally:
        group.rmdir()
    return done.returncode == 0


def files_of(name: str, part: str) -> Iterator[Path]:
    """Yield the files that a session reads."""
    model = OUT / name / f"{part}.onnx"
    names = {
        entry.value
        for tensor in load_model(model).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    yield from (model, *(model.with_name(each) for each in sorted(names)))


def smallest(name: str, part: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest limit, or the highest resident size where none can be set."""
    high = int(row[part]["run"]) + (120 << 20)
    found = survives(name, part, high)
    if found is None:
        return {"resident": row[part]["run"] + row[part].get("python", 0)}
    low = 20 << 20
    while high - low > STEP:
        middle = (low + high) // 2
        if survives(name, part, middle):
            high = middle
        else:
            low = middle
        print(name, part, f"{low / 1e6:.0f}..{high / 1e6:.0f} MB", flush=True)
    return {"limit": high}


def main(names: list[str]) -> None:
    """Find the limits of models that were measured before."""
    for name in names or CHOSEN:
        file = OUT / f"{name}.json"
        row: dict[str, Any] = json.loads(file.read_text())
        for part in PARTS:
            if "error" not in row[part]:
                row.setdefault("limits", {})[part] = smallest(name, part, row)
        now = json.loads(file.read_text())
        file.write_text(json.dumps(now | {"limits": row["limits"]}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
