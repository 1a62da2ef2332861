"""``memplan pack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import format_option, output_options
from memplan_cli.cli.output import say
from memplan_cli.cli.values import Finite, TargetFile

if TYPE_CHECKING:
    from memplan_cli.cli.output import Output


@click.command(
    cls=GroupedCommand, most_used=("--output", "--capacity", "--time-limit", "--format")
)
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "out",
    type=TargetFile(),
    help="Write the problem with an additional column offset into this CSV file.",
)
@click.option(
    "--capacity",
    type=click.IntRange(0),
    metavar="N",
    help="Size of the arena in bytes. Exit code 1 if no layout of this size is found.",
)
@click.option(
    "--time-limit",
    type=Finite(0),
    metavar="S",
    help="Stop the search after this many seconds.",
)
@format_option("text", "json")
@output_options
def pack(
    problem: Path,
    *,
    out: Path | None,
    capacity: int | None,
    time_limit: float | None,
    form: str,
    output: Output,
) -> None:
    """Pack the buffers of PROBLEM into one arena.

    PROBLEM is a CSV file with the columns id,lower,upper,size. A buffer is live from step lower
    up to, but not including, step upper. The result is the height of the arena, a lower bound of
    it, and whether the height is proved to be the smallest possible.

    \b
    memplan pack problem.csv -o offsets.csv
    memplan pack problem.csv --capacity 1048576 --time-limit 10
    """
    from memplan_cli.api.pack import pack
    from memplan_cli.reporting.commands.pack import PACK

    packed = pack(
        problem, capacity=capacity, time_limit=time_limit, out=out, progress=output.progress
    )
    say(PACK[form](packed))
    if packed.passed and out is None:
        say_next(form, next_step("Write the offsets", "pack", [problem], "-o offsets.csv"))
    if out:
        output.note(
            f"memplan: wrote {out}" if packed.passed else "memplan: nothing was written"
        )
    raise SystemExit(0 if packed.passed else 1)
