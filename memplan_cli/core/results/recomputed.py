"""Recomputation as reported: the nodes that run twice, their cost, and the budget reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memplan_cli.core.serialization import Key, Keys, optional, sparse


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A program on the trade-off curve: peak in bytes, extra work as a share, copies."""

    json_keys: ClassVar[Keys] = ("peak", Key("flops_increase", "extra"), "nodes")

    peak: int
    extra: float
    nodes: int


@dataclass(frozen=True, slots=True)
class Recompute:
    """What runs twice, what that costs, and whether it was enough.

    ``flops_increase`` is a share of the model's modelled work. ``bound`` is what no order
    goes below, whatever runs twice, of intermediates alone; ``resident_bound`` with outputs.
    """

    json_keys: ClassVar[Keys] = (
        "nodes",
        "flops_increase",
        *optional("budget", "met", "bound", "curve"),
        *sparse("resident_bound"),
    )

    nodes: int = 0
    flops_increase: float = 0.0
    budget: int | None = None
    met: bool = True
    bound: int | None = None
    curve: tuple[CurvePoint, ...] = ()
    resident_bound: int | None = None
