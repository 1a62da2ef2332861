"""Large graphs: time and memory of `optimize --no-validate`, against ONNX Runtime's session.

    python -m tests.benchmarks.scale [--quick] [--no-table]

Everything is a process of its own: processor seconds, and the most memory resident. Sessions
are created with optimization off; weights that are not there are given as zeros that nobody
touches. Both sides run from byte code, as what is installed does: a first run of each, which
compiles it, is not counted. `--quick` leaves the slow rows out.

Guards the claim of docs/measurements/scale.md: seconds and memory of planning large graphs.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .pages import MEASUREMENTS, replace_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "models"
TABLE = MEASUREMENTS / "scale.md"

COMPARED = (
    ("train_lstm_unrolled_128x2", 0.5),
    ("lstm_unrolled_512x2", 0.5),
    ("train_gpt2_small_adam", 2.0),
    ("llama_1b_dyn", 2.0),
)
"""Models, and the ratio to a session's creation that is asked for with the order kept."""

ROUNDS = 5
"""Runs of each side, in turn, whose medians are compared."""

SYNTHETIC = (65_000, 200_000, 1_000_000)
WEIGHTS = 5 << 30

SESSION = """
import sys
import numpy as np
import onnx
import onnxruntime as ort
path = sys.argv[1]
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 3
model = onnx.load(path, load_external_data=False)
names, values = [], []
for tensor in model.graph.initializer:
    if tensor.data_location == 1:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        names.append(tensor.name)
        values.append(ort.OrtValue.ortvalue_from_numpy(np.zeros(tuple(tensor.dims), dtype)))
options.add_external_initializers(names, values)
del model
ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
"""


@dataclass(frozen=True)
class Cost:
    """What a process took: processor seconds and the most bytes resident."""

    seconds: float
    memory: int

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s | {self.memory / 2**20:.0f} MiB"


PEAK = """
import atexit, sys
def peak():
    status = open("/proc/self/status").read()
    print("peak", status.split("VmHWM:")[1].split()[0], file=sys.stderr)
atexit.register(peak)
"""
"""The kernel's figure for a child counts its parent before the child became another program;
the process itself knows better."""

MEMPLAN = "import runpy; runpy.run_module('memplan_cli', run_name='__main__')"


_ADDR_NO_RANDOMIZE = 0x0040000
"""Of Linux's ``personality``: the heap and mappings of the next program begin at fixed addresses."""

_QUERY = 0xFFFFFFFF
"""To ``personality``: change nothing and return the present value."""


def fix_addresses() -> None:
    """Fix the addresses of the program that this process becomes, where the system allows it.

    With random addresses and hashes, the peak of a process differs by 4 % from that of the next one,
    because pages are filled in another way. With fixed ones, it differs by 0.2 %.
    """
    library = ctypes.CDLL(None)
    library.personality(library.personality(_QUERY) | _ADDR_NO_RANDOMIZE)


def can_fix_addresses() -> bool:
    """Return whether `fix_addresses` is allowed; containers may forbid it."""
    library = ctypes.CDLL(None)
    before = library.personality(_QUERY)
    is_allowed: bool = library.personality(before | _ADDR_NO_RANDOMIZE) != -1
    library.personality(before)
    return is_allowed


def cost(code: str, *arguments: str) -> Cost:
    """Run Python code in a process of its own, at fixed addresses if possible, and return what it took."""
    process = subprocess.Popen(
        [sys.executable, "-c", PEAK + code, *arguments],
        cwd=ROOT,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=fix_addresses,  # noqa: PLW1509 - no other thread holds a lock
    )
    assert process.stderr is not None
    with process.stderr as stream:
        said = stream.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments[:4])} failed: {said[-400:]}")
    memory = int(said.rsplit("peak ", 1)[1].split()[0]) * 1024
    return Cost(usage.ru_utime + usage.ru_stime, memory)


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONHASHSEED": "0"}


def compile_everything() -> None:
    """Run both sides once, on the smallest models of each kind, and a hard packing."""
    for name in ("train_mlp", "dynamic_batch"):
        path = ROOT / "sample_models" / f"{name}.onnx"
        cost(SESSION, str(path))
        for order in ("keep", "auto"):
            optimize(path, order)
    if (hard := SHARED / "train_lstm_unrolled_128x2.onnx").exists():
        optimize(hard, "auto")  # numba and the compiled search


def optimize(model: Path, order: str = "keep") -> Cost:
    """Plan and write a model as the command line does, nothing run."""
    with tempfile.TemporaryDirectory() as folder:
        here = model.with_name("w.bin").exists()  # weights are copied into other folders
        target = (model.parent if here else Path(folder)) / "out.onnx"
        words = ("optimize", str(model), "--quiet", "--no-validate", "-o", str(target))
        return cost(MEMPLAN, *words, "--order", order)


def synthetic(nodes: int, path: Path) -> None:
    """Write a graph of cheap ops with short skips, one small weight."""
    from onnx import TensorProto, helper, save

    made = ["x"]
    ops = []
    for at in range(nodes):
        kind = ("Relu", "Add", "Mul", "Tanh", "MatMul")[at % 5]
        other = {"Add": [made[max(0, at - 6)]], "Mul": [made[max(0, at - 6)]], "MatMul": ["w"]}
        made.append(f"t{at}" if at + 1 < nodes else "y")
        ops.append(helper.make_node(kind, [made[at], *other.get(kind, [])], [made[-1]]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [32, 64]) for n in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], bytes(64 * 64 * 4), raw=True)
    graph = helper.make_graph(ops, "synthetic", ends[:1], ends[1:], [weight])
    opset = [helper.make_opsetid("", 20)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def with_weights(path: Path, size: int) -> None:
    """Write a small graph whose weights are a sparse file of that many bytes."""
    from onnx import TensorProto, external_data_helper, helper, save

    layers, width = 20, int((size / 20 / 4) ** 0.5)
    weights = []
    for at in range(layers):
        tensor = TensorProto(name=f"w{at}", data_type=TensorProto.FLOAT, dims=[width, width])
        tensor.raw_data = b"0"
        place = at * width * width * 4
        external_data_helper.set_external_data(tensor, "w.bin", place, width * width * 4)
        tensor.ClearField("raw_data")
        weights.append(tensor)
    names = ["x", *(f"t{at}" for at in range(1, layers)), "y"]
    ops = [
        helper.make_node("MatMul", [names[at], f"w{at}"], [names[at + 1]])
        for at in range(layers)
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, width]) for n in "xy"]
    graph = helper.make_graph(ops, "heavy", ends[:1], ends[1:], weights)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9),
        path,
    )
    with path.with_name("w.bin").open("wb") as file:
        file.truncate(layers * width * width * 4)


def against_sessions(*, quick: bool) -> list[str]:
    """Return the rows of the real models: medians of runs in turn, for a machine is busy or not."""
    lines = []
    for name, wanted in COMPARED:
        path = SHARED / f"{name}.onnx"
        orders = ("keep",) if quick else ("keep", "auto")
        rounds = [
            (cost(SESSION, str(path)), *(optimize(path, order) for order in orders))
            for _ in range(1 if quick else ROUNDS)
        ]
        session, *found = (typical(column) for column in zip(*rounds, strict=True))
        words = [name, str(session)]
        for planned, most in zip(found, (wanted, 2 * wanted), strict=False):
            words += [str(planned), f"{planned.seconds / session.seconds:.2f}", f"{most:.1f}"]
        lines.append(" | ".join(words))
        print(lines[-1], flush=True)
    return lines


def typical(costs: Sequence[Cost]) -> Cost:
    """Return the median of the seconds, and the most memory."""
    return Cost(median(each.seconds for each in costs), max(each.memory for each in costs))


def of_size(folder: Path, *, quick: bool) -> list[str]:
    """Return the rows of synthetic graphs and of the heavy one."""
    lines = []
    for nodes in SYNTHETIC[:1] if quick else SYNTHETIC:
        path = folder / f"{nodes}.onnx"
        synthetic(nodes, path)
        graph = path.stat().st_size
        found = optimize(path)
        each = 1e6 * found.seconds / nodes
        lines.append(f"{nodes:,} nodes | {graph / 2**20:.1f} MiB | {found} | {each:.0f} µs")
        print(lines[-1], flush=True)
    path = folder / "heavy.onnx"
    with_weights(path, WEIGHTS)
    found = optimize(path)
    lines.append(f"20 nodes, 5 GiB of weights | 0.0 MiB | {found} | -")
    print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-table", action="store_true")
    options = parser.parse_args()
    compile_everything()
    real = against_sessions(quick=options.quick)
    with tempfile.TemporaryDirectory() as name:
        sizes = of_size(Path(name), quick=options.quick)
    if not options.no_table and not options.quick:
        replace_figures(TABLE, page(real, sizes))


def page(real: list[str], sizes: list[str]) -> str:
    """Return the tables of the page."""
    return f"""| model | session, optimization off | memory | optimize --order keep | memory | ratio | goal | optimize --order auto | memory | ratio | goal |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(f"| {line} |" for line in real)}

A session's memory holds the weights (zeros here, where the file has none); memplan's never.

| graph | file without weights | optimize --order keep | memory | a node |
| --- | --- | --- | --- | --- |
{chr(10).join(f"| {line} |" for line in sizes)}
"""


if __name__ == "__main__":
    main()
