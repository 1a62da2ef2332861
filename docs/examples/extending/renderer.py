"""A renderer: the figures of a plan as metrics in the text format of Prometheus."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import memplan_cli
from memplan_cli.reporting.formats import EXPORTS

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

MODEL = Path(__file__).parents[3] / "sample_models" / "branchy_cnn.onnx"


def metrics(plan: Plan) -> str:
    """Return one gauge for each number of bytes in a plan's report."""
    report = plan.report
    label = f'model="{_escaped(Path(report.model.path).name)}",level="{report.level}"'
    lines = []
    for name, value in asdict(report.memory).items():
        if type(value) is int:  # not None, and not a bool
            lines.append(f"# TYPE memplan_{name}_bytes gauge")
            lines.append(f"memplan_{name}_bytes{{{label}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(name: str) -> str:
    """Return a name in which quotes, backslashes and line ends are escaped."""
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


EXTENDED = {**EXPORTS, "metrics": metrics}


def main() -> None:
    """Print a plan in the new format."""
    print(EXTENDED["metrics"](memplan_cli.plan(MODEL)), end="")


if __name__ == "__main__":
    main()
