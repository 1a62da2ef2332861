"""Optimize every real model at every level, run those that can run, and write the table.

    python -m tests.benchmarks.zoo [--only TEXT] [--no-table]

Each row is the command `memplan optimize` in a process of its own. Models whose weights are
not shipped get seeded ones in a temporary folder before they are run.

Guards the claim of docs/measurements/zoo.md: real models at every level are covered, checked
and unchanged in their outputs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .models import LIGHT, SAMPLES, SHARED, bindings
from .pages import MEASUREMENTS, replace_figures

TABLE = MEASUREMENTS / "zoo.md"

RUN = (
    "cond_early_exit", "densenet121", "efficientnet_b0", "inception_v3", "mobilenetv3_large",
    "nasnet_a_large", "resnet50", "scan_lstm", "segformer_b0", "swin_tiny", "train_cnn_adam",
    "train_cnn_sgd", "train_mlp_adam", "train_mlp_sgd", "train_resnet18_momentum",
    "whisper_tiny_encoder", "wiring_amoeba_cell", "wiring_darts_cell",
    "wiring_nasnet_a_cifar", "wiring_randwire_c78_s0", "wiring_rwcell_n32_s0",
)  # fmt: skip
"""Models of ../shared that get weights and are run; two cores manage them in seconds."""


@dataclass
class Row:
    name: str
    nodes: int = 0
    coverage: float = 0.0
    planned: dict[int, int | None] = field(default_factory=dict)
    naive: int | None = None
    bound: int | None = None
    seconds: float = 0.0
    outputs: str = "not run"
    faults: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Add what breaks the contract to the faults."""
        figures = [self.planned.get(level) for level in (2, 1, 0)] + [self.naive]
        if self.coverage < 1.0:
            self.faults.append(f"coverage {self.coverage:.3f}")
        elif None in figures:
            self.faults.append("no totals")
        elif figures != sorted(figures, key=lambda f: f or 0):
            self.faults.append("a higher level needs more")
        if self.bound and (self.planned.get(2) or 0) > 1.02 * self.bound:
            self.faults.append("level 2 above 1.02 of the bound")


def optimize(model: Path, folder: Path, *options: str) -> tuple[int, dict[str, Any], float]:
    """Run the command; return its exit code, the plan it wrote, and seconds."""
    out = folder / f"{model.stem}.memplan.onnx"
    command = [sys.executable, "-m", "memplan_cli", "optimize", str(model), "-o", str(out)]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--quiet", "--format", "json", *options],
        capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    if done.returncode == 2 or not done.stdout:
        return done.returncode, {"error": done.stderr.strip()[-200:]}, seconds
    plan = {} if not out.exists() else json.loads(out.with_suffix(".json").read_text())
    return done.returncode, {"report": json.loads(done.stdout), "plan": plan}, seconds


def measure(model: Path, folder: Path) -> Row:
    """Plan a model at each level, and run it where its weights are at hand."""
    row = Row(model.stem)
    dims = [word for dim in bindings(model) for word in ("--dim", dim)]
    for level in (0, 1, 2):
        code, found, seconds = optimize(
            model, folder, "--no-validate", "--level", str(level), *dims
        )
        if code != 0:
            row.faults.append(f"level {level}: exit {code} {found.get('error', '')}")
            continue
        report = found["report"]
        row.planned[level] = report["memory"]["planned"]
        row.nodes, row.coverage = report["model"]["nodes"], report["coverage"]
        row.naive = report["memory"]["naive"]
        row.seconds = seconds
        if level == 2:
            row.bound = sum(a["lower_bound"] for a in found["plan"]["arenas"])
    runnable = model.parent != SHARED
    source = model
    if model.stem in RUN and model.parent == SHARED:
        source = folder / f"{model.stem}.onnx"
        fill = [sys.executable, str(SHARED / "fill_weights.py"), str(model), str(source)]
        subprocess.run(fill, check=True, capture_output=True)
        runnable = True
    if runnable:
        code, found, _ = optimize(source, folder, *dims)
        verdict = found.get("report", {}).get("validation") or {}
        same = code == 0 and verdict.get("bit_identical")
        row.outputs = (
            "bit-identical" if same else f"exit {code}: {found.get('error', verdict)}"
        )
        if not same:
            row.faults.append("outputs differ or did not run")
    row.judge()
    return row


def table(rows: list[Row]) -> str:
    """Return the measured table as Markdown."""
    lines = [
        (
            "| model | nodes | coverage | naive | level 0 | level 1 | level 2 | bound | level 2 / bound "
            "| seconds | outputs |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        planned = row.planned.get(2)
        ratio = f"{planned / row.bound:.4f}" if row.bound and planned else "-"
        figures = " | ".join(str(row.planned.get(level)) for level in (0, 1, 2))
        lines.append(
            f"| {row.name} | {row.nodes} | {row.coverage:.3f} | {row.naive} | {figures} "
            f"| {row.bound} | {ratio} | {row.seconds:.1f} | {row.outputs} |"
        )
    faults = [f"- {row.name}: {fault}" for row in rows for fault in row.faults]
    validated = sum(row.outputs == "bit-identical" for row in rows)
    lines += [
        "",
        f"{len(rows)} models, {validated} run and bit-identical, {len(faults)} faults.",
        *faults,
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models with this text in their name")
    parser.add_argument("--no-table", action="store_true", help="print, do not write")
    asked = parser.parse_args()
    models = sorted(SAMPLES.glob("*.onnx")) + sorted(LIGHT.glob("*.onnx"))
    models += sorted(SHARED.glob("*.onnx"))
    rows = []
    for model in models:
        if asked.only not in model.stem:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(model, Path(folder)))
        print(rows[-1], flush=True)
    text = table(rows)
    if not asked.no_table and not asked.only:
        replace_figures(TABLE, text)
    print(text)
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
