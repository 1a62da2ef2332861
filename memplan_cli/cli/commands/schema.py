"""``memplan schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.api.schema import SCHEMA_NAMES
from memplan_cli.cli.common import output_options, say

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output


@click.command()
@click.argument("name", type=click.Choice(SCHEMA_NAMES), required=False)
@click.option("--all", "every", is_flag=True, help="Print all of them, by name.")
@output_options
def schema(name: str | None, *, every: bool, output: Output) -> None:
    """Print the JSON schema of what memplan reads and writes.

    What a command prints as JSON has the key schema: memplan.NAME/VERSION.

    \b
    memplan schema plan
    memplan schema --all
    """
    del output
    from memplan_cli.api.schema import all_schemas_text, schema_text

    if every == (name is not None):
        raise click.UsageError("give the name of a schema, or --all")
    say(all_schemas_text() if name is None else schema_text(name))
