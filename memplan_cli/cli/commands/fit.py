"""``memplan fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import (
    format_option,
    model_argument,
    output_options,
    provider_option,
    say,
)
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.profiles import open_dims
from memplan_cli.cli.options.unused import refuse_idle
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output
    from memplan_cli.settings.settings import Settings


@click.command()
@model_argument
@click.option("--memory", metavar="SIZE", required=True, help="What there is: 16GiB, 800 MB.")
@click.option("--overhead", metavar="SIZE", help="The runtime's own share; default 64MiB.")
@click.option("--confirm", is_flag=True, help="Run the answer and hold it against SIZE.")
@provider_option
@format_option("text", "json")
@open_dims
@settings_options
@output_options
def fit(  # noqa: PLR0913 - one parameter an option, as click wants it
    model: Path,
    *,
    unknown: tuple[str, ...],
    settings: Chosen,
    memory: str,
    overhead: str | None,
    confirm: bool,
    provider: str,
    form: str,
    output: Output,
) -> None:
    """Find the largest value of a dim with which MODEL fits a memory size.

    What counts: weights, inputs, outputs, the planned arena, and the runtime's overhead.
    With several dims to look for, the first is the largest for powers of two of the
    others. Exit code 1 if not even 1 fits, or if --confirm sees more than planned.

    \b
    memplan fit model.onnx --memory 16GiB --dim batch=?
    memplan fit llm.onnx --memory 24GB --dim batch=? --dim past=? --dim new=1
    """
    from memplan_cli.core.quantities import parse_size
    from memplan_cli.planning.fit import DEFAULT_OVERHEAD
    from memplan_cli.reporting.commands.results import FIT
    from memplan_cli.workflows import fit as fitting

    if not confirm:
        refuse_idle(("provider",), "needs the model to be run", "add --confirm")
    request = fitting.Request(
        memory=parse_size(memory),
        unknown=unknown,
        overhead=DEFAULT_OVERHEAD if overhead is None else parse_size(overhead),
        provider=provider if confirm else None,
    )
    chosen = settings.load(model)
    _refuse_decided(unknown, chosen)
    found = fitting.fit(model, request, chosen, output.progress)
    say(FIT[form](found))
    raise SystemExit(0 if found.passed else 1)


def _refuse_decided(unknown: tuple[str, ...], chosen: Settings) -> None:
    """Refuse to look for a dim of which an option or a settings file says something already.

    Raises:
        SettingsError: naming the dim.
    """
    for name in unknown:
        known = (
            "a number" if name in chosen.dims else "bounds" if name in chosen.bounds else ""
        )
        if known:
            raise SettingsError(
                f"--dim {name}=? looks for a dim that has {known} already",
                hint="take it out of the other options, or of the settings files",
            )
