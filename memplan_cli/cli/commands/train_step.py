"""``memplan train-step``."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import say_next
from memplan_cli.cli.options import format_option, model_argument, output_options
from memplan_cli.cli.output import say
from memplan_cli.cli.values import Finite, TargetFile

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.output import Output


@click.command(
    "train-step",
    cls=GroupedCommand,
    most_used=("--out", "--loss-fn", "--output", "--optimizer", "--budget"),
)
@model_argument
@click.option(
    "-o", "--out", type=TargetFile(), required=True, help="Write the training step here."
)
@click.option("--loss", metavar="NAME", help="Differentiate this tensor of the model.")
@click.option(
    "--loss-fn",
    type=click.Choice(["softmax-cross-entropy", "mse"]),
    help="Append this loss to the model's first output, or to the one named by --output.",
)
@click.option(
    "--labels",
    metavar="NAME",
    help=(
        "Name of the input with the labels for --loss-fn. It is added if the model does not "
        "have it. The default is labels."
    ),
)
@click.option(
    "--output",
    "loss_input",
    metavar="NAME",
    help="Output of the model that --loss-fn is appended to.",
)
@click.option(
    "--optimizer",
    type=click.Choice(["sgd", "momentum", "adam", "adamw"]),
    help="Append the weight update of this optimizer.",
)
@click.option("--gradients", is_flag=True, help="Output gradients instead of updated weights.")
@click.option(
    "--train",
    multiple=True,
    metavar="GLOB",
    help=(
        "Train these weights. The default is every weight that is a learned parameter of its "
        "operator. Repeatable."
    ),
)
@click.option(
    "--freeze", multiple=True, metavar="GLOB", help="Do not train these weights. Repeatable."
)
@click.option(
    "--running",
    is_flag=True,
    help="Let BatchNormalization use its running statistics instead of those of the batch.",
)
@click.option(
    "--weight-decay",
    type=Finite(0),
    metavar="X",
    help="Weight decay of the optimizer. The default is 0.01 for adamw, else 0.",
)
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    metavar="NAME",
    help="Keep this activation, and compute the others again in the backward part. Repeatable.",
)
@click.option(
    "--budget",
    metavar="SIZE|N%",
    help="Compute activations again until intermediates and outputs fit into this memory.",
)
@click.option(
    "--state",
    type=TargetFile(),
    help="Write the initial values of the in.* inputs into this .npz file.",
)
@format_option("text", "json")
@output_options
def train_step(
    model: Path,
    *,
    out: Path,
    loss: str | None,
    loss_fn: str | None,
    labels: str | None,
    loss_input: str | None,
    optimizer: str | None,
    gradients: bool,
    train: tuple[str, ...],
    freeze: tuple[str, ...],
    running: bool,
    weight_decay: float | None,
    checkpoints: tuple[str, ...],
    budget: str | None,
    state: Path | None,
    form: str,
    output: Output,
) -> None:
    """Write a training step for the forward MODEL, in standard ONNX operators.

    Each trained weight W becomes an input in.W and an output new.W. The state of the optimizer
    becomes inputs and outputs in the same way. learning_rate and step (1 in the first step) are
    inputs, and the loss is the first output.

    \b
    memplan train-step net.onnx -o step.onnx --loss-fn mse --optimizer adam
    memplan train-step net.onnx -o grads.onnx --loss loss --gradients
    """
    if (loss is None) == (loss_fn is None):
        raise click.UsageError("give either --loss or --loss-fn")
    if (optimizer is None) != gradients:
        raise click.UsageError("give either --optimizer or --gradients")
    if (labels or loss_input) and not loss_fn:
        raise click.UsageError("--labels and --output need --loss-fn")
    if weight_decay is not None and not optimizer:
        raise click.UsageError("--weight-decay needs --optimizer")
    if checkpoints and budget:
        raise click.UsageError("--checkpoint and --budget cannot be combined")
    from memplan_cli.api.train_step import train_step
    from memplan_cli.features.training.losses import LossFunction
    from memplan_cli.features.training.optimizers import Optimizer
    from memplan_cli.features.training.report import TRAIN_STEP
    from memplan_cli.features.training.train_step import Recipe, Statistics
    from memplan_cli.reporting.document import NextStep
    from memplan_cli.settings.keys import budget as read_budget
    from memplan_cli.settings.values import Place, Value

    recipe = Recipe(
        loss=loss or LossFunction(str(loss_fn), labels or "labels", loss_input or ""),
        optimizer=Optimizer(optimizer, weight_decay=weight_decay) if optimizer else None,
        train=train,
        freeze=freeze,
        statistics=Statistics.RUNNING if running else Statistics.BATCH,
    )
    step = train_step(
        model,
        out,
        recipe=recipe,
        checkpoints=checkpoints,
        budget=None if budget is None else read_budget(Value(budget, Place("--budget"))),
        state=state,
        progress=output.progress,
    )
    say(TRAIN_STEP[form](step))
    if step.missed:
        output.reason(f"memplan: {step.missed}: nothing was written")
        raise SystemExit(1)
    # `next_step` would repeat options such as --budget, which are for the forward model.
    say_next(form, NextStep("Plan it", f"memplan optimize {quote(str(out))}"))
