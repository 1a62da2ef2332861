"""``memplan schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.api.schema import SCHEMA_NAMES
from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.options import output_options
from memplan_cli.cli.output import say

if TYPE_CHECKING:
    from memplan_cli.cli.output import Output


@click.command(cls=GroupedCommand)
@click.argument("name", metavar="[NAME]", type=click.Choice(SCHEMA_NAMES), required=False)
@click.option(
    "--all", "all_schemas", is_flag=True, help="Print one JSON object with all schemas."
)
@output_options
def schema(name: str | None, *, all_schemas: bool, output: Output) -> None:
    """Print the JSON schema of a file that memplan reads or writes, or of a command's JSON output.

    NAME of a file: plan, report, config, baseline, certificate; of a result: why-peak, why-process,
    why-tensor, diff, doctor, fit, gate, pack, settings, simulate, soak, sweep, train-step, validate,
    verified; the last is that of verify-certificate. Such a document has a key schema with the value
    memplan.NAME/VERSION.

    \b
    memplan schema plan
    memplan schema --all
    """
    del output
    from memplan_cli.api.schema import all_schemas_text, schema_text

    if all_schemas == (name is not None):
        raise click.UsageError("give either the name of a schema or --all")
    say(all_schemas_text() if name is None else schema_text(name))
