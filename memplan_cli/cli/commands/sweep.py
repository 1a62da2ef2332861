"""``memplan sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import format_option, output_options, result_option
from memplan_cli.cli.output import deliver
from memplan_cli.cli.settings_options import profile_dims, settings_options
from memplan_cli.cli.values import TargetFile
from memplan_cli.core.binding_options import dim_option

if TYPE_CHECKING:
    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.request import Request
    from memplan_cli.cli.output import Output


@click.command(
    cls=GroupedCommand, most_used=("--dim", "--jobs", "--resume", "--output", "--format")
)
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes. The default is one for each core.",
)
@click.option(
    "--resume",
    type=TargetFile(),
    metavar="FILE.jsonl",
    help="Append finished rows to this file, and skip the rows that it has already.",
)
@format_option("text", "json", "jsonl", "csv")
@result_option
@profile_dims
@settings_options
@output_options
def sweep(
    paths: tuple[Path, ...],
    *,
    profiles: Profiles,
    request: Request,
    jobs: int | None,
    resume: Path | None,
    form: str,
    out: Path | None,
    output: Output,
) -> None:
    """Plan many models, and print a table with one row for each.

    PATH is a model, a glob, or a folder that is searched for models. If --dim has several values,
    a model has a row for each value and a row for one plan that holds for all of them. --dim
    binds only the models that have the dimension. A model that cannot be planned gets a row with
    the reason, and the exit code is 1.

    \b
    memplan sweep models/ --dim batch=1,8,32 --order keep
    memplan sweep 'zoo/*.onnx' --resume rows.jsonl --format csv -o table.csv
    """
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.sweep import sweep
    from memplan_cli.api.sweep_tasks import found_models
    from memplan_cli.reporting.commands.sweep import SWEEP

    refuse_targets({"-o": out, "--resume": resume}, found_models(paths))
    rows = sweep(
        paths,
        profiles,
        jobs=jobs,
        resume=resume,
        config=request.config,
        progress=output.progress,
        **request.overrides,
    )
    deliver(SWEEP[form](rows), out, output)
    sized = [row for row in rows if row.total is not None]
    if sized and out is None:
        largest = max(sized, key=lambda row: (row.total or 0, row.key))
        # The dims of the row replace those of the command, which the model may lack.
        dims = [dim_option(name, value) for name, value in largest.dims.items()]
        step = next_step(
            "See the largest", "report", [largest.model], *dims, without=["--dim"]
        )
        say_next(form, step)
    raise SystemExit(0 if rows.passed else 1)
