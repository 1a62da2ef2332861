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
@click.option("--tensor", metavar="NAME", help="The story of one tensor.")
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
    from memplan_cli.reporting.findings.why import why_peak, why_tensor
    from memplan_cli.workflows import gate as gating

    gating.refuse_idle((path,), settings.given)
    plan = gating.planned(
        path, settings.config, settings.overrides, output.progress, output.note
    )
    if tensor is None:
        say(PEAK_RENDERERS[form](why_peak(plan)))
    else:
        say(TENSOR_RENDERERS[form](why_tensor(plan, tensor)))
