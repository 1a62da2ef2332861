"""The report of a plan: numbers, unplanned tensors and warnings, independent of their presentation.

`memory.DEFINITIONS` defines the numbers. An unknown number is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

from memplan_cli.core.binding_options import InputShape  # noqa: TC001 - a type to read by
from memplan_cli.core.json_types import Condition, Count, Natural, Share, one_of
from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.results.memory import (
    CERTAINTY,
    BoundDim,
    ExternalWeights,
    Memory,
    Profile,
)
from memplan_cli.core.results.observations import (
    IdleArena,
    Peaks,
    ProcessBytes,
    RuntimeSettings,
    TimeRatio,
    Validation,
)
from memplan_cli.core.results.rewrites import (
    CacheSummary,
    ChunkingSummary,
    ConstantTensor,
    Fallback,
    FoldingSummary,
    RecomputeSummary,
)
from memplan_cli.core.serialization import OPTIONAL, SPARSE, Keys, json_form

SCHEMA = "memplan.report/1"

MODEL_DOES_NOT = "the model does not"
"""Begins the warning that no run could observe sizes: the model does not load, or does not run."""

RAN_AGAIN, READ_BY_SHAPE = "ran again", "are read by a Shape node, which frees them"
"""Parts of the warnings that only tell how memplan arrived at its result."""


def is_debug_remark(warning: str) -> bool:
    """Return whether a warning only tells how memplan arrived at its result, which helps to debug it."""
    return RAN_AGAIN in warning or READ_BY_SHAPE in warning


TARGETS = ("portable", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """The model that the numbers are about.

    Attributes:
        path: its file.
        sha256: the digest of the file.
        nodes: the number of nodes in all blocks.
        blocks: the number of blocks.
        intermediates: the number of intermediates.
        inputs: the inputs with a symbolic dimension, as the model declares them.
    """

    path: str
    sha256: str
    nodes: Count
    blocks: Count
    intermediates: Count
    inputs: tuple[InputShape, ...] = field(default=(), metadata=SPARSE)


class LiveTensor(NamedTuple):
    """A tensor that is live at the peak, and its bytes."""

    name: str
    bytes: Count


@dataclass(frozen=True, slots=True)
class Peak:
    """The step at which most bytes are live.

    Attributes:
        step: the step.
        node: the node that runs at it.
        tensors: the live tensors, largest first.
    """

    step: Count
    node: str
    tensors: tuple[LiveTensor, ...]


@dataclass(frozen=True, slots=True)
class FileBytes:
    """The bytes on disk of the original and of the written model, with their weight files."""

    original: Natural = 0
    written: Natural = 0


class InterfaceTensor(NamedTuple):
    """A tensor that is not planned: an input, an output or a weight of the model.

    Attributes:
        name: its name.
        kind: ``input``, ``output`` or ``weight``.
        bytes: its size, with the numbers that dims are bound to.
    """

    name: str
    kind: Annotated[str, one_of("input", "output", "weight")]
    bytes: Count


@dataclass(frozen=True, slots=True)
class Refusal:
    """A tensor that is not planned or not donated, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class DonationSummary:
    """Outputs that reuse the memory of the input that they replace.

    Attributes:
        pairs: the inputs and their outputs.
        refused: requested pairs that are not safe.
        bytes: the bytes that the pairs save in ``total``.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    refused: tuple[Refusal, ...] = ()
    bytes: Count = 0


@dataclass(frozen=True, slots=True)
class PredictedPeaks:
    """Predicted bytes of a run, as they are written to files.

    Attributes:
        first_run_peak: the most bytes of intermediates and outputs live in the first run.
        steady_peak: the same from the second run on.
        held_without_weights: bytes reserved by the arena, without the weights in it.
        process: bytes of the whole process.
    """

    first_run_peak: Count | None
    steady_peak: Count | None
    held_without_weights: Count | None = field(default=None, metadata=OPTIONAL)
    process: ProcessBytes | None = field(default=None, metadata=OPTIONAL)


_SIDES = ("original", "optimized")


def _sorted_or_null(peaks: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a mapping from sides in the order of `_SIDES`; None if it is empty."""
    return {side: peaks[side] for side in _SIDES if side in peaks} or None


def _to_predicted(peaks: Mapping[str, Peaks]) -> Mapping[str, PredictedPeaks] | None:
    """Return the predicted bytes of each side as they are written; None if there are none.

    A side is ``original`` or ``optimized``: the model whose runs are predicted. A prediction
    counts no weights in ``held``, so files call it ``held_without_weights``.
    """
    return _sorted_or_null(
        {
            side: PredictedPeaks(
                first_run_peak=side_peaks.first_run_peak,
                steady_peak=side_peaks.steady_peak,
                held_without_weights=side_peaks.held,
                process=side_peaks.process,
            )
            for side, side_peaks in peaks.items()
        }
    )


def _from_predicted(table: Mapping[str, PredictedPeaks] | None) -> Mapping[str, Peaks]:
    """Return the `Peaks` of each side from the form in which they are written to files."""
    return {
        side: Peaks(
            first_run_peak=written.first_run_peak,
            steady_peak=written.steady_peak,
            held=written.held_without_weights,
            process=written.process,
        )
        for side, written in (table or {}).items()
    }


_PREDICTED = json_form(
    type_hint=Mapping[str, PredictedPeaks] | None, write=_to_predicted, read=_from_predicted
)
_OBSERVED = json_form(
    type_hint=Mapping[str, Peaks] | None, write=_sorted_or_null, read=lambda table: table or {}
)
_EMPTY_AS_NULL = json_form(
    type_hint=Mapping[str, int] | None,
    write=lambda table: table or None,
    read=lambda table: table or {},
)


ALL_SIZES = "all sizes within the bounds"
ONE_SIZE = "one size"


@dataclass(frozen=True, slots=True)
class RuntimeSummary:
    """The bytes that a runtime needs for the original and the optimized model.

    Attributes:
        name: the name of the runtime.
        version: its version.
        provider: the runtime's name of the execution provider.
        predicted: predicted bytes by side: ``original``, ``optimized``.
        observed: measured bytes by side.
        settings: the options of the runtime for the optimized model.
        settings_scope: if dims have bounds: whether the settings are for all sizes within them.
        time: the time ratio of both models, if they were run alternately.
        idle: what the arena does between runs; None if only one way was measured.
    """

    name: str
    version: str
    provider: str
    predicted: Mapping[str, Peaks] = field(default_factory=dict, metadata=_PREDICTED)
    observed: Mapping[str, Peaks] = field(default_factory=dict, metadata=_OBSERVED)
    settings: RuntimeSettings | None = None
    time: TimeRatio | None = field(default=None, metadata=SPARSE)
    idle: IdleArena | None = field(default=None, metadata=SPARSE)
    settings_scope: Annotated[str, one_of("", ALL_SIZES, ONE_SIZE)] = field(
        default="", metadata=SPARSE
    )


_LEVELS = ("0", "1", "2")
_Levels = Annotated[
    Mapping[str, Count | None],
    Condition(
        "a table of the levels 0, 1 and 2",
        lambda table: set(table) == set(_LEVELS),
        {"propertyNames": {"enum": list(_LEVELS)}, "required": list(_LEVELS)},
    ),
]


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of one plan, in the layout of ``memplan.report/1``.

    Attributes:
        model: the model.
        phase: training if the model has a backward part, else inference (``test``).
        level: how memory is reused: 0 and 1 whole slots, 2 byte offsets.
        coverage: the share of intermediates whose size is known.
        memory: the bytes of the plan.
        original_live_peak: the live peak of the file's own order.
        original_planned: the bytes planned for the file's own order.
        original_resident: the live peak of the file's own order, with outputs.
        levels: the bytes planned at each level.
        slot_bound: a lower bound of the bytes of slots in this order; at levels 0 and 1.
        orders: the live peak of each order that was tried, by the name of its algorithm.
        chosen_order: the name of the chosen order.
        peak: the step at which most bytes are live.
        interface: the inputs and outputs of known size, and the weights that are not small.
        target: the planned graph: ``portable``, that of the file; otherwise the graph as the runtime
            optimizes it for this provider.
        certainty: the certainty of each number of ``memory``: a key of `memory.CERTAINTY`.
        symbolic: expressions for numbers that are null because a size is symbolic.
        phases: the number of nodes in each phase: forward, backward, update.
        loss: the tensor of the loss.
        training_estimate: estimated bytes of the intermediates of a training step that is made
            from this forward model: ``raw`` without reuse, ``optimized`` as planned.
        foldable: constant expressions that are live at the peak, largest first.
        folded: the result of constant folding.
        external_weights: weights that were moved out of the model file.
        files: the size of the original and of the written model.
        recompute: nodes that run twice.
        chunked: regions that are computed in chunks.
        caches: caches that are updated in place.
        donated: outputs that reuse the memory of an input.
        bindings: the numbers that dimensions of the inputs are bound to.
        profiles: the bytes for each binding alone, if the plan is valid for several.
        runtime: what the runtime needs.
        validation: the comparison of the written model with the original.
        reuses: how many tensors reuse the memory of another one.
        unplanned: tensors that are not planned.
        fallbacks: what was done otherwise than requested.
        warnings: remarks for the user.
    """

    schema: ClassVar[str] = SCHEMA
    json_keys: ClassVar[Keys] = (
        "model",
        "phase",
        "phases",
        "loss",
        "level",
        "coverage",
        "partial",
        "bindings",
        "memory",
        "certainty",
        "symbolic",
        ("original.live_peak", "original_live_peak"),
        ("original.planned", "original_planned"),
        ("original.resident", "original_resident"),
        "levels",
        "slot_bound",
        ("orders.candidates", "orders"),
        ("orders.chosen", "chosen_order"),
        "peak",
        "interface",
        "foldable",
        "folded",
        "external_weights",
        "files",
        "recompute",
        "chunked",
        "caches",
        "donated",
        "target",
        "profiles",
        "training_estimate",
        "runtime",
        "validation",
        "reuses",
        "unplanned",
        "fallbacks",
        "warnings",
    )

    model: ModelSummary
    phase: Annotated[str, one_of("train", "test")]
    level: Annotated[int, one_of(0, 1, 2)]
    coverage: Share
    memory: Memory
    original_live_peak: Count | None
    original_planned: Count | None
    levels: _Levels
    original_resident: Count | None = field(default=None, metadata=OPTIONAL)
    slot_bound: Count | None = field(default=None, metadata=SPARSE)
    peak: Peak | None = None
    interface: tuple[InterfaceTensor, ...] = field(default=(), metadata=SPARSE)
    orders: Mapping[str, int] = field(default_factory=dict, metadata=OPTIONAL)
    chosen_order: str = field(default="file", metadata=OPTIONAL)
    target: Annotated[str, one_of(*TARGETS)] = field(default="portable", metadata=SPARSE)
    certainty: Mapping[str, Annotated[str, one_of(*CERTAINTY)]] = field(
        default_factory=dict, metadata=OPTIONAL
    )
    symbolic: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    phases: Mapping[str, int] = field(default_factory=dict, metadata=OPTIONAL)
    loss: str | None = field(default=None, metadata=OPTIONAL)
    training_estimate: Mapping[str, int] = field(
        default_factory=dict, metadata={**OPTIONAL, **_EMPTY_AS_NULL}
    )
    foldable: tuple[ConstantTensor, ...] = field(default=(), metadata=SPARSE)
    folded: FoldingSummary = field(default_factory=FoldingSummary, metadata=SPARSE)
    external_weights: ExternalWeights = field(default_factory=ExternalWeights, metadata=SPARSE)
    files: FileBytes = field(default_factory=FileBytes, metadata=SPARSE)
    recompute: RecomputeSummary = field(default_factory=RecomputeSummary)
    chunked: ChunkingSummary = field(default_factory=ChunkingSummary, metadata=SPARSE)
    caches: CacheSummary = field(default_factory=CacheSummary, metadata=SPARSE)
    donated: DonationSummary = field(default_factory=DonationSummary, metadata=OPTIONAL)
    bindings: Mapping[str, BoundDim] = field(default_factory=dict, metadata=OPTIONAL)
    profiles: tuple[Profile, ...] = field(default=(), metadata=SPARSE)
    runtime: RuntimeSummary | None = None
    validation: Validation | None = None
    reuses: Count = 0
    unplanned: tuple[Refusal, ...] = ()
    fallbacks: tuple[Fallback, ...] = field(default=(), metadata=SPARSE)
    warnings: tuple[str, ...] = ()

    __repr__ = one_line_repr

    @property
    def budget_met(self) -> bool:
        """Whether the plan fits the requested budgets, if any."""
        return self.recompute.met and self.chunked.met

    @property
    def partial(self) -> bool:
        """Whether some sizes are unknown, so that totals are too small."""
        return self.coverage < 1.0

    @property
    def run_failure(self) -> str:
        """The warning that the model does not load or run, so that sizes are unknown; else empty."""
        return next((text for text in self.warnings if text.startswith(MODEL_DOES_NOT)), "")

    @property
    def saved(self) -> float | None:
        """The saved share of the naive bytes; None if it is undefined."""
        if not self.memory.naive or self.memory.planned is None:
            return None
        return 1 - self.memory.planned / self.memory.naive


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict on a written model, and its memory if that was measured."""

    validation: Validation
    runtime: RuntimeSummary | None = None

    def __repr__(self) -> str:
        """Return one line with the verdict and where it was found."""
        return f"<Proof: {self.validation.status} on {self.validation.provider}>"

    @property
    def passed(self) -> bool:
        """Whether all requested checks passed."""
        return self.validation.passed
