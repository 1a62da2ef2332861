"""The results of rewrites as reported: recomputation, folding, chunking, in-place caches, fallbacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

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
    """One program on the trade-off curve of live peak and added work.

    Attributes:
        peak: its live peak in bytes.
        flops_increase: the added operations, as a share of the model's.
        nodes: the number of nodes that run twice.
    """

    peak: Count
    flops_increase: float
    nodes: Count


@dataclass(frozen=True, slots=True)
class RecomputeSummary:
    """The result of recomputation: its cost, and whether it meets the budget.

    Attributes:
        nodes: the number of nodes that run twice.
        flops_increase: the added operations, as a share of the model's.
        budget: the requested bytes; None: no budget.
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
        left: the reason why it cannot be folded; empty if it can.
    """

    name: str
    op: str
    bytes: Natural
    left: str = ""


class UnfoldedTensor(NamedTuple):
    """A constant tensor that is still computed by a node.

    Attributes:
        name: the tensor.
        op: the operator of the node.
        reason: the reason why it was not folded.
    """

    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class FoldingSummary:
    """The result of constant folding.

    Attributes:
        tensors: the tensors that became initializers.
        left: the constant tensors that did not.
        added: bytes of the new initializers.
        dropped: bytes of initializers that are no longer used.
    """

    tensors: tuple[ConstantTensor, ...] = ()
    left: tuple[UnfoldedTensor, ...] = ()
    added: Natural = 0
    dropped: Natural = 0


_MAX_NAMES = 4
"""The number of tensors that a sentence about a bound names."""


@dataclass(frozen=True, slots=True)
class ChunkedRegion:
    """A region of nodes that is computed in chunks along an axis.

    Attributes:
        tensor: the tensor from which the region was grown.
        axis: the axis along which it is sliced.
        pieces: the number of chunks.
        nodes: the number of nodes in the region.
        before: the live peak in bytes before the region was chunked.
        after: the live peak inside the chunked region.
        flops_increase: the added operations, as a share of the model's.
    """

    tensor: str
    axis: Natural
    pieces: Natural
    nodes: Natural
    before: Natural
    after: Natural
    flops_increase: float


class WholeTensor(NamedTuple):
    """A tensor that cannot be chunked, and its bytes."""

    tensor: str
    bytes: Natural


@dataclass(frozen=True, slots=True)
class ChunkPoint:
    """One program on the curve of live peak and time that a search for chunks found.

    Attributes:
        peak: its live peak in bytes, outputs included, before its nodes are ordered.
        time: the predicted time of a run, divided by that of the model without chunks.
        nodes: the number of nodes that chunking adds.
        taken: whether it is the program of the plan.
    """

    peak: Natural
    time: float
    nodes: int
    taken: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ChunkingSummary:
    """The result of chunking: its regions, its cost, and whether it meets the budget.

    Attributes:
        regions: the regions that are computed in chunks.
        nodes: the number of nodes that chunking added.
        flops_increase: the added operations, as a share of the model's.
        budget: the requested bytes; None: no budget.
        met: whether the plan is within the budget.
        bound: a lower bound of the live peak for every choice of regions.
        bound_node: the node that reads or writes ``bound_tensors`` whole; empty: they are outputs.
        bound_tensors: the tensors whose bytes add up to the bound; aliases count once. ``slices of x`` are
        those of a tensor x beside it, while a Concat joins them.
        curve: the programs found that no other one beats in both memory and time, the fastest first.
        ended_early: whether a limit ended the search before nothing more was gained.
    """

    regions: tuple[ChunkedRegion, ...] = ()
    nodes: int = 0
    flops_increase: float = 0.0
    budget: int | None = field(default=None, metadata=OPTIONAL)
    met: bool = field(default=True, metadata=OPTIONAL)
    bound: int | None = field(default=None, metadata=OPTIONAL)
    bound_node: str = field(default="", metadata=OPTIONAL)
    bound_tensors: tuple[WholeTensor, ...] = field(default=(), metadata=OPTIONAL)
    curve: tuple[ChunkPoint, ...] = field(default=(), metadata=SPARSE)
    ended_early: bool = field(default=False, metadata=SPARSE)

    def without_regions(self) -> Self:
        """Return the result if the program without chunks is planned, the first one of the curve."""
        curve = tuple(
            replace(point, taken=index == 0) for index, point in enumerate(self.curve)
        )
        return replace(self, regions=(), nodes=0, flops_increase=0.0, curve=curve)

    @property
    def bound_text(self) -> str:
        """The lower bound and what sets it, as ``2 MiB for MatMul_3 (x 2 MiB)``; empty: no bound."""
        if not self.bound:
            return ""
        named = self.bound_tensors[:_MAX_NAMES]
        names = ", ".join(f"{tensor.tensor} {format_size(tensor.bytes)}" for tensor in named)
        remaining = len(self.bound_tensors) - len(named)
        rest = f" and {remaining} more" if remaining else ""
        tensors = f" ({names}{rest})" if names else ""
        return f"{format_size(self.bound)} for {self.bound_node or 'the outputs'}{tensors}"


FORMS = ("concat", "cast", "operator", "shared", "constant")
"""How a graph extends a cache.

``concat``: a Concat; ``cast``: a Concat between Casts; ``operator``: an operator with inputs for the
past and outputs for the present; ``shared``: an operator that writes into its input for the past;
``constant``: not at all.
"""


class CacheBuffer(NamedTuple):
    """A cache input and the output that extends it, which share one buffer.

    Attributes:
        input: the graph input.
        output: the graph output.
        axis: the axis that grows, of length ``capacity`` in the buffer; 0 for a constant cache.
        form: how the graph extends the cache, see `FORMS`.
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
class CacheSummary:
    """The result of updating caches in place, and how the written model is run.

    Attributes:
        capacity: the number of entries that each buffer can hold; 0: no cache is in place.
        position: the graph input with the number of valid entries before the step.
        length: the graph output with the number of valid entries after the step.
        buffers: the caches that are updated in place.
        tokens: ``(input, axis)`` pairs whose length is the number of new entries, if known.
        kept: caches that are not updated in place.
        bytes: the size of all buffers, each once, if known.
        before: bytes of the inputs, outputs and plan of the original for the step that fills the
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
        return tuple(buffer for buffer in self.buffers if buffer.form != "constant")

    @property
    def donated(self) -> tuple[tuple[str, str], ...]:
        """``(input, output)`` of the buffers that a TensorScatter of the written model writes."""
        forms = ("concat", "cast", "operator")
        return tuple(
            (buffer.input, buffer.output) for buffer in self.buffers if buffer.form in forms
        )


STEP_NUMBERS: Mapping[str, Callable[[int, int], int]] = {
    "new": lambda _, new: new,
    "total": lambda past, new: past + new,
    "past": lambda past, _: past,
    "one": lambda *_: 1,
    "five": lambda *_: 5,
}
"""The rule of a dimension -> its number in a step, from ``(past entries, new entries)``.

``one`` and ``five`` are for dimensions that depend on neither, such as that of a constant cache.
"""


def step_dims(rules: Mapping[str, str], past: int, new: int) -> dict[str, int]:
    """Return the number of each dimension in one run of a model with caches.

    With ``{"seq": "new", "length": "total"}``, 7 past and 3 new entries, ``{"seq": 3, "length": 10}``.

    Args:
        rules: dimension -> its rule, a key of `STEP_NUMBERS`.
        past: the number of valid entries of each cache before the run.
        new: the number of entries that the run adds to each.
    """
    return {name: STEP_NUMBERS[rule](past, new) for name, rule in rules.items()}


ORDER_KEPT = "order-kept"
SLOTS_KEPT = "slots-kept"
PACKING_TIMED_OUT = "packing-timed-out"
CANDIDATE_DIFFERED = "candidate-differed"
TARGET_LEFT_OUT = "target-left-out"
ALL_SLOWER = "all-slower"
WEIGHTS_UNPACKED = "weights-unpacked"

CODES: Mapping[str, str] = {
    ORDER_KEPT: "another order has a smaller live peak, but a larger plan",
    SLOTS_KEPT: "level 2 uses the slots of level 1, because offsets would need more",
    PACKING_TIMED_OUT: "the time limit ended the search for a layout before it reached the lower bound",
    CANDIDATE_DIFFERED: "a rewritten graph had other outputs than the original and was rejected",
    TARGET_LEFT_OUT: "the file is not optimized for the target, because such graphs failed the comparison",
    ALL_SLOWER: "with all settings, a run takes longer than allowed; the fastest settings are used",
    WEIGHTS_UNPACKED: "the runtime failed with packed weights, so the file has them unpacked",
}
"""Every code of a fallback and its meaning."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """One thing that was done otherwise than requested.

    Attributes:
        code: a key of `CODES`, for programs.
        what: what was done instead.
        why: the reason.
    """

    code: Annotated[str, one_of(*CODES)]
    what: str
    why: str

    def __str__(self) -> str:
        """Return the fallback on one line."""
        return f"{self.what}: {self.why} ({self.code})"
