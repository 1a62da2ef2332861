"""Memory of whole commands on a model with gigabytes of weights, over time.

    python -m tests.benchmarks.large [--gib N] [--no-table]

A stack of MatMuls whose weights are random numbers on the disk. All processes of a command
are looked at twenty times a second: their proportional set sizes, which add up to what they
take together, and how many of them hold a session. The unit is one process that creates a
session of the model under the runtime's defaults and runs it twice. The folder is removed.

Guards the claim of docs/measurements/large.md: a command on gigabytes of weights needs little more memory
than one session.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from .fault_place import ROOT
from .kills import MARK, marked
from .main_job import UNIT
from .pages import MEASUREMENTS, replace_figures

OUT = ROOT / "out"
"""Where the model is while it is needed: on a disk, which a folder for temporary files may not be."""

PAGE = MEASUREMENTS / "large.md"
WIDTH = 8192
LAYER = WIDTH * WIDTH * 4
"""Bytes of one layer's weights: 256 MiB."""

WAYS: dict[str, tuple[str, ...]] = {
    "optimize": (),
    "--validate outputs": ("--validate", "outputs"),
    "--no-validate": ("--no-validate",),
}
BEYOND = 200 << 20
"""Bytes that a command may take beyond one session."""

SESSION = LAYER * 2
"""Bytes beyond which a process is said to hold a session: no other comes near."""

SECONDS = 0.05
MIB = 1 << 20
TOO_LITTLE = 1 << 30
"""Bytes that the machine has left when a measurement is given up."""


@dataclass
class Seen:
    """What a command took: together, in its largest processes, and in time."""

    highest: int = 0
    together: int = 0
    samples: int = 0
    seconds: float = 0.0
    processes: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def look(self, mark: str) -> None:
        """Add what the processes of a command take now."""
        now = {each: pss(each) for each in marked(mark)}
        for process, size in now.items():
            if size > self.processes.get(process, 0):
                self.processes[process] = size
                self.names[process] = _name(process)
        self.highest = max(self.highest, sum(now.values()))
        self.together = max(self.together, sum(size > SESSION for size in now.values()))
        self.samples += 1


def pss(process: int) -> int:
    """Return a process's share of the memory that it has in use; 0: it is gone."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(text.partition("\nPss:")[2].split()[0]) * 1024


def _name(process: int) -> str:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return "?"
    if words[1:2] == ["-c"]:
        return "the session alone"
    return "memplan" if "memplan_cli" in words else "worker"


def _left() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(text.partition("MemAvailable:")[2].split()[0]) * 1024


def write_model(folder: Path, gib: float) -> Path:
    """Write a model whose weights are all there, and differ."""
    layers = max(round(gib * (1 << 30) / LAYER), 1)
    rng = np.random.default_rng(0)
    weights = []
    with (folder / "large.bin").open("wb") as data:
        for at in range(layers):
            made = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(90.5)
            data.write(made.data)
            weight = TensorProto(
                name=f"w{at}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH],
                data_location=TensorProto.EXTERNAL,
            )  # fmt: skip
            entries = {"location": "large.bin", "offset": at * LAYER, "length": LAYER}
            for key, value in entries.items():
                weight.external_data.add(key=key, value=str(value))
            weights.append(weight)
    nodes = []
    for at in range(layers):
        nodes.append(helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"m{at}"]))
        nodes.append(helper.make_node("Tanh", [f"m{at}"], [f"x{at + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH])
        for name in ("x0", f"x{layers}")
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 21)]
    path = folder / "large.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), path)
    return path


def watched(words: list[str], folder: Path) -> Seen:
    """Run a command and look at it until it has ended.

    Raises:
        RuntimeError: it failed, or the machine has hardly any memory left.
    """
    mark = os.urandom(6).hex()
    env = {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark}
    seen, began = Seen(), time.perf_counter()
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None:
        seen.look(mark)
        if _left() < TOO_LITTLE:
            process.terminate()
            raise RuntimeError(f"the machine has no memory left: {words[1:]}")
        time.sleep(SECONDS)
    seen.seconds = time.perf_counter() - began
    assert process.stderr is not None
    if process.returncode:
        raise RuntimeError(f"{words[1:4]}: {process.stderr.read()[-400:]}")
    return seen


def measured(folder: Path, gib: float) -> dict[str, Seen]:
    """Return what the unit and each way of the command took."""
    model = write_model(folder, gib)
    feed = folder / "feed.npz"
    np.savez(feed, x0=np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32))
    found = {
        "the session alone": watched(
            [sys.executable, "-c", UNIT, str(model), str(feed)], folder
        )
    }
    for way, options in WAYS.items():
        out = str(folder / "out.onnx")
        words = ["-m", "memplan_cli", "optimize", str(model), "-o", out, "-q", *options]
        found[way] = watched([sys.executable, *words], folder)
        print(way, found[way], flush=True)
    return found


def table(found: dict[str, Seen]) -> list[str]:
    """Return the rows of the page."""
    unit = found["the session alone"]
    lines = [
        "| command | seconds | samples | highest together | beyond the unit | sessions at once | highest by process |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, seen in found.items():
        each = seen.processes.items()  # as they came
        sizes = ", ".join(f"{seen.names[p]} {size // MIB}" for p, size in each)
        beyond = (seen.highest - unit.highest) // MIB
        lines.append(
            f"| {name} | {seen.seconds:.1f} | {seen.samples} | {seen.highest // MIB} | {beyond} "
            f"| {seen.together} | {sizes} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=5, help="Weights, in GiB.")
    parser.add_argument("--no-table", action="store_true", help="Do not write the page.")
    asked = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT) as name:
        found = measured(Path(name), asked.gib)
    unit = found["the session alone"].highest
    text = "\n".join(table(found)) + "\n"
    if not asked.no_table:
        replace_figures(PAGE, text)
    print(text)
    wrong = [n for n, s in found.items() if s.highest > unit + BEYOND or s.together > 1]
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
