"""``memplan settings``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import (
    format_option,
    output_options,
    provider_option,
    timeout_option,
)
from memplan_cli.cli.options.chosen import binding_options, range_option, with_bounds
from memplan_cli.cli.options.outputs import deliver, result_option
from memplan_cli.cli.options.stdin import model_argument
from memplan_cli.cli.options.unused import reject_unused
from memplan_cli.cli.options.validation import COST, tune_option

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output
    from memplan_cli.core.check import Search
    from memplan_cli.settings.settings import Settings


@click.command()
@model_argument
@range_option
@binding_options
@click.option("--measure", is_flag=True, help="Confirm what is predicted by one run.")
@tune_option
@provider_option
@timeout_option
@result_option
@format_option("text", "json", "c", "cpp")
@output_options
def settings(
    model: Path,
    *,
    bounds: tuple[str, ...],
    binding: Settings,
    measure: bool,
    tune: bool,
    provider: str,
    timeout: float,
    out: Path | None,
    form: str,
    output: Output,
) -> None:
    """Give the runtime options that make MODEL, as it is, need least memory.

    The same outputs, by another execution order, reuse and arena; as Python to paste, as C
    or C++, or as JSON. A file that has to run as it stands keeps what holds it so.

    With --bounds, those under which the process stays lowest for requests of any size
    within them, on the CPU, and the most that its arena ever holds.

    \b
    memplan settings model.onnx --measure -o settings.py
    memplan settings model.onnx --bounds batch=1..8 --bounds seq=16..512 --measure
    """
    from memplan_cli import api
    from memplan_cli.api.models.binding import refuse_run
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.request_range import range_settings
    from memplan_cli.features.serving.report import RANGE_SETTINGS
    from memplan_cli.reporting.commands.settings import SETTINGS

    if tune:
        refuse_run(binding, "--tune")
        output.note(f"memplan: {COST}")
    if not (measure or tune):
        unused = ("timeout",) if provider in ("auto", "cpu") else ("provider", "timeout")
        reject_unused(
            unused, "needs the model to be run", "add --measure"
        )  # predicted for CPU
    refuse_targets({"-o": out}, (model,))
    output.progress("choosing settings")
    if bounds:
        reject_unused(("tune", "provider"), "is for one size", "leave it or --bounds out")
        within = with_bounds(binding, bounds)
        ranged = range_settings(model, within, timeout if measure else None)
        text = RANGE_SETTINGS[form](ranged.serving, ranged.bounds, ranged.notes, str(model))
        deliver(text, out, output)
        return
    check = None
    if measure or tune:
        search: Search = "measured" if tune else "foreseen"
        check = api.Check(provider=provider, timeout=timeout, search=search)
    found = api.settings(model, binding, check, output.progress)
    deliver(SETTINGS[form](found, str(model)), out, output)
