"""A renderer: the figures of a plan as metrics, in the text format that Prometheus reads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import memplan_cli
from memplan_cli.reporting import RENDERERS

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

MODEL = Path(__file__).parents[3] / "sample_models" / "branchy_cnn.onnx"


def metrics(plan: Plan) -> str:
    """Return one gauge for each number of bytes; what is not a number is left out."""
    report = plan.report
    label = f'model="{_escaped(Path(report.model.path).name)}",level="{report.level}"'
    lines = []
    for name, value in asdict(report.memory).items():
        if type(value) is int:  # neither None nor a truth value
            lines.append(f"# TYPE memplan_{name}_bytes gauge")
            lines.append(f"memplan_{name}_bytes{{{label}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(name: str) -> str:
    """Escape a name from a file: it must not end its quotes or its line."""
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


EXTENDED = {**RENDERERS, "metrics": metrics}


def main() -> None:
    """Draw a plan in the new format."""
    print(EXTENDED["metrics"](memplan_cli.plan(MODEL)), end="")


if __name__ == "__main__":
    main()
