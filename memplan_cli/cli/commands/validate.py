"""``memplan validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import load_step, next_step, say_next
from memplan_cli.cli.options import (
    format_option,
    output_options,
    provider_option,
    timeout_option,
)
from memplan_cli.cli.output import say
from memplan_cli.cli.settings_options import input_option, inputs_option
from memplan_cli.cli.values import Finite, parse_values

if TYPE_CHECKING:
    from memplan_cli.api.validate import Extra
    from memplan_cli.cli.output import Output


@click.command(
    cls=GroupedCommand,
    most_used=("--original", "--replay", "--measure", "--inputs", "--format"),
)
@click.argument("planned", type=click.Path(path_type=Path))
@click.option(
    "--original",
    type=click.Path(path_type=Path),
    help="Original model. The default is the name of PLANNED without .memplan.",
)
@provider_option
@click.option(
    "--replay",
    is_flag=True,
    help="Also run PLANNED node by node, with its tensors at their offsets in the plan's arenas.",
)
@click.option(
    "--measure", is_flag=True, help="Also measure the memory of both models in the runtime."
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    metavar="N",
    default=2,
    help="Number of runs of each model.",
)
@click.option(
    "--rtol",
    type=Finite(0),
    metavar="X",
    default=0.0,
    help="Relative tolerance of outputs. If --rtol and --atol are 0, outputs must be bit-identical.",
)
@click.option(
    "--atol", type=Finite(0), metavar="X", default=0.0, help="Absolute tolerance of outputs."
)
@inputs_option
@input_option
@timeout_option
@format_option("text", "json")
@output_options
def validate(
    planned: Path,
    *,
    original: Path | None,
    provider: str,
    replay: bool,
    measure: bool,
    runs: int,
    rtol: float,
    atol: float,
    inputs: tuple[str, ...],
    input_values: tuple[str, ...],
    timeout: float,
    form: str,
    output: Output,
) -> None:
    """Check PLANNED, a model that memplan wrote, against its plan and against its original.

    First the plan beside PLANNED is checked against the model: tensors, live ranges, offsets, node
    order and metadata. If they do not match, nothing is run. Then both models are run on the same
    inputs, and their outputs are compared. Exit code 1 if a check fails.

    \b
    memplan validate model.memplan.onnx --original model.onnx --replay
    """
    from memplan_cli import api
    from memplan_cli.core.bindings import Inputs
    from memplan_cli.reporting.commands.validate import VALIDATE

    output.progress("running both models")
    check = api.Check(provider, runs, rtol, atol, timeout)
    flags: dict[Extra, bool] = {"replay": replay, "measure": measure}
    extras = tuple(extra for extra, is_set in flags.items() if is_set)
    validation = api.validate(
        planned, original, check, extras, Inputs(inputs, parse_values(input_values))
    )
    say(VALIDATE[form](validation))
    if validation.passed:
        say_next(form, load_step(planned))
    else:
        say_next(form, next_step("Check the installation", "doctor", [planned]))
    raise SystemExit(0 if validation.passed else 1)
