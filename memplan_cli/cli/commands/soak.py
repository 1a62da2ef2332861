"""``memplan soak``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import (
    format_option,
    model_argument,
    output_options,
    result_option,
    timeout_option,
)
from memplan_cli.cli.output import deliver
from memplan_cli.cli.settings_options import binding_options, bounds_option, with_bounds
from memplan_cli.cli.values import Finite

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.output import Output
    from memplan_cli.settings.settings import Settings

_SEQUENCES = ("random", "growing", "shrinking", "alternating")


@click.command(
    cls=GroupedCommand,
    most_used=("--bounds", "--requests", "--time-limit", "--output", "--format"),
)
@model_argument
@bounds_option
@binding_options
@click.option(
    "--requests",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    default=1000,
    help="Number of requests under each configuration.",
)
@click.option(
    "--sequence",
    type=click.Choice(_SEQUENCES),
    default=_SEQUENCES[0],
    help="How the sizes of the requests follow one another.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Random seed of the sizes and of the inputs.",
)
@click.option(
    "--time-limit",
    type=Finite(0, min_open=True),
    default=300.0,
    metavar="S",
    help="Start no further request of a configuration after this many seconds.",
)
@timeout_option
@result_option
@format_option("text", "json")
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
    """Run MODEL on many requests of varying size, and show the memory of the process.

    The requests are repeated under several configurations: the default settings of the runtime,
    the settings of `memplan settings --bounds`, and some common manual settings. Each has a
    process of its own, which runs on the CPU with one thread. The result shows private memory and
    times. Exit code 1 if outputs differ, or if the arena exceeds its predicted bound.

    \b
    memplan soak model.onnx --bounds batch=1..8 --bounds seq=16..512
    """
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.soak import soak
    from memplan_cli.features.serving.report import SOAK

    refuse_targets({"-o": out}, (model,))
    soaked = soak(
        model,
        with_bounds(binding, bounds),
        requests=requests,
        sequence=sequence,
        seed=seed,
        seconds=time_limit,
        timeout=timeout,
        progress=output.progress,
    )
    deliver(SOAK[form](soaked), out, output)
    if out is None:
        say_next(form, next_step("Get the chosen settings", "settings", [model]))
    raise SystemExit(0 if soaked.passed else 1)
