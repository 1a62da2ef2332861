"""``memplan pack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import Finite, format_option, output_options, say
from memplan_cli.cli.options.outputs import TargetFile

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "out",
    type=TargetFile(),
    help="Output CSV: the problem with an offset column.",
)
@click.option(
    "--certificate",
    type=TargetFile(),
    help="Write what shows that no layout is lower; needs -o.",
)
@click.option(
    "--capacity",
    type=click.IntRange(0),
    metavar="N",
    help="Arena size in bytes that must suffice; else exit code 1.",
)
@click.option(
    "--time-limit",
    type=Finite(0),
    metavar="S",
    help="Time limit of the search, in seconds.",
)
@format_option("text", "json")
@output_options
def pack(
    problem: Path,
    *,
    out: Path | None,
    certificate: Path | None,
    capacity: int | None,
    time_limit: float | None,
    form: str,
    output: Output,
) -> None:
    """Pack the buffers of PROBLEM, a CSV file with the columns id,lower,upper,size.

    A buffer is live from lower to upper, upper not included. Says how tall an arena they
    need, the lower bound, and whether the height is proved to be the least there is.

    \b
    memplan pack problem.csv -o offsets.csv
    memplan pack problem.csv --capacity 1048576 --time-limit 10
    """
    from memplan_cli.api.pack import pack
    from memplan_cli.reporting.commands.pack import PACK

    packed = pack(
        problem,
        capacity=capacity,
        time_limit=time_limit,
        out=out,
        certificate=certificate,
        progress=output.progress,
    )
    say(PACK[form](packed))
    if out:
        output.note(
            f"memplan: wrote {out}" if packed.passed else "memplan: nothing was written"
        )
    raise SystemExit(0 if packed.passed else 1)
