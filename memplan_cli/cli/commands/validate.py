"""``memplan validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import (
    Finite,
    format_option,
    input_option,
    inputs_option,
    output_options,
    provider_option,
    say,
    timeout_option,
)
from memplan_cli.cli.options.unused import reject_unused

if TYPE_CHECKING:
    from memplan_cli.api.validate import Extra
    from memplan_cli.cli.common import Output

_TOLERANCE = Finite(0)


@click.command()
@click.argument("planned", type=click.Path(path_type=Path))
@click.option(
    "--original",
    type=click.Path(path_type=Path),
    help="Original model; default: the name of PLANNED without .memplan.",
)
@provider_option
@click.option("--replay", is_flag=True, help="Run PLANNED op by op inside the plan's arenas.")
@click.option(
    "--measure", is_flag=True, help="Measure the memory of both models in the runtime."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    metavar="N",
    help="With --measure: memory of N processes that hold each model at once, as PSS.",
)
@click.option(
    "--runs", type=click.IntRange(1), default=2, show_default=True, help="Runs of each model."
)
@click.option(
    "--rtol",
    type=_TOLERANCE,
    default=0.0,
    show_default=True,
    help="Relative tolerance; 0 with --atol 0: bit for bit.",
)
@click.option(
    "--atol", type=_TOLERANCE, default=0.0, show_default=True, help="Absolute tolerance."
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
    processes: int | None,
    runs: int,
    rtol: float,
    atol: float,
    inputs: tuple[str, ...],
    input_values: tuple[str, ...],
    timeout: float,
    form: str,
    output: Output,
) -> None:
    """Hold PLANNED, a model that memplan wrote, against its plan, then run it and its original.

    Where the plan beside PLANNED is not the model's (tensors, live ranges, places, order, notes),
    that is said and nothing runs.

    \b
    memplan validate model.memplan.onnx --original model.onnx --replay
    """
    from memplan_cli import api
    from memplan_cli.cli.options.words import parse_values
    from memplan_cli.core.bindings import Inputs
    from memplan_cli.reporting.commands.validate import VALIDATE

    output.progress("running both models")
    if not measure:
        reject_unused(
            ("processes",), "needs the models' memory to be measured", "add --measure"
        )
    check = api.Check(provider, runs, rtol, atol, timeout, processes=processes or 0)
    chosen: dict[Extra, bool] = {"replay": replay, "measure": measure}
    extras = tuple(extra for extra, wanted in chosen.items() if wanted)
    proof = api.validate(
        planned, original, check, extras, Inputs(inputs, parse_values(input_values))
    )
    say(VALIDATE[form](proof))
    raise SystemExit(0 if proof.passed else 1)
