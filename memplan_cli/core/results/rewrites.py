"""What the rewrites of a model did, as reported: recomputation, folding, chunking, caches in place.

Also the fallbacks: what was done instead of what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from memplan_cli.core.json_types import (
    Count,
    Natural,
    one_of,
)
from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import OPTIONAL, SPARSE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


FORMS = ("concat", "cast", "operator", "shared", "constant")
"""How a graph extends a cache: a Concat; a Concat between Casts; an operator with past and
present; an operator that writes into its past itself; not at all."""


class CacheBuffer(NamedTuple):
    """A cache input and the output that replaces it, in one buffer.

    Attributes:
        input: the input.
        output: the output.
        axis: the axis that grows, ``capacity`` long in the buffer; 0 for a constant cache.
        form: how the graph extends the cache.
    """

    input: str
    output: str
    axis: Natural
    form: Annotated[str, one_of(*FORMS)]


class KeptCache(NamedTuple):
    """A cache that is not updated in place, and the reason."""

    input: str
    output: str
    reason: str


@dataclass(frozen=True, slots=True)
class Caches:
    """Caches that a model updates in place, and how such a model is run.

    Attributes:
        capacity: the number of entries that each buffer holds; 0: no cache is in place.
        position: the input with the number of valid entries.
        length: the output with the number of valid entries after the step.
        buffers: the caches.
        tokens: inputs and their axes whose length is the number of new entries, if known.
        kept: caches that are not updated in place.
        bytes: the size of all buffers, each once, if known.
        before: bytes of inputs, outputs and plan of the original's step that fills the
            capacity.
        planned_at: the position for which the step was planned.
        steps: the number of new entries in each step whose outputs were compared with the
            original's.
    """

    capacity: Natural = 0
    position: str = ""
    length: str = ""
    buffers: tuple[CacheBuffer, ...] = ()
    tokens: tuple[tuple[str, Natural], ...] = field(default=(), metadata=SPARSE)
    kept: tuple[KeptCache, ...] = field(default=(), metadata=SPARSE)
    bytes: Natural = field(default=0, metadata=SPARSE)
    before: tuple[Natural, Natural, Natural] | None = field(default=None, metadata=SPARSE)
    planned_at: Natural = field(default=0, metadata=SPARSE)
    steps: tuple[Natural, ...] = field(default=(), metadata=SPARSE)

    @property
    def growing(self) -> tuple[CacheBuffer, ...]:
        """The buffers that a step writes."""
        return tuple(each for each in self.buffers if each.form != "constant")

    @property
    def donated(self) -> tuple[tuple[str, str], ...]:
        """``(input, output)`` of the buffers that a TensorScatter writes."""
        written = ("concat", "cast", "operator")
        return tuple((b.input, b.output) for b in self.buffers if b.form in written)


STEP_NUMBERS: Mapping[str, Callable[[int, int], int]] = {
    "new": lambda _, new: new,
    "total": lambda past, new: past + new,
    "past": lambda past, _: past,
    "one": lambda *_: 1,
    "five": lambda *_: 5,
}
"""The rule of a dimension -> its number in a step with so many valid and new entries."""


def step_dims(rules: Mapping[str, str], past: int, new: int) -> dict[str, int]:
    """Return the number of each dimension by its rule, a key of `STEP_NUMBERS`."""
    return {name: STEP_NUMBERS[rule](past, new) for name, rule in rules.items()}


ORDER_KEPT = "order-kept"
SLOTS_KEPT = "slots-kept"
PACKING_TIMED_OUT = "packing-timed-out"
CANDIDATE_DIFFERED = "candidate-differed"
ALL_SLOWER = "all-slower"
WEIGHTS_UNPACKED = "weights-unpacked"

CODES: Mapping[str, str] = {
    ORDER_KEPT: "another order has a lower live peak, but its allocation takes more",
    SLOTS_KEPT: "level 2 has whole slots, as level 1, where offsets would take more",
    PACKING_TIMED_OUT: "the time limit ended the search for a layout above its bound",
    CANDIDATE_DIFFERED: "a graph of the target gave other outputs and was left out",
    ALL_SLOWER: "every way to run the file takes longer than is allowed; the fastest is given",
    WEIGHTS_UNPACKED: "the runtime failed on weights packed into the file, which has them plain",
}
"""Every code and its meaning."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """One thing that was not done as asked.

    Attributes:
        code: the kind, for programs.
        what: what was done instead.
        why: the reason.
    """

    code: Annotated[str, one_of(*CODES)]
    what: str
    why: str

    def __str__(self) -> str:
        """Return the fallback on one line."""
        return f"{self.what}: {self.why} ({self.code})"
