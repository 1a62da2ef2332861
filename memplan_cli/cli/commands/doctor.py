"""``memplan doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output


@click.command()
@format_option("text", "json")
@output_options
def doctor(*, form: str, output: Output) -> None:
    """Say what is installed, which providers really work, and what is in conflict.

    \b
    memplan doctor
    """
    from memplan_cli import workflows
    from memplan_cli.reporting.commands.runtime import DOCTOR

    output.progress("creating a session on each provider")
    found = workflows.doctor()
    say(DOCTOR[form](found))
    raise SystemExit(1 if found.problems else 0)
