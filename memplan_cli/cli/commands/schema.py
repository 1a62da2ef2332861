"""``memplan schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.api.schema import SCHEMA_NAMES
from memplan_cli.cli.options import output_options
from memplan_cli.cli.output import say

if TYPE_CHECKING:
    from memplan_cli.cli.output import Output


@click.command()
@click.argument("name", metavar="[NAME]", type=click.Choice(SCHEMA_NAMES), required=False)
@click.option(
    "--all", "all_schemas", is_flag=True, help="Print one JSON object with all schemas."
)
@output_options
def schema(name: str | None, *, all_schemas: bool, output: Output) -> None:
    """Print the JSON schema of a file that memplan reads or writes, or of a command's JSON output.

    NAME is plan, report, config, baseline or certificate for files; diff, doctor, fit, gate, pack,
    settings, simulate, soak, sweep, train-step, validate, why-peak, why-process or why-tensor for
    the output of a command; verified for that of verify-certificate. These documents have a key
    schema with the value memplan.NAME/VERSION.

    \b
    memplan schema plan
    memplan schema --all
    """
    del output
    from memplan_cli.api.schema import all_schemas_text, schema_text

    if all_schemas == (name is not None):
        raise click.UsageError("give either the name of a schema or --all")
    say(all_schemas_text() if name is None else schema_text(name))
