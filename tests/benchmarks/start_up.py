"""How long does a short command take, against what one process of onnx alone takes?

    python -m tests.benchmarks.start_up [--only TEXT] [--no-table]

Whole processes, in turn, each after a first one that does not count; both sides run from
byte code, as installed packages do.

Guards the claim of docs/measurements/start_up.md: short commands start about as fast as an import of onnx.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from .cases import asked, run_all
from .fault_place import ROOT
from .pages import MEASUREMENTS, replace_figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TABLE = MEASUREMENTS / "start_up.md"
TIMES = 9
SAMPLES = ROOT / "sample_models"
UNIT = "import onnx, sys; onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1]))"  # what the issue of a slow start is measured by
NODES = 800

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "report": ("report", "MODEL"),
    "gate": ("gate", "MODEL", "--max-memory", "100GiB"),
    "why": ("why", "MODEL"),
    "diff": ("diff", "MODEL", "MODEL"),
    "--help": ("--help",),
    "report --help": ("report", "--help"),
    "--version": ("--version",),
}


def blocks(path: Path, nodes: int = NODES) -> Path:
    """Write a model of residual blocks, each a matrix product, a bias, a step and a sum."""
    ops, weights, last = [], [], "x"
    for at in range(nodes // 4):
        names = [f"{kind}{at}" for kind in ("product", "biased", "step", "sum")]
        ops += [
            helper.make_node("MatMul", [last, "w"], names[:1]),
            helper.make_node("Add", [names[0], f"b{at}"], names[1:2]),
            helper.make_node("Relu", [names[1]], names[2:3]),
            helper.make_node("Add", [last, names[2]], names[3:]),
        ]
        weights.append(
            helper.make_tensor(f"b{at}", TensorProto.FLOAT, [16], bytes(64), raw=True)
        )
        last = names[3]
    weights.append(helper.make_tensor("w", TensorProto.FLOAT, [16, 16], bytes(1024), raw=True))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])
    made = helper.make_tensor_value_info(last, TensorProto.FLOAT, [8, 16])
    graph = helper.make_graph(ops, "blocks", [given], [made], weights)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=opsets), path)
    return path


def environment(folder: str) -> dict[str, str]:
    """Return an environment in which byte code is kept, in a folder of its own."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": folder}


def seconds(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Return how long a whole process takes."""
    started = time.perf_counter()
    subprocess.run(command, env=dict(env), check=True, capture_output=True)
    return time.perf_counter() - started


def in_turn(
    unit: Sequence[str], command: Sequence[str], times: int = TIMES
) -> tuple[float, ...]:
    """Return the medians of both, and of the ratios of those that ran one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(folder)
        seconds(unit, env), seconds(command, env)
        pairs = [(seconds(unit, env), seconds(command, env)) for _ in range(times)]
    ratios = [ours / theirs for theirs, ours in pairs]
    return median(a for a, _ in pairs), median(b for _, b in pairs), median(ratios)


def _timed(case: tuple[Path, tuple[str, ...]]) -> tuple[float, ...]:
    model, words = case
    ours = [str(model) if word == "MODEL" else word for word in words]
    return in_turn(
        [sys.executable, "-c", UNIT, str(model)], [sys.executable, "-m", "memplan_cli", *ours]
    )


def main() -> int:
    words = asked(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        models = [
            *sorted(SAMPLES.glob("*.onnx")),
            blocks(Path(folder) / f"blocks_{NODES}.onnx"),
        ]
        cases = {f"{model.stem}: report": (model, COMMANDS["report"]) for model in models}
        for name, command in COMMANDS.items():
            if name != "report":
                cases[f"train_mlp: {name}"] = (SAMPLES / "train_mlp.onnx", command)
        found = run_all(cases, _timed, words)
    lines = [
        "| model | command | unit, s | memplan, s | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for row, (unit, ours, ratio) in found.items():
        model, _, text = row.partition(": ")
        lines.append(f"| {model} | `{text}` | {unit:.3f} | {ours:.3f} | {ratio:.2f} |")
    worst = max(ratio for _, _, ratio in found.values())
    lines += ["", f"At most {worst:.2f} of the unit."]
    if words.writes:
        replace_figures(TABLE, "\n".join(lines))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
