"""Hold `report --dry-run` against the step that `train-step --gradients` writes, and its plan.

    python -m tests.benchmarks.dry_run [MODEL...]

Forward models of the shared collection and the samples, weights left out; both as commands in
processes of their own. Without names the table goes into docs/measurements/dry_run.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .models import ROOT, SAMPLES, SHARED, bindings

PAGE = ROOT / "docs" / "measurements" / "dry_run.md"
SECONDS = 120
LOSS = ("--loss-fn", "mse")
FIRST, LAST = "<!-- rows -->\n", "<!-- end of rows -->"
HEAD = """| model | dry run: no reuse, MB | planned | the step's plan: no reuse | planned | equal | \
seconds of both |
|---|---:|---:|---:|---:|---|---:|"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memplan_cli", *words]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"over {SECONDS} s")


def models() -> list[Path]:
    found = (*sorted(SAMPLES.glob("*.onnx")), *sorted(SHARED.glob("*.onnx")))
    return [path for path in found if not path.stem.startswith("train_")]


def row(model: Path) -> str:
    dims = [word for dim in bindings(model) for word in ("--dim", dim)]
    began = time.perf_counter()
    dry = run(
        "report", str(model), "--dry-run", "--order", "keep", "--format", "json", "-q", *dims
    )
    if dry.returncode:
        return f"| {model.stem} | {last(dry.stderr)} | | | | | |"
    report = json.loads(dry.stdout)
    said = report.get("training_estimate") or {}
    with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
        step = Path(folder) / "step.onnx"
        made = run("train-step", str(model), "-o", str(step), "--gradients", *LOSS, "-q")
        if made.returncode:
            why = next(
                (note for note in report["warnings"] if "dry run" in note), "no warning"
            )
            same = "yes, refused" if not said and why != "no warning" else "**no**"
            return f"| {model.stem} | {last(why)} | | {last(made.stderr)} | | {same} | |"
        dims = [
            word
            for name, dim in report.get("bindings", {}).items()
            for word in ("--dim", f"{name}={dim['value']}")
        ]
        words = ("--order", "keep", "--format", "json", "-q", *dims)
        planned = run("report", str(step), *words)
    if planned.returncode:
        return f"| {model.stem} | | | {last(planned.stderr)} | | | |"
    memory = json.loads(planned.stdout)["memory"]
    both = said.get("raw"), said.get("optimized"), memory["naive"], memory["planned"]
    same = "yes" if both[:2] == both[2:] else "**no**"
    cells = [megabytes(size) for size in both]
    spent = time.perf_counter() - began
    return f"| {model.stem} | {' | '.join(cells)} | {same} | {spent:.0f} |"


def last(text: str) -> str:
    """Return the last line of a message, short enough for a cell."""
    lines = text.strip().splitlines() or [""]
    return lines[0].replace("|", "/").replace(str(SHARED), "")[:110]


def megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.2f}"


def main(names: list[str]) -> None:
    lines = [HEAD]
    for model in models():
        if not names or model.stem in names:
            lines.append(row(model))
            print(lines[-1], flush=True)
    if not names:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(FIRST)
        tail = rest.partition(LAST)[2]
        text = "\n".join(lines)
        PAGE.write_text(f"{head}{FIRST}{text}\n{LAST}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
