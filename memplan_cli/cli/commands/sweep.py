"""``memplan sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.outputs import (
    TargetFile,
    deliver,
    result_option,
)
from memplan_cli.cli.options.profiles import profile_dims

if TYPE_CHECKING:
    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.cli.common import Output


@click.command()
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes; default: one per core.",
)
@click.option(
    "--resume",
    type=TargetFile(),
    metavar="FILE.jsonl",
    help="Append finished rows to this file, and skip those already in it.",
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
    settings: Chosen,
    jobs: int | None,
    resume: Path | None,
    form: str,
    out: Path | None,
    output: Output,
) -> None:
    """Plan many models at many bindings, one row each.

    PATH is a model, a glob, or a folder that is searched. --dim takes several values here,
    for a row each and one of a plan that holds for all of them, and binds the models that
    have the dim. Failures are rows; exit code 1 if there is one.

    \b
    memplan sweep models/ --dim batch=1,8,32 --order keep
    memplan sweep 'zoo/*.onnx' --resume rows.jsonl --format csv -o table.csv
    """
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.sweep import sweep
    from memplan_cli.api.sweep_jobs import found_models
    from memplan_cli.reporting.commands.sweep import SWEEP

    refuse_targets({"-o": out, "--resume": resume}, found_models(paths))
    rows = sweep(
        paths,
        profiles,
        jobs=jobs,
        resume=resume,
        config=settings.config,
        progress=output.progress,
        **settings.overrides,
    )
    deliver(SWEEP[form](rows), out, output)
    raise SystemExit(0 if rows.passed else 1)
