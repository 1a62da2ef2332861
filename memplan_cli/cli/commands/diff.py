"""``memplan diff``."""

from __future__ import annotations

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
    cls=GroupedCommand, most_used=("--dim", "--inputs", "--shape", "--level", "--format")
)
@click.argument("before", metavar="A", type=SourceFile())
@click.argument("after", metavar="B", type=SourceFile())
@settings_options
@format_option("text", "json", "markdown")
@output_options
def diff(before: Path, after: Path, *, request: Request, form: str, output: Output) -> None:
    """Compare the memory of A and B, which are models or plans.

    The result attributes the difference to tensors and nodes.

    \b
    memplan diff old.onnx new.onnx
    memplan diff old.memplan.json new.memplan.json --format markdown
    """
    from memplan_cli.api.diff import diff
    from memplan_cli.reporting.commands.diff import RENDERERS

    difference = diff(before, after, **keywords(request, output))
    say(RENDERERS[form](difference))
    say_next(form, next_step("See the peak", "why", [after]))
