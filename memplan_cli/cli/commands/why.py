"""``memplan why``."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import format_option, output_options
from memplan_cli.cli.output import say
from memplan_cli.cli.settings_options import keywords, settings_options
from memplan_cli.cli.values import SourceFile

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.request import Request
    from memplan_cli.cli.output import Output


@click.command(
    cls=GroupedCommand, most_used=("--process", "--tensor", "--dim", "--inputs", "--format")
)
@click.argument("path", metavar="MODEL|PLAN", type=SourceFile())
@click.option(
    "--tensor",
    metavar="NAME",
    help="Explain one tensor: which nodes keep it alive, and why its memory was not reused.",
)
@click.option(
    "--process",
    "of_process",
    is_flag=True,
    help="Explain the predicted memory of a process that runs MODEL.",
)
@settings_options
@format_option("text", "json", "markdown")
@output_options
def why(
    path: Path,
    *,
    tensor: str | None,
    of_process: bool,
    request: Request,
    form: str,
    output: Output,
) -> None:
    """Show which tensors are live at the memory peak, or what keeps one tensor alive.

    With --process, show the parts of the predicted memory of a process that runs MODEL, largest
    first, each with the option that removes it. MODEL is run only if data decides sizes.

    \b
    memplan why model.onnx
    memplan why model.memplan.json --tensor conv1_out
    memplan why model.onnx --process
    """
    from memplan_cli.api.why import why
    from memplan_cli.reporting.commands.why import (
        PEAK_RENDERERS,
        TENSOR_RENDERERS,
        PeakExplanation,
        TensorExplanation,
    )
    from memplan_cli.reporting.commands.why_process import PROCESS_RENDERERS, removing_commands

    explanation = why(
        path, tensor, of="process" if of_process else "peak", **keywords(request, output)
    )
    match explanation:
        case PeakExplanation():
            say(PEAK_RENDERERS[form](explanation))
            if explanation.rows:  # none if all tensors have 0 bytes
                largest = quote(explanation.rows[0].tensor)
                say_next(
                    form, next_step("See one tensor", "why", [path], f"--tensor {largest}")
                )
        case TensorExplanation():
            say(TENSOR_RENDERERS[form](explanation))
            say_next(form, next_step("See the peak", "why", [path], without=("--tensor",)))
        case _:
            say(PROCESS_RENDERERS[form](explanation))
            steps = (
                next_step(f"[{number}]", command, [path], *options)
                for number, (command, *options) in enumerate(removing_commands(explanation), 1)
            )
            say_next(form, *steps)
