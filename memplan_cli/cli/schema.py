"""``memplan schema``."""

from __future__ import annotations

import click

from memplan_cli.cli.common import say

NAMES = ("plan", "report", "config", "baseline")


@click.command()
@click.argument("name", type=click.Choice(NAMES))
def schema(name: str) -> None:
    """Print the JSON schema of what memplan reads and writes.

    \b
    memplan schema plan
    """
    from memplan_cli.schemas import schema_text

    say(schema_text(name))
