"""``memplan why``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.stdin import SourceFile
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output

FORMATS = ("text", "json", "markdown")


@click.command()
@click.argument("path", metavar="MODEL|PLAN", type=SourceFile())
@click.option(
    "--tensor",
    metavar="NAME",
    help="Explain one tensor: who keeps it alive, why it was not reused.",
)
@click.option(
    "--process",
    "of_process",
    is_flag=True,
    help="Attribute the process that MODEL is predicted to take.",
)
@settings_options
@format_option(*FORMATS)
@output_options
def why(
    path: Path,
    *,
    tensor: str | None,
    of_process: bool,
    settings: Chosen,
    form: str,
    output: Output,
) -> None:
    """Show which tensors need the memory at the peak, or what keeps one tensor alive.

    With --process: the predicted memory of a process with MODEL, largest part first, and the
    option that removes each part. The model is run only if sizes depend on data.

    \b
    memplan why model.onnx
    memplan why model.memplan.json --tensor conv1_out
    memplan why model.onnx --process
    """
    from memplan_cli.api.model_or_plan import reject_unused_settings
    from memplan_cli.api.why import why
    from memplan_cli.reporting.commands.why import (
        PEAK_RENDERERS,
        TENSOR_RENDERERS,
        PeakExplanation,
        TensorExplanation,
    )
    from memplan_cli.reporting.commands.why_process import PROCESS_RENDERERS

    reject_unused_settings((path,), settings.given)
    if of_process and tensor is not None:
        raise SettingsError(
            "--tensor explains a tensor, and --process a process", hint="give one of them"
        )
    explanation = why(
        path, tensor, of="process" if of_process else "peak", **settings.keywords(output)
    )
    match explanation:
        case PeakExplanation():
            say(PEAK_RENDERERS[form](explanation))
        case TensorExplanation():
            say(TENSOR_RENDERERS[form](explanation))
        case _:
            say(PROCESS_RENDERERS[form](explanation))
