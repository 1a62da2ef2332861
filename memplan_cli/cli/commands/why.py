"""``memplan why``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say
from memplan_cli.cli.options.chosen import Chosen, settings_options

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output

FORMATS = ("text", "json", "markdown")


@click.command()
@click.argument("path", metavar="MODEL|PLAN", type=click.Path(path_type=Path))
@click.option(
    "--tensor",
    metavar="NAME",
    help="Explain one tensor: who keeps it alive, why it was not reused.",
)
@settings_options
@format_option(*FORMATS)
@output_options
def why(
    path: Path, *, tensor: str | None, settings: Chosen, form: str, output: Output
) -> None:
    """Say who needs the memory at the peak, or who keeps one tensor alive.

    \b
    memplan why model.onnx
    memplan why model.memplan.json --tensor conv1_out
    """
    from memplan_cli.reporting.commands.why import (
        PEAK_RENDERERS,
        TENSOR_RENDERERS,
    )
    from memplan_cli.workflows.report import reject_unused_settings
    from memplan_cli.workflows.why import why_peak, why_tensor

    reject_unused_settings((path,), settings.given)
    request = settings.request(output)
    if tensor is None:
        say(PEAK_RENDERERS[form](why_peak(path, request)))
    else:
        say(TENSOR_RENDERERS[form](why_tensor(path, tensor, request)))
