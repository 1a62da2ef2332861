"""Constant expressions as reported: those that are live at the peak, and what was folded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memplan_cli.core.json_types import Natural  # noqa: TC001 - a type to read by


class ConstantTensor(NamedTuple):
    """A tensor that depends on initializers and constants only.

    Attributes:
        name: the tensor.
        op: the operator of the node that produces it.
        bytes: its size.
        left: why it cannot be folded; empty if it can.
    """

    name: str
    op: str
    bytes: Natural
    left: str = ""


class Unfolded(NamedTuple):
    """A constant tensor that is still computed by a node.

    Attributes:
        name: the tensor.
        op: the operator of the node.
        reason: why it was not folded.
    """

    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of constant folding.

    Attributes:
        tensors: tensors that became initializers.
        left: constant tensors that did not.
        added: bytes of the new initializers.
        dropped: bytes of initializers that are no longer used.
    """

    tensors: tuple[ConstantTensor, ...] = ()
    left: tuple[Unfolded, ...] = ()
    added: Natural = 0
    dropped: Natural = 0
