"""``memplan doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import load_step, next_step, say_next
from memplan_cli.cli.options import format_option, output_options
from memplan_cli.cli.output import say

if TYPE_CHECKING:
    from memplan_cli.cli.output import Output


@click.command(cls=GroupedCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@format_option("text", "json")
@output_options
def doctor(*, file: Path | None, form: str, output: Output) -> None:
    """Show the installed versions, the page size, the providers that work, and conflicts of packages.

    With FILE, a model that memplan wrote, also show for which runtime and hardware the model was
    made, and what does not apply on this machine. Exit code 1 if there is a problem.

    \b
    memplan doctor
    memplan doctor model.memplan.onnx
    """
    from memplan_cli import api
    from memplan_cli.reporting.commands.doctor import DOCTOR

    output.progress("trying each provider")
    diagnosis = api.doctor(file)
    say(DOCTOR[form](diagnosis))
    if not diagnosis.problems:
        step = (
            next_step("Try it", "report", ["MODEL.onnx"]) if file is None else load_step(file)
        )
        say_next(form, step)
    raise SystemExit(1 if diagnosis.problems else 0)
