"""The ancestor's verbs: `backward`, `apply_gradients`, `apply_optimize`, `minimize`.

Fluid's RecomputeOptimizer builds the backward part of a program and its updates; here a
forward ONNX model becomes a training step in standard operators, which ONNX Runtime runs.

    step = minimize(model, loss, Optimizer("adam"))
    feeds = first_feeds(model, step)

`backward` alone gives a model whose outputs are the gradients; `apply_gradients` gives the
whole step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from memplan_cli.errors import MemplanError
from memplan_cli.training.forward.initial import first_feeds
from memplan_cli.training.losses import LossFunction
from memplan_cli.training.optimizers import Optimizer
from memplan_cli.training.train_step import (
    Recipe,
    Statistics,
    TrainStep,
    make_train_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from memplan_cli.training.train_step import Model

    Recompute = Callable[[TrainStep, tuple[str, ...]], TrainStep]

__all__ = [
    "Backward",
    "LossFunction",
    "Optimizer",
    "Recipe",
    "Statistics",
    "TrainStep",
    "apply_gradients",
    "apply_optimize",
    "backward",
    "first_feeds",
    "load",
    "minimize",
]


@dataclass(frozen=True, slots=True)
class Backward:
    """A model's gradients, before any update.

    ``step.model`` computes the loss and the gradients, ``step.gradients`` gives each
    parameter's name its gradient's. ``checkpoints`` name the tensors to
    keep when the rest of the forward part is computed again.
    """

    step: TrainStep
    model: Model
    recipe: Recipe
    checkpoints: tuple[str, ...] = ()


def backward(
    model: Model,
    loss: str | LossFunction,
    parameter_list: Sequence[str] = (),
    no_grad_set: Sequence[str] = (),
    checkpoints: Sequence[str] = (),
) -> Backward:
    """Build the gradients of a loss with respect to a model's parameters.

    Args:
        model: A forward model; it is not changed.
        loss: A tensor with one element, or what to make one with.
        parameter_list: Names and globs of the parameters; by default all that are learned.
        no_grad_set: Names and globs of parameters to leave as they are.
        checkpoints: Tensors that recomputation keeps; see `minimize`.

    Raises:
        SettingsError: a name matches nothing.
        NoRuleError: an operator between a parameter and the loss has no gradient rule.
    """
    recipe = Recipe(loss, None, tuple(parameter_list), tuple(no_grad_set))
    step = make_train_step(model, recipe)
    return Backward(step, model, recipe, tuple(checkpoints))


def apply_gradients(gradients: Backward, optimizer: Optimizer | None = None) -> TrainStep:
    """Put the update of every parameter behind its gradient.

    The step is built again from the model: its updates then stand right behind their
    gradients, which die at once.

    Raises:
        MemplanError: as `backward`.
    """
    chosen = optimizer or Optimizer()
    return make_train_step(gradients.model, replace(gradients.recipe, optimizer=chosen))


def apply_optimize(
    gradients: Backward, optimizer: Optimizer | None = None, recompute: Recompute | None = None
) -> TrainStep:
    """Put in the updates and, where checkpoints were given, let ``recompute`` use them.

    Raises:
        MemplanError: there are checkpoints and nothing that could use them.
    """
    step = apply_gradients(gradients, optimizer)
    if not gradients.checkpoints:
        return step
    if recompute is None:
        raise MemplanError(
            "checkpoints were given, but no recompute to use them",
            hint="pass recompute=, a function of the step and the names of its checkpoints",
        )
    return recompute(step, gradients.checkpoints)


def minimize(  # noqa: PLR0913 - the ancestor's own arguments, by name
    model: Model,
    loss: str | LossFunction,
    optimizer: Optimizer | None = None,
    *,
    parameter_list: Sequence[str] = (),
    no_grad_set: Sequence[str] = (),
    checkpoints: Sequence[str] = (),
    recompute: Recompute | None = None,
) -> TrainStep:
    """Make a whole training step: `backward`, then `apply_optimize`.

    Args:
        model: A forward model; it is not changed.
        loss: A tensor with one element, or what to make one with.
        optimizer: The update rule; stochastic gradient descent by default.
        parameter_list: Names and globs of the parameters; by default all that are learned.
        no_grad_set: Names and globs of parameters to leave as they are.
        checkpoints: Tensors that recomputation keeps.
        recompute: Makes a step that keeps little more than the checkpoints.

    Raises:
        MemplanError: as `backward` and `apply_optimize`.
    """
    gradients = backward(model, loss, parameter_list, no_grad_set, checkpoints)
    return apply_optimize(gradients, optimizer, recompute)


def load(path: Path) -> NoReturn:
    """Refuse, as the ancestor's optimizer did: its state is the step's inputs.

    Raises:
        MemplanError: always, saying what to do instead.
    """
    raise MemplanError(
        f"load is not supported: {path} was not read",
        hint="an optimizer keeps nothing; feed its state to the step's in.* inputs",
    )
