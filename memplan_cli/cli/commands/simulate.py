"""``memplan simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import (
    format_option,
    model_argument,
    output_options,
    timeout_option,
)
from memplan_cli.cli.output import say
from memplan_cli.cli.settings_options import binding_options

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.output import Output
    from memplan_cli.settings.settings import Settings

ALLOCATORS = ("bfc", "best-fit", "bfc-exact", "ort")


@click.command(cls=GroupedCommand, most_used=("--allocator", "--dim", "--inputs", "--format"))
@model_argument
@click.option(
    "--allocator",
    "allocators",
    type=click.Choice(ALLOCATORS),
    multiple=True,
    help="Simulate this allocator. The default is all of them. Repeatable.",
)
@binding_options
@timeout_option
@format_option("text", "json")
@output_options
def simulate(
    model: Path,
    *,
    allocators: tuple[str, ...],
    binding: Settings,
    timeout: float,
    form: str,
    output: Output,
) -> None:
    """Compare dynamic allocators with the static plan, for one run of MODEL.

    MODEL is run once to learn the shapes of all tensors. Each simulated allocator then serves the
    allocations and releases of that run in their order.

    \b
    memplan simulate model.onnx --allocator bfc --allocator best-fit
    """
    from memplan_cli import api
    from memplan_cli.reporting.commands.simulate import SIMULATE

    output.progress("running the original")
    names = tuple(dict.fromkeys(allocators)) or ALLOCATORS  # each once, in the given order
    simulation = api.simulate(model, binding, names, timeout)
    for warning in simulation.warnings:
        output.note(f"warning: {warning}")
    say(SIMULATE[form](simulation))
    say_next(form, next_step("Get the settings with least memory", "settings", [model]))
