"""``memplan soak``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import (
    Finite,
    format_option,
    output_options,
    timeout_option,
)
from memplan_cli.cli.options.chosen import binding_options, range_option
from memplan_cli.cli.options.outputs import deliver, result_option
from memplan_cli.cli.options.stdin import model_argument

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output
    from memplan_cli.settings.settings import Settings

_SEQUENCES = ("random", "growing", "shrinking", "alternating")


@click.command()
@model_argument
@range_option
@binding_options
@click.option(
    "--requests",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Requests under each configuration.",
)
@click.option(
    "--sequence",
    type=click.Choice(_SEQUENCES),
    default=_SEQUENCES[0],
    show_default=True,
    help="Order of the sizes of requests.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of sizes and inputs."
)
@click.option(
    "--time-limit",
    type=Finite(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Begin no further request after S seconds of a configuration.",
)
@timeout_option
@result_option
@format_option("text", "json", "html")
@output_options
def soak(
    model: Path,
    *,
    bounds: tuple[str, ...],
    binding: Settings,
    requests: int,
    sequence: str,
    seed: int,
    time_limit: float,
    timeout: float,
    out: Path | None,
    form: str,
    output: Output,
) -> None:
    """Serve many requests of changing size, and show what the process takes.

    Private memory and times under the runtime's defaults, under the settings of
    `memplan settings --bounds`, and under some made by hand, each in a process of its own, on
    the CPU and one thread. Exit code 1 if outputs differ, or the arena exceeds its bound.

    \b
    memplan soak model.onnx --bounds batch=1..8 --bounds seq=16..512
    memplan soak model.onnx --bounds batch=1..8 --sequence alternating --format html -o soak.html
    """
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.soak import soak as serve
    from memplan_cli.cli.options.chosen import with_bounds
    from memplan_cli.features.serving.report import SOAK

    refuse_targets({"-o": out}, (model,))
    found = serve(
        model,
        with_bounds(binding, bounds),
        requests=requests,
        sequence=sequence,
        seed=seed,
        seconds=time_limit,
        timeout=timeout,
        progress=output.progress,
    )
    deliver(SOAK[form](found), out, output)
    raise SystemExit(0 if found.passed else 1)
