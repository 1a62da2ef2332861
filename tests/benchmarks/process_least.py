"""What would be private if an arena held what is live at once alone: no arena of these graphs takes less.

    python -m tests.benchmarks.process_least [MODEL...]

For each model of ``docs/measurements/process.md``: the most bytes that are live at once in the file that
``optimize --target cpu`` writes, or the proved bound over all orders where it is lower, or all outputs
where they are more; and the private bytes of a session of one Identity; against the defaults'
private bytes of that page. Prints each and the geometric mean. What a session's own nodes and its
kernels' workspace take is left out: no session of these graphs has less.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean

from memplan_cli import Settings, workflows

from . import process
from .models import ROOT

PAGE = ROOT / "docs" / "measurements" / "process.md"
_FLOOR = re.compile(r"A session of one Identity:.* private ([\d.]+) MB")


def privates(page: str) -> dict[str, float]:
    """Return the defaults' private MB by model, as the page has them."""
    rows = (line.strip("| ").split(" | ") for line in page.splitlines())
    return {row[0]: float(row[4]) for row in rows if len(row) > 5 and row[1] == "default"}


def least(name: str) -> tuple[int, bool]:
    """Return the bytes that a model's file for the processor has live at once; whether no order needs less."""
    with tempfile.TemporaryDirectory(dir=process.OUT) as folder:
        row = process.prepare(name, process.models()[name], Path(folder))
        asked = Settings(target="cpu", dims=row["dims"], notes="plan")
        model, out = (Path(folder) / name / f"{at}.onnx" for at in ("default", "cpu"))
        memory = workflows.optimize(model, asked, out=out, check=None).plan.report.memory
    live = memory.live_peak or 0
    return max(min(live, memory.order_bound or live), memory.outputs or 0), memory.order_proved


def main(names: list[str]) -> None:
    """Print the least of each model, and of all."""
    page = PAGE.read_text(encoding="utf-8")
    found = _FLOOR.search(page)
    floor = float(found[1]) if found else 0.0
    process.OUT.mkdir(parents=True, exist_ok=True)
    shares, proved = [], 0
    for name, private in privates(page).items():
        if names and name not in names:
            continue
        live, is_proved = least(name)
        shares.append((floor + live / 1e6) / private)
        proved += is_proved
        print(f"{name}: {live / 1e6:.1f} of {private:.1f} MB, {shares[-1]:.3f}", flush=True)
    mean = geometric_mean(shares)
    print(
        f"{len(shares)} models, {proved} orders proved least: {mean:.3f} of the defaults' private bytes"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
