"""``memplan settings``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step
from memplan_cli.cli.options import (
    TUNE_COST,
    format_option,
    model_argument,
    output_options,
    provider_option,
    reject_unused,
    result_option,
    timeout_option,
    tune_option,
)
from memplan_cli.cli.output import deliver, say
from memplan_cli.cli.settings_options import binding_options, bounds_option, with_bounds

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.settings import ProviderChoice
    from memplan_cli.cli.output import Output
    from memplan_cli.core.check import Search
    from memplan_cli.settings.settings import Settings


@click.command(
    cls=GroupedCommand, most_used=("--measure", "--dim", "--bounds", "--output", "--format")
)
@model_argument
@bounds_option
@binding_options
@click.option("--measure", is_flag=True, help="Confirm the predicted memory by a run.")
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
    provider: ProviderChoice,
    timeout: float,
    out: Path | None,
    form: str,
    output: Output,
) -> None:
    """Recommend the session settings of ONNX Runtime with which MODEL needs least memory.

    MODEL is not changed, and its outputs stay the same: the settings change the execution order,
    memory reuse and the arena. The result is Python code, C or C++ code, or JSON. For a model that
    was already optimized for a provider, the settings that it depends on are kept.

    With --bounds, recommend the settings with which the process needs least memory for requests
    of any size in these ranges, on the CPU, and show the largest size of its arena.

    With --provider cuda and without --measure, no GPU is needed: the settings follow from ONNX Runtime's
    sources.

    \b
    memplan settings model.onnx --measure -o settings.py
    memplan settings model.onnx --bounds batch=1..8 --bounds seq=16..512 --measure
    """
    from memplan_cli import api
    from memplan_cli.api.models.binding import require_runs
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.request_range import range_settings
    from memplan_cli.features.serving.report import RANGE_SETTINGS, RangeSettingsReport
    from memplan_cli.reporting.commands.settings import SETTINGS

    if tune:
        require_runs(binding, "--tune")
    if bounds:
        reason = "cannot be combined with --bounds"
        reject_unused(("tune", "provider"), reason, "remove one of them")
    if not (measure or tune):
        reject_unused(("timeout",), "needs the model to be run", "add --measure")
    refuse_targets({"-o": out}, (model,))
    if tune:
        output.note(f"memplan: {TUNE_COST}")
    output.progress("choosing settings")
    if bounds:
        ranged = range_settings(
            model, with_bounds(binding, bounds), timeout if measure else None
        )
        result = RangeSettingsReport(str(model), ranged.bounds, ranged.serving, ranged.notes)
        text = RANGE_SETTINGS[form](result)
    else:
        if measure or tune:
            search: Search = "measured" if tune else "predicted"
            check = api.Check(provider, timeout=timeout, search=search)
            choice = api.settings(model, binding, check, output.progress)
        else:
            choice = api.settings(model, binding, progress=output.progress, provider=provider)
        text = SETTINGS[form](choice, str(model))
    deliver(text, out, output)
    # The command line of a model from standard input cannot be repeated.
    if form == "text" and out is None and not output.stdin_folder:
        is_confirmed = measure or tune
        label = "Write it to a file" if is_confirmed else "Confirm it by a run"
        option = "-o settings.py" if is_confirmed else "--measure"
        step = next_step(label, "settings", [model], option)
        say(f"\n# {step.label}:  {step.command}")
