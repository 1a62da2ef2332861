"""Chunking as reported: the regions computed in pieces, and what they save and cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from memplan_cli.core.json_types import Natural  # noqa: TC001 - a type to read by
from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import OPTIONAL

_MOST_NAMES = 4
"""The number of tensors of a bound that are named in a sentence."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice of a weight, stored in the file: ``[start, stop)`` along an axis."""

    weight: str
    axis: int
    start: int
    stop: int


NewWeight = tuple[int, ...] | Cut
"""The value of a new constant: whole numbers, or a slice of a weight."""


@dataclass(frozen=True, slots=True)
class ChunkedRegion:
    """Nodes that are computed together, piece by piece.

    Attributes:
        tensor: the tensor that the region was grown from.
        axis: the axis along which it is sliced.
        pieces: the number of pieces.
        nodes: the number of nodes in the region.
        before: the live peak in bytes before the region was chunked.
        after: the live peak inside the region since.
        flops_increase: the added work, as a share of the model's.
    """

    past_keys: ClassVar[tuple[str, ...]] = ("trips",)

    tensor: str
    axis: Natural
    pieces: Natural
    nodes: Natural
    before: Natural
    after: Natural
    flops_increase: float


class WholeTensor(NamedTuple):
    """A tensor that is needed whole, and its bytes."""

    tensor: str
    bytes: Natural


@dataclass(frozen=True, slots=True)
class Chunks:
    """The regions that are computed in pieces, and whether they met the budget.

    Attributes:
        regions: the regions.
        nodes: nodes of the written graph beyond those of the file.
        flops_increase: the added work, as a share of the model's.
        budget: the bytes that were asked for; None: no budget.
        met: whether the plan is within the budget.
        bound: a lower bound of the peak for every choice of regions.
        bound_node: the node that needs ``bound_tensors`` whole; empty: the graph's outputs.
        bound_tensors: the tensors whose bytes, shared ones once, make the bound.
    """

    regions: tuple[ChunkedRegion, ...] = ()
    nodes: int = 0
    flops_increase: float = 0.0
    budget: int | None = field(default=None, metadata=OPTIONAL)
    met: bool = field(default=True, metadata=OPTIONAL)
    bound: int | None = field(default=None, metadata=OPTIONAL)
    bound_node: str = field(default="", metadata=OPTIONAL)
    bound_tensors: tuple[WholeTensor, ...] = field(default=(), metadata=OPTIONAL)

    @property
    def needs(self) -> str:
        """Explain which operator sets the lower bound; empty if there is none."""
        if not self.bound:
            return ""
        first = self.bound_tensors[:_MOST_NAMES]
        names = ", ".join(f"{tensor.tensor} {format_size(tensor.bytes)}" for tensor in first)
        remaining = len(self.bound_tensors) - len(first)
        rest = f" and {remaining} more" if remaining else ""
        tensors = f" ({names}{rest})" if names else ""
        if not self.bound_node:
            return f"the outputs need {format_size(self.bound)} whole{tensors}"
        return f"{self.bound_node} needs {format_size(self.bound)} whole{tensors}"
