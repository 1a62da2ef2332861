"""``memplan train-step``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import (
    Finite,
    format_option,
    output_options,
    say,
)
from memplan_cli.cli.options.outputs import TargetFile
from memplan_cli.cli.options.stdin import model_argument

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.cli.common import Output


@click.command("train-step")
@model_argument
@click.option("-o", "--out", type=TargetFile(), required=True, help="Training step to write.")
@click.option("--loss", metavar="NAME", help="Loss tensor of the model.")
@click.option(
    "--loss-fn",
    type=click.Choice(["softmax-cross-entropy", "mse"]),
    help="Append this loss to the model's first output (or --output).",
)
@click.option(
    "--labels",
    metavar="NAME",
    help="Input with the labels, added if there is none of that name.",
)
@click.option("--output", "result", metavar="NAME", help="Model output that --loss-fn reads.")
@click.option(
    "--optimizer",
    type=click.Choice(["sgd", "momentum", "adam", "adamw"]),
    help="Optimizer whose update is appended.",
)
@click.option("--gradients", is_flag=True, help="Output gradients instead of updated weights.")
@click.option(
    "--train",
    multiple=True,
    metavar="GLOB",
    help="Weights to train; default: all that operators learn.",
)
@click.option("--freeze", multiple=True, metavar="GLOB", help="Weights to keep as they are.")
@click.option(
    "--running", is_flag=True, help="Freeze batch norms at their running statistics."
)
@click.option(
    "--weight-decay", type=Finite(0), help="Weight decay of the optimizer; adamw: 0.01."
)
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    metavar="NAME",
    help="Activation to keep; the rest is recomputed.",
)
@click.option(
    "--budget",
    metavar="SIZE|N%",
    help="Recompute activations until intermediates and outputs fit.",
)
@click.option(
    "--state", type=TargetFile(), help="Write the initial value of each in.* (.npz)."
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
    result: str | None,
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
    """Turn the forward MODEL into a training step in standard ONNX operators.

    Each trained weight W becomes an input in.W and an output new.W, the optimizer's state
    likewise; learning_rate and step (from 1) are inputs, the loss is the first output.

    \b
    memplan train-step net.onnx -o step.onnx --loss-fn softmax-cross-entropy --optimizer adam
    memplan train-step net.onnx -o grads.onnx --loss loss --gradients --freeze 'embed*'
    """
    _require((loss is None) != (loss_fn is None), "either --loss or --loss-fn")
    _require((optimizer is None) == gradients, "either --optimizer or --gradients")
    _require(bool(loss_fn) or not (labels or result), "--labels and --output with --loss-fn")
    _require(bool(optimizer) or weight_decay is None, "--weight-decay with --optimizer")
    _require(not checkpoints or not budget, "either --checkpoint or --budget")
    from memplan_cli.api.train_step import train_step
    from memplan_cli.features.training.losses import LossFunction
    from memplan_cli.features.training.optimizers import Optimizer
    from memplan_cli.features.training.report import TRAIN_STEP
    from memplan_cli.features.training.train_step import Recipe, Statistics
    from memplan_cli.settings.keys import budget as read_budget
    from memplan_cli.settings.values import Place, Value

    allowed = None if budget is None else read_budget(Value(budget, Place("--budget")))
    recipe = Recipe(
        loss or LossFunction(str(loss_fn), labels or "labels", result or ""),
        Optimizer(optimizer, weight_decay=weight_decay) if optimizer else None,
        train,
        freeze,
        Statistics.RUNNING if running else Statistics.BATCH,
    )
    made = train_step(
        model,
        out,
        recipe=recipe,
        checkpoints=checkpoints,
        budget=allowed,
        state=state,
        progress=output.progress,
    )
    say(TRAIN_STEP[form](made))
    if made.missed:
        output.reason(f"memplan: {made.missed}: nothing was written")
        raise SystemExit(1)


def _require(given: bool, words: str) -> None:  # noqa: FBT001 - the test itself, no mode
    if not given:
        raise click.UsageError(f"give {words}")
