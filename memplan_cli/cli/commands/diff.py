"""``memplan diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.stdin import SourceFile

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output

FORMATS = ("text", "json", "markdown", "html")


@click.command()
@click.argument("before", metavar="A", type=SourceFile())
@click.argument("after", metavar="B", type=SourceFile())
@settings_options
@format_option(*FORMATS)
@output_options
def diff(before: Path, after: Path, *, settings: Chosen, form: str, output: Output) -> None:
    """Say what changed from A to B, models or plans, and which tensors did it.

    With --format html: a page of both maps at one scale, and tables of what changed.

    \b
    memplan diff old.onnx new.onnx
    memplan diff old.memplan.json new.memplan.json --format markdown
    """
    from memplan_cli.api.diff import diff
    from memplan_cli.api.model_or_plan import reject_unused_settings
    from memplan_cli.reporting.commands.diff import RENDERERS
    from memplan_cli.reporting.pages.diff_page import render

    reject_unused_settings((before, after), settings.given)
    changed = diff(before, after, **settings.keywords(output))
    if form == "html":
        say(render(changed.before, changed.after, changed.difference))
        return
    say(RENDERERS[form](changed.difference))
