"""``memplan fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import (
    format_option,
    model_argument,
    output_options,
    provider_option,
    reject_unused,
)
from memplan_cli.cli.output import say
from memplan_cli.cli.settings_options import settings_options, unknown_dim
from memplan_cli.core.binding_options import dim_option

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.request import Request
    from memplan_cli.cli.output import Output
    from memplan_cli.planning.fit import Fit
    from memplan_cli.reporting.document import NextStep


@click.command(
    cls=GroupedCommand, most_used=("--memory", "--dim", "--overhead", "--confirm", "--format")
)
@model_argument
@click.option(
    "--memory",
    metavar="SIZE",
    required=True,
    help="Available memory, for example 16GiB or 800 MB.",
)
@click.option(
    "--overhead",
    metavar="SIZE",
    help=(
        "Memory of what else the process imports, besides Python and the runtime. The default is "
        "64MiB. With --of tensors: memory of everything besides the tensors."
    ),
)
@click.option(
    "--of",
    "quantity",
    type=click.Choice(("process", "tensors")),
    help=(
        "What has to fit: the predicted process, or the planned tensors. The default is the "
        "process, if it can be predicted."
    ),
)
@click.option(
    "--confirm",
    is_flag=True,
    help="Run the model with the value found. If it does not fit, try smaller values.",
)
@provider_option
@format_option("text", "json")
@unknown_dim
@settings_options
@output_options
def fit(
    model: Path,
    *,
    unknown: str,
    request: Request,
    memory: str,
    overhead: str | None,
    quantity: Literal["process", "tensors"] | None,
    confirm: bool,
    provider: str,
    form: str,
    output: Output,
) -> None:
    """Find the largest value of a dimension with which MODEL fits into a memory size.

    The memory is the predicted peak of the process that loads MODEL and runs it with the default
    settings of the runtime. With --of tensors, or if the process cannot be predicted, it is the
    sum of weights, inputs, outputs, the planned arena and --overhead.

    If data decides the sizes of tensors, MODEL is run on generated inputs for small values, and
    the need of large values is extrapolated; the result says so.

    Exit code 1 if not even the value 1 fits, or if no run of --confirm fits.

    \b
    memplan fit model.onnx --memory 16GiB --dim batch=?
    memplan fit llm.onnx --memory 24GB --dim batch=? --dim past=1024 --dim new=1
    """
    from memplan_cli.api.fit import fit
    from memplan_cli.reporting.commands.fit import FIT

    if not confirm:
        reject_unused(("provider",), "needs the model to be run", "add --confirm")
    fitted = fit(
        model,
        memory,
        unknown,
        request.load(model),
        overhead=overhead,
        of=quantity or "auto",
        provider=provider if confirm else None,
        progress=output.progress,
    )
    say(FIT[form](fitted))
    say_next(form, _next_step(model, fitted))
    raise SystemExit(0 if fitted.passed else 1)


def _next_step(model: Path, fitted: Fit) -> NextStep:
    """Return what comes after an answer: ``fit --confirm`` if no run confirmed it, else `optimize`.

    If no value fits, or a run refuted the answer, the next step is ``why`` at the value that does not fit.
    """
    if fitted.point is not None and fitted.confirmed is None:
        return next_step("Confirm it by a run", "fit", [model], "--confirm")
    # Without a point not even the smallest value, 1, fits.
    dims = fitted.point.dims if fitted.point else {fitted.dim: 1}
    options = [dim_option(name, value) for name, value in {**fitted.dims, **dims}.items()]
    if fitted.passed:
        return next_step("Write a model that needs less", "optimize", [model], *options)
    return next_step("See what needs it", "why", [model], "--process", *options)
