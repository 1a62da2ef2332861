"""Regions in pieces as reported: each with its axis, its pieces, what it saves and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from memplan_cli.core.results.placements import Natural  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import Keys, optional


class ChunkedRegion(NamedTuple):
    """Nodes that are computed piece by piece together.

    ``tensor`` is the one that the region was grown from, sliced along ``axis``; ``before`` is
    the fullest step when it was chosen, ``after`` the region's own fullest step since.
    ``flops_increase`` is the added work, as a share of the model's.
    """

    tensor: str
    axis: Natural
    pieces: Natural
    nodes: Natural
    before: Natural
    after: Natural
    flops_increase: float


@dataclass(frozen=True, slots=True)
class Chunks:
    """What is computed in pieces, and whether that was enough for the budget.

    ``bound`` is what no choice of regions gets below: what ``bound_node`` needs whole.
    """

    json_keys: ClassVar[Keys] = (
        "regions",
        "nodes",
        "flops_increase",
        *optional("budget", "met", "bound", "bound_node"),
    )

    regions: tuple[ChunkedRegion, ...] = ()
    nodes: Natural = 0
    """Nodes of the written graph more than of the file's."""
    flops_increase: float = 0.0
    budget: int | None = None
    met: bool = True
    bound: int | None = None
    bound_node: str = ""
