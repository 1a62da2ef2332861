"""Regions in pieces as reported: each with its axis, its pieces, what it saves and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.placements import Natural  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import Keys, optional, sparse

_MOST_NAMES = 4
"""Tensors of a bound that are named in words."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A range of an axis of a weight, cut once in the file: ``start <= at < stop``."""

    weight: str
    axis: int
    start: int
    stop: int


NewWeight = tuple[int, ...] | Cut
"""What a constant of pieces is: whole numbers, or a part of a weight."""


@dataclass(frozen=True, slots=True)
class ChunkedRegion:
    """Nodes that are computed piece by piece together.

    ``tensor`` is the one that the region was grown from, sliced along ``axis``; ``before`` is
    the fullest step when it was chosen, ``after`` the region's own fullest step since.
    ``flops_increase`` is the added work, as a share of the model's. Where the region is a loop
    whose pieces the graph sizes by each request, ``trips`` is their number as an expression,
    and ``pieces`` the most that it gets within the bounds.
    """

    json_keys: ClassVar[Keys] = (
        "tensor",
        "axis",
        "pieces",
        "nodes",
        "before",
        "after",
        "flops_increase",
        *sparse("trips"),
    )

    tensor: str
    axis: Natural
    pieces: Natural
    nodes: Natural
    before: Natural
    after: Natural
    flops_increase: float
    trips: str = ""


class WholeTensor(NamedTuple):
    """A tensor that has to be there whole, and its bytes."""

    tensor: str
    bytes: Natural


@dataclass(frozen=True, slots=True)
class Chunks:
    """What is computed in pieces, and whether that was enough for the budget.

    ``bound`` is what no choice of regions gets below: the bytes of ``bound_tensors``, less what
    share memory, which ``bound_node`` needs whole; without a node, what the graph gives.
    """

    json_keys: ClassVar[Keys] = (
        "regions",
        "nodes",
        "flops_increase",
        *optional("budget", "met", "bound", "bound_node", "bound_tensors"),
    )

    regions: tuple[ChunkedRegion, ...] = ()
    nodes: int = 0
    """Nodes of the written graph more than of the file's; loops may leave fewer."""
    flops_increase: float = 0.0
    budget: int | None = None
    met: bool = True
    bound: int | None = None
    bound_node: str = ""
    bound_tensors: tuple[WholeTensor, ...] = ()

    @property
    def needs(self) -> str:
        """What makes the bound, in words; nothing where nobody knows one."""
        if not self.bound:
            return ""
        most = self.bound_tensors[:_MOST_NAMES]
        names = ", ".join(f"{each.tensor} {format_size(each.bytes)}" for each in most)
        left = len(self.bound_tensors) - len(most)
        rest = f" and {left} more" if left else ""
        told = f" ({names}{rest})" if names else ""
        if not self.bound_node:
            return f"the outputs need {format_size(self.bound)} whole{told}"
        return f"{self.bound_node} needs {format_size(self.bound)} whole{told}"
