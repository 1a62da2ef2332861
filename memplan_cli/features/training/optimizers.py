"""Update rules: from a parameter, its gradient and its state to their new values.

An optimiser is one function and one line of the table `OPTIMISERS`. Hyperparameters are
constants of the step; the learning rate and the number of the step (from 1) are its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.features.training.tape import Tape


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Which update, and its constants; those an update does not know are not used."""

    kind: str = "sgd"
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in OPTIMISERS:
            raise SettingsError(
                f"there is no optimizer {self.kind!r}",
                hint=f"the optimizers are {', '.join(OPTIMISERS)}",
            )


@dataclass(frozen=True, slots=True)
class Site:
    """One parameter to update; ``state`` maps the table's state names to tensors."""

    parameter: str
    gradient: str
    state: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scalars:
    """Tensors without dimensions that all updates of one element type share."""

    rate: str
    corrected: str = ""
    root: str = ""


def sgd(tape: Tape, optimizer: Optimizer, site: Site, scalars: Scalars) -> dict[str, str]:
    """W' = W - r (G + d W), with decay d."""
    gradient = _decayed(tape, optimizer, site)
    step = tape.emit("Mul", gradient, scalars.rate)
    return {"": tape.emit("Sub", site.parameter, step)}


def momentum(tape: Tape, optimizer: Optimizer, site: Site, scalars: Scalars) -> dict[str, str]:
    """M' = u M + G + d W; W' = W - r M'."""
    gradient = _decayed(tape, optimizer, site)
    old = tape.emit("Mul", site.state["m"], tape.scalar(optimizer.momentum, site.parameter))
    moment = tape.emit("Add", old, gradient)
    step = tape.emit("Mul", moment, scalars.rate)
    return {"": tape.emit("Sub", site.parameter, step), "m": moment}


def adam(tape: Tape, optimizer: Optimizer, site: Site, scalars: Scalars) -> dict[str, str]:
    """M' = a M + (1-a) G; V' = b V + (1-b) G^2; W' = W - r/(1-a^t) M' / (sqrt(V'/(1-b^t)) + e)."""
    return _adaptive(tape, optimizer, site, (_decayed(tape, optimizer, site), scalars))


def adamw(tape: Tape, optimizer: Optimizer, site: Site, scalars: Scalars) -> dict[str, str]:
    """Adam, and beside it W' loses r d W: the decay does not pass through the moments."""
    found = _adaptive(tape, optimizer, site, (site.gradient, scalars))
    decay = 0.01 if optimizer.weight_decay is None else optimizer.weight_decay
    share = tape.emit("Mul", scalars.rate, tape.scalar(decay, site.parameter))
    lost = tape.emit("Mul", site.parameter, share)
    return {**found, "": tape.emit("Sub", found[""], lost)}


def _adaptive(
    tape: Tape, optimizer: Optimizer, site: Site, given: tuple[str, Scalars]
) -> dict[str, str]:
    gradient, scalars = given
    first = _moving(tape, site, ("m", gradient), optimizer.beta1)
    square = tape.emit("Mul", gradient, gradient)
    second = _moving(tape, site, ("v", square), optimizer.beta2)
    root = tape.emit("Div", tape.emit("Sqrt", second), scalars.root)
    root = tape.emit("Add", root, tape.scalar(optimizer.epsilon, site.parameter))
    step = tape.emit("Mul", tape.emit("Div", first, root), scalars.corrected)
    return {"": tape.emit("Sub", site.parameter, step), "m": first, "v": second}


def _moving(tape: Tape, site: Site, fresh: tuple[str, str], share: float) -> str:
    old = tape.emit("Mul", site.state[fresh[0]], tape.scalar(share, site.parameter))
    new = tape.emit("Mul", fresh[1], tape.scalar(1 - share, site.parameter))
    return tape.emit("Add", old, new)


def _decayed(tape: Tape, optimizer: Optimizer, site: Site) -> str:
    if not optimizer.weight_decay:
        return site.gradient
    part = tape.emit(
        "Mul", site.parameter, tape.scalar(optimizer.weight_decay, site.parameter)
    )
    return tape.emit("Add", site.gradient, part)


def shared_scalars(
    tape: Tape, optimizer: Optimizer, inputs: tuple[str, str], dtype: int
) -> Scalars:
    """Write what all updates share: the rate in their type, corrected for the first steps."""
    rate, step = inputs
    plain = tape.emit("Cast", rate, to=dtype)
    if "v" not in OPTIMISERS[optimizer.kind].state:
        return Scalars(plain)
    one = tape.constant(1, _DOUBLE)
    exact = tape.emit("Cast", step, to=_DOUBLE)
    rests = [
        tape.emit("Sub", one, tape.emit("Pow", tape.constant(beta, _DOUBLE), exact))
        for beta in (optimizer.beta1, optimizer.beta2)
    ]
    corrected = tape.emit("Div", tape.emit("Cast", rate, to=_DOUBLE), rests[0])
    root = tape.emit("Sqrt", rests[1])
    return Scalars(
        plain, tape.emit("Cast", corrected, to=dtype), tape.emit("Cast", root, to=dtype)
    )


_DOUBLE = 11
"""TensorProto.DOUBLE: 1 - b^t loses half its digits in float32 at the first steps."""


@dataclass(frozen=True, slots=True)
class Update:
    """An update rule and the names of the state it keeps for each parameter."""

    write: Callable[[Tape, Optimizer, Site, Scalars], dict[str, str]]
    state: tuple[str, ...] = ()


OPTIMISERS: Mapping[str, Update] = {
    "sgd": Update(sgd),
    "momentum": Update(momentum, ("m",)),
    "adam": Update(adam, ("m", "v")),
    "adamw": Update(adamw, ("m", "v")),
}
