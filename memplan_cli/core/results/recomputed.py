"""Recomputation as reported: the nodes that run twice, their cost, and the budget reached."""

from __future__ import annotations

from dataclasses import dataclass, field

from memplan_cli.core.json_types import Count  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import OPTIONAL, SPARSE


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One program on the trade-off curve of memory and work.

    Attributes:
        peak: its live peak in bytes.
        flops_increase: the added work, as a share of the model's.
        nodes: how many nodes run twice.
    """

    peak: Count
    flops_increase: float
    nodes: Count


@dataclass(frozen=True, slots=True)
class Recompute:
    """The nodes that run twice, what that costs, and whether it met the budget.

    Attributes:
        nodes: how many nodes run twice.
        flops_increase: the added work, as a share of the model's estimated work.
        budget: the bytes that were asked for; None: no budget.
        met: whether the plan is within the budget.
        bound: a lower bound of the live peak of intermediates over all orders and all
            recomputation.
        curve: the programs on the trade-off curve.
        resident_bound: the same lower bound with outputs counted.
    """

    nodes: Count = 0
    flops_increase: float = 0.0
    budget: Count | None = field(default=None, metadata=OPTIONAL)
    met: bool = field(default=True, metadata=OPTIONAL)
    bound: Count | None = field(default=None, metadata=OPTIONAL)
    curve: tuple[CurvePoint, ...] = field(default=(), metadata=OPTIONAL)
    resident_bound: Count | None = field(default=None, metadata=SPARSE)
