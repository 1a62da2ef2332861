"""Recomputation as reported: the nodes that run twice, their cost, and the budget reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.core.results.amounts import Json


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A program on the trade-off curve: peak in bytes, extra work as a share, copies."""

    peak: int
    extra: float
    nodes: int


@dataclass(frozen=True, slots=True)
class Recompute:
    """What runs twice, what that costs, and whether it was enough.

    ``flops_increase`` is a share of the model's modelled work. ``bound`` is what no order
    goes below, whatever runs twice.
    """

    nodes: int = 0
    flops_increase: float = 0.0
    budget: int | None = None
    met: bool = True
    bound: int | None = None
    curve: tuple[CurvePoint, ...] = ()

    def to_json(self) -> Json:
        """Return the contract's block, and what a budget added."""
        return {
            "nodes": self.nodes,
            "flops_increase": self.flops_increase,
            "budget": self.budget,
            "met": self.met,
            "bound": self.bound,
            "curve": [
                {"peak": p.peak, "flops_increase": p.extra, "nodes": p.nodes}
                for p in self.curve
            ],
        }

    @classmethod
    def from_json(cls, data: Json) -> Recompute:
        """Read what `to_json` wrote; the contract's two numbers are enough."""
        points = data.get("curve", ())
        return cls(
            data["nodes"],
            data["flops_increase"],
            data.get("budget"),
            data.get("met", True),
            data.get("bound"),
            tuple(CurvePoint(p["peak"], p["flops_increase"], p["nodes"]) for p in points),
        )
