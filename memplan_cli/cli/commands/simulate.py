"""``memplan simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import (
    format_option,
    output_options,
    say,
    timeout_option,
)
from memplan_cli.cli.options.chosen import binding_options
from memplan_cli.cli.options.stdin import model_argument

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output
    from memplan_cli.settings.settings import Settings

ALLOCATORS = ("bfc", "best-fit", "bfc-exact", "ort")


@click.command()
@model_argument
@click.option(
    "--allocator",
    "allocators",
    type=click.Choice(ALLOCATORS),
    multiple=True,
    help="Allocator to simulate; repeatable; default: all.",
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
    """Show what dynamic allocators need for a run of MODEL, beside the static plan.

    The model is run once to see its real shapes; each allocator then sees the requests
    of that run one by one.

    \b
    memplan simulate model.onnx --allocator bfc --allocator best-fit
    """
    from memplan_cli import api
    from memplan_cli.reporting.commands.simulate import SIMULATE

    output.progress("running the original")
    found = api.simulate(
        model, binding, tuple(dict.fromkeys(allocators)) or ALLOCATORS, timeout
    )
    for warning in found.warnings:
        output.note(f"warning: {warning}")
    say(SIMULATE[form](found))
