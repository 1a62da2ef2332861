"""What does `memplan.load` add to a program that imports ONNX Runtime?

    python -m tests.benchmarks.load [ROOT]    of the package in ROOT; default: this checkout

Each figure is a median of five fresh processes, which run from byte code, as installed packages do.

Guards the claim of docs/measurements/load.md: `memplan.load` imports ONNX Runtime and next to nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import memplan_cli

from .fault_place import ROOT
from .start_up import environment

if TYPE_CHECKING:
    from collections.abc import Mapping

PROCESSES = 5

PROGRAM = """
import sys
import onnxruntime
from pathlib import Path

def private():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])

private()
modules, before = set(sys.modules), private()
{code}
after = private()
print(len(set(sys.modules) - modules), after - before)
"""

PLAIN = """
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
onnxruntime.InferenceSession({model!r}, options)
"""

ROWS = {
    "`import memplan`, and the name `memplan.load`": "import memplan; memplan.load",
    "`memplan.load(model)`": "import memplan; memplan.load({model!r})",
    "`InferenceSession(model)`, without optimization": PLAIN,
}


def cost(code: str, env: Mapping[str, str]) -> tuple[float, float]:
    """Return the modules that code imports after ONNX Runtime, and the private bytes that it takes."""
    command = [sys.executable, "-P", "-c", PROGRAM.format(code=code)]  # -P: not this checkout
    figures = [
        subprocess.run(command, env=dict(env), check=True, capture_output=True).stdout.split()
        for _ in range(PROCESSES + 1)
    ]
    # The first process writes the byte code.
    modules, private = zip(*(map(int, row) for row in figures[1:]), strict=True)
    return median(modules), median(private)


def main(root: Path) -> None:
    print("| after `import onnxruntime` | modules | private, MB |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        source = ROOT / "sample_models" / "branchy_cnn.onnx"
        memplan_cli.optimize(source, out=model, check=None)
        env = {**environment(folder), "PYTHONPATH": str(root)}
        for name, code in ROWS.items():
            modules, private = cost(code.format(model=str(model)), env)
            print(f"| {name} | {modules:.0f} | {private / 1e6:.2f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
