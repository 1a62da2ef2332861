"""Update rules: from a parameter, its gradient and the optimizer's state to their new values.

An optimizer is one function and one row of the table `OPTIMIZERS`. Its hyperparameters are constants
of the training step; the learning rate and the number of the step, from 1, are inputs of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnx import TensorProto

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.features.training.tape import Tape


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An update rule and its hyperparameters; those that the rule does not have are ignored.

    Attributes:
        kind: a key of `OPTIMIZERS`.
        momentum: share of the old moment, for ``momentum``.
        beta1: share of the old first moment, for ``adam`` and ``adamw``.
        beta2: share of the old second moment, for the same.
        epsilon: added to the divisor, for the same.
        weight_decay: share of a weight that is added to its gradient, or for ``adamw`` subtracted
            from the weight, times the learning rate. None: 0.01 for ``adamw``, 0 for others.
    """

    kind: str = "sgd"
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in OPTIMIZERS:
            raise SettingsError(
                f"there is no optimizer {self.kind!r}",
                hint=f"the optimizers are {', '.join(OPTIMIZERS)}",
            )


@dataclass(frozen=True, slots=True)
class UpdateScalars:
    """Tensors of rank 0 that the updates of all weights of one element type share.

    Attributes:
        rate: r, the learning rate.
        corrected_rate: r / (1 - beta1^t) in step t; empty if the rule has no second moment.
        correction_root: sqrt(1 - beta2^t); empty likewise.
    """

    rate: str
    corrected_rate: str = ""
    correction_root: str = ""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """The tensors from which the new value of one weight is computed.

    Attributes:
        weight: W.
        gradient: G.
        state: the optimizer's state, by the names in `OptimizerRule.state`.
        scalars: learning rate and corrections.
    """

    weight: str
    gradient: str
    state: Mapping[str, str]
    scalars: UpdateScalars


@dataclass(frozen=True, slots=True)
class UpdatedWeight:
    """The tensors with the new value of a weight and of the optimizer's state for it, by state name."""

    weight: str
    state: Mapping[str, str] = field(default_factory=dict)


def sgd(tape: Tape, optimizer: Optimizer, update: WeightUpdate) -> UpdatedWeight:
    """W' = W - r (G + d W), with decay d."""
    gradient = _gradient_with_decay(tape, optimizer, update)
    change = tape.emit("Mul", gradient, update.scalars.rate)
    return UpdatedWeight(tape.emit("Sub", update.weight, change))


def momentum(tape: Tape, optimizer: Optimizer, update: WeightUpdate) -> UpdatedWeight:
    """M' = u M + G + d W; W' = W - r M'."""
    gradient = _gradient_with_decay(tape, optimizer, update)
    share = tape.scalar(optimizer.momentum, update.weight)
    moment = tape.emit("Add", tape.emit("Mul", update.state["m"], share), gradient)
    change = tape.emit("Mul", moment, update.scalars.rate)
    return UpdatedWeight(tape.emit("Sub", update.weight, change), {"m": moment})


def adam(tape: Tape, optimizer: Optimizer, update: WeightUpdate) -> UpdatedWeight:
    """M' = a M + (1-a) G; V' = b V + (1-b) G^2; W' = W - r/(1-a^t) M' / (sqrt(V'/(1-b^t)) + e)."""
    gradient = _gradient_with_decay(tape, optimizer, update)
    return _adam(tape, optimizer, update, gradient)


def adamw(tape: Tape, optimizer: Optimizer, update: WeightUpdate) -> UpdatedWeight:
    """W' as in Adam, minus r d W: the decay does not pass through the moments."""
    new = _adam(tape, optimizer, update, update.gradient)
    decay = 0.01 if optimizer.weight_decay is None else optimizer.weight_decay
    share = tape.emit("Mul", update.scalars.rate, tape.scalar(decay, update.weight))
    change = tape.emit("Mul", update.weight, share)
    return UpdatedWeight(tape.emit("Sub", new.weight, change), new.state)


def _adam(
    tape: Tape, optimizer: Optimizer, update: WeightUpdate, gradient: str
) -> UpdatedWeight:
    """Write the formulas of `adam` for a gradient that already includes the decay, if any."""
    weight, scalars = update.weight, update.scalars
    m = _moving_average(tape, update.state["m"], gradient, optimizer.beta1, weight)
    square = tape.emit("Mul", gradient, gradient)
    v = _moving_average(tape, update.state["v"], square, optimizer.beta2, weight)
    corrected_root = tape.emit("Div", tape.emit("Sqrt", v), scalars.correction_root)
    divisor = tape.emit("Add", corrected_root, tape.scalar(optimizer.epsilon, weight))
    ratio = tape.emit("Div", m, divisor)
    change = tape.emit("Mul", ratio, scalars.corrected_rate)
    return UpdatedWeight(tape.emit("Sub", weight, change), {"m": m, "v": v})


def _moving_average(tape: Tape, old: str, new: str, share: float, like: str) -> str:
    """Return share * old + (1 - share) * new, both of the element type of ``like``."""
    old_part = tape.emit("Mul", old, tape.scalar(share, like))
    new_part = tape.emit("Mul", new, tape.scalar(1 - share, like))
    return tape.emit("Add", old_part, new_part)


def _gradient_with_decay(tape: Tape, optimizer: Optimizer, update: WeightUpdate) -> str:
    """Return G + d W, or G itself without decay."""
    if not optimizer.weight_decay:
        return update.gradient
    decay = tape.scalar(optimizer.weight_decay, update.weight)
    return tape.emit("Add", update.gradient, tape.emit("Mul", update.weight, decay))


def update_scalars(
    tape: Tape, optimizer: Optimizer, learning_rate: str, step: str, dtype: int
) -> UpdateScalars:
    """Write the scalars that all updates of weights of one element type share.

    ``learning_rate`` is a float32 tensor of rank 0, ``step`` an int64 tensor with the number of the
    step, from 1. The corrections are computed in float64: in float32, 1 - beta^t loses half its
    digits in the first steps.
    """
    rate = tape.emit("Cast", learning_rate, to=dtype)
    if "v" not in OPTIMIZERS[optimizer.kind].state:  # no second moment: nothing is corrected
        return UpdateScalars(rate)
    double = TensorProto.DOUBLE
    one = tape.constant(1, double)
    exponent = tape.emit("Cast", step, to=double)
    corrections = [
        tape.emit("Sub", one, tape.emit("Pow", tape.constant(beta, double), exponent))
        for beta in (optimizer.beta1, optimizer.beta2)
    ]
    exact_rate = tape.emit("Cast", learning_rate, to=double)
    corrected_rate = tape.emit("Div", exact_rate, corrections[0])
    correction_root = tape.emit("Sqrt", corrections[1])
    return UpdateScalars(
        rate,
        tape.emit("Cast", corrected_rate, to=dtype),
        tape.emit("Cast", correction_root, to=dtype),
    )


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """How an optimizer updates a weight, and the names of the state that it has for each weight."""

    write: Callable[[Tape, Optimizer, WeightUpdate], UpdatedWeight]
    state: tuple[str, ...] = ()


OPTIMIZERS: Mapping[str, OptimizerRule] = {
    "sgd": OptimizerRule(sgd),
    "momentum": OptimizerRule(momentum, ("m",)),
    "adam": OptimizerRule(adam, ("m", "v")),
    "adamw": OptimizerRule(adamw, ("m", "v")),
}
