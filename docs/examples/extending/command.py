"""A command: the node at which most bytes are live, and a limit for these bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import memplan_cli
from memplan_cli.cli import COMMANDS, MORE_COMMANDS, CommandEntry, command_line
from memplan_cli.cli.options import model_argument, output_options
from memplan_cli.cli.output import say
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from memplan_cli.cli.output import Output

MODEL = Path(__file__).parents[3] / "sample_models" / "branchy_cnn.onnx"


def peak_of(model: Path) -> tuple[str, int]:
    """Return the peak node of a model's plan, and the bytes that are live there.

    Raises:
        ModelError: a size is unknown.
    """
    report = memplan_cli.plan(model).report
    if report.peak is None or report.memory.live_peak is None:
        raise ModelError("some sizes are not known", hint="give them in memplan.yaml")
    return report.peak.node, report.memory.live_peak


@click.command()
@model_argument
@click.option("--at-most", type=int, help="Limit in bytes; exit 1 if more are live.")
@output_options
def peak(model: Path, *, at_most: int | None, output: Output) -> None:
    """Print the node at which most bytes are live.

    \b
    memplan peak model.onnx --at-most 1000000
    """
    output.progress("planning")
    node, live = peak_of(model)
    say(f"{live} bytes at {node}")
    if at_most is not None and live > at_most:
        raise SystemExit(1)


SUMMARY = "Print the node at which most bytes are live."
EXTENDED = {**COMMANDS, "peak": CommandEntry(MORE_COMMANDS, SUMMARY, __name__)}


def main() -> None:
    """Run the command line that has the new command."""
    command_line(EXTENDED)(["peak", str(MODEL), "--at-most", "250000"])


if __name__ == "__main__":
    main()
