"""``memplan doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@format_option("text", "json")
@output_options
def doctor(*, file: Path | None, form: str, output: Output) -> None:
    """Say what is installed, which providers really work, and what is in conflict.

    With FILE, a model that memplan wrote: what it was made for, and what of that is lost here.

    \b
    memplan doctor
    memplan doctor model.memplan.onnx
    """
    from memplan_cli import api
    from memplan_cli.reporting.commands.doctor import DOCTOR

    output.progress("trying each provider")
    found = api.doctor(file)
    say(DOCTOR[form](found))
    raise SystemExit(1 if found.problems else 0)
