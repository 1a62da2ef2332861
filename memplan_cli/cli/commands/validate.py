"""``memplan validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import (
    Finite,
    format_option,
    output_options,
    provider_option,
    say,
    timeout_option,
)

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output
    from memplan_cli.workflows.validate import Extra

_TOLERANCE = Finite(0)


@click.command()
@click.argument("planned", type=click.Path(path_type=Path))
@click.option(
    "--original", type=click.Path(path_type=Path), help="Default: PLANNED less .memplan."
)
@provider_option
@click.option("--replay", is_flag=True, help="Run it op by op inside the plan's arenas.")
@click.option("--measure", is_flag=True, help="Measure both models' memory in the runtime.")
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Runs of each model.",
)
@click.option(
    "--rtol",
    type=_TOLERANCE,
    default=0.0,
    show_default=True,
    help="Relative tolerance; 0 with --atol 0: bit for bit.",
)
@click.option(
    "--atol",
    type=_TOLERANCE,
    default=0.0,
    show_default=True,
    help="Absolute tolerance.",
)
@timeout_option
@format_option("text", "json")
@output_options
def validate(  # noqa: PLR0913 - one parameter an option, as click wants it
    planned: Path,
    *,
    original: Path | None,
    provider: str,
    replay: bool,
    measure: bool,
    runs: int,
    rtol: float,
    atol: float,
    timeout: float,
    form: str,
    output: Output,
) -> None:
    """Run PLANNED, a model that memplan wrote, against its original.

    \b
    memplan validate model.memplan.onnx --original model.onnx --replay
    """
    from memplan_cli.reporting.commands.results import VALIDATE
    from memplan_cli.workflows import api
    from memplan_cli.workflows.compare import Check

    output.progress("running both models")
    check = Check(provider, runs, rtol, atol, timeout)
    asked: dict[Extra, bool] = {"replay": replay, "measure": measure}
    extras = tuple(extra for extra, wanted in asked.items() if wanted)
    original = original or _named_by(planned)
    _refuse_itself(planned, original)
    proof = api.validate(planned, original, check, extras)
    say(VALIDATE[form](proof))
    raise SystemExit(0 if proof.passed else 1)


def _refuse_itself(planned: Path, original: Path) -> None:
    """Refuse to hold a file against itself: whatever it computes, that would pass.

    Raises:
        ModelError: both names are of one file.
    """
    from memplan_cli.errors import ModelError

    if planned.exists() and original.exists() and planned.samefile(original):
        raise ModelError(
            f"{original} is the written model itself, which says nothing of its original",
            hint="name with --original the model that it was made from",
        )


def _named_by(planned: Path) -> Path:
    """Return the file that ``optimize`` made this one from, by its default name.

    Raises:
        ModelError: there is no such file, or its name does not say.
    """
    from memplan_cli.errors import ModelError
    from memplan_cli.workflows.files.file_names import original_of

    if not planned.exists():
        raise ModelError(f"there is no file {planned}")
    original = original_of(planned)
    if original is None:
        raise ModelError(
            f"{planned} does not say which model it was made from",
            hint="name it with --original",
        )
    if not original.exists():
        raise ModelError(
            f"there is no file {original}, the default for the model that it was made from",
            hint="name that model with --original",
        )
    return original
