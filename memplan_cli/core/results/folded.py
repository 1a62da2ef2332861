"""Constant expressions as reported: those that are live at the peak, and what was folded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memplan_cli.core.results.placements import Natural  # noqa: TC001 - a type to read by


class ConstantTensor(NamedTuple):
    """A tensor that hangs on initializers and constants alone, and the type of its node.

    ``left`` says why it cannot be folded, or nothing.
    """

    name: str
    op: str
    bytes: Natural
    left: str = ""


class Unfolded(NamedTuple):
    """A constant tensor that stays a node's result, and why."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Folded:
    """What became initializers, what did not, and what that does to the weights.

    ``added`` are the bytes of the new initializers, ``dropped`` those of weights that nobody
    else reads.
    """

    tensors: tuple[ConstantTensor, ...] = ()
    left: tuple[Unfolded, ...] = ()
    added: Natural = 0
    dropped: Natural = 0
