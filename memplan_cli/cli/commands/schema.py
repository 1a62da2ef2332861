"""``memplan schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import output_options, say

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output

NAMES = ("plan", "report", "config", "baseline", "certificate")


@click.command()
@click.argument("name", type=click.Choice(NAMES))
@output_options
def schema(name: str, *, output: Output) -> None:
    """Print the JSON schema of what memplan reads and writes.

    \b
    memplan schema plan
    """
    del output
    from memplan_cli.reporting.schemas import schema_text

    say(schema_text(name))
