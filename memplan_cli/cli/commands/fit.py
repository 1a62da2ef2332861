"""``memplan fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from memplan_cli.cli.common import (
    format_option,
    output_options,
    provider_option,
    say,
)
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.profiles import open_dims
from memplan_cli.cli.options.stdin import model_argument
from memplan_cli.cli.options.unused import reject_unused

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output


@click.command()
@model_argument
@click.option(
    "--memory", metavar="SIZE", required=True, help="Available memory: 16GiB, 800 MB."
)
@click.option(
    "--overhead",
    metavar="SIZE",
    help="Memory of Python and the runtime; default 48MiB, of tensors 64MiB.",
)
@click.option(
    "--of",
    type=click.Choice(("process", "tensors")),
    help="What has to fit: the predicted process (default), or the planned tensors.",
)
@click.option(
    "--confirm",
    is_flag=True,
    help="Run the model at the answer, and at smaller ones until one fits.",
)
@provider_option
@format_option("text", "json")
@open_dims
@settings_options
@output_options
def fit(
    model: Path,
    *,
    unknown: tuple[str, ...],
    settings: Chosen,
    memory: str,
    overhead: str | None,
    of: Literal["process", "tensors"] | None,
    confirm: bool,
    provider: str,
    form: str,
    output: Output,
) -> None:
    """Find the largest value of a dim with which MODEL fits a memory size.

    What counts: the highest of the process that loads MODEL and runs it under the runtime's
    defaults, as predicted, with inputs and the runtime's overhead. With --of tensors, and
    where no process can be predicted: weights, inputs, outputs, the planned arena. With
    several dims to look for, the first is the largest for powers of two of the others. Where
    data decides sizes, those of a run on drawn inputs count for each value; what large values
    need is foreseen from small ones then, and said. Exit code 1 if not even 1 fits, or if no
    run of --confirm does.

    \b
    memplan fit model.onnx --memory 16GiB --dim batch=?
    memplan fit llm.onnx --memory 24GB --dim batch=? --dim past=? --dim new=1
    """
    from memplan_cli.api.fit import fit
    from memplan_cli.reporting.commands.fit import FIT

    if not confirm:
        reject_unused(("provider",), "needs the model to be run", "add --confirm")
    found = fit(
        model,
        memory,
        unknown,
        settings.load(model),
        overhead=overhead,
        of=of or "auto",
        provider=provider if confirm else None,
        progress=output.progress,
    )
    say(FIT[form](found))
    raise SystemExit(0 if found.passed else 1)
