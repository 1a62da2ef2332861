"""The report of a plan: numbers, refusals and warnings; no drawing.

Every number is defined in `figures.DEFINITIONS`, in the words that renderers print under it.
A number that is not known is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

from memplan_cli.core.binding_options import InputShape  # noqa: TC001 - a type to read by
from memplan_cli.core.deserialization import Check, MisfitError, from_json, one_of
from memplan_cli.core.results.amounts import BoundDim, ExternalWeights, Memory, Profile
from memplan_cli.core.results.caches import Caches
from memplan_cli.core.results.chunks import Chunks
from memplan_cli.core.results.fallbacks import Fallback  # noqa: TC001 - a type to read by
from memplan_cli.core.results.figures import CERTAINTY, OBSERVED
from memplan_cli.core.results.folded import ConstantTensor, Folded
from memplan_cli.core.results.observations import (
    Peaks,
    ProcessBytes,
    RuntimeSettings,
    TimeRatio,
    Together,
    Validation,
)
from memplan_cli.core.results.recomputed import Recompute
from memplan_cli.core.serialization import Form, Key, Keys, Presence, optional, past, sparse
from memplan_cli.errors import PlanError

SCHEMA = "memplan.report/1"

TARGETS = ("portable", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Which model the numbers are about.

    ``inputs`` are those with a dim that has no number, as the model declares them.
    """

    json_keys: ClassVar[Keys] = (
        "path",
        "sha256",
        "nodes",
        "blocks",
        "intermediates",
        *sparse("inputs"),
    )

    path: str
    sha256: str
    nodes: int
    blocks: int
    intermediates: int
    inputs: tuple[InputShape, ...] = ()


class LiveTensor(NamedTuple):
    """A tensor that is live at the peak, and what it holds there."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The step at which most bytes are live, and whose they are, largest first."""

    step: int
    node: str
    tensors: tuple[LiveTensor, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A tensor that was left out or reuses no memory, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Donated:
    """Outputs that reuse the memory of the input they replace, and those that may not."""

    pairs: tuple[tuple[str, str], ...] = ()
    refused: tuple[Refusal, ...] = ()
    bytes: int = 0
    """What the pairs save in ``total``."""


@dataclass(frozen=True, slots=True)
class _Prediction:
    """Predicted peaks as a file has them: what it says of the arena leaves the weights out."""

    json_keys: ClassVar[Keys] = (
        "first_run_peak",
        "steady_peak",
        *optional("held_without_weights", "process"),
        *past("held", "scratch", "weights", "milliseconds"),
    )

    first_run_peak: int | None
    steady_peak: int | None
    held_without_weights: int | None = None
    process: ProcessBytes | None = None


def _predictions(peaks: Mapping[str, Peaks]) -> Mapping[str, _Prediction] | None:
    return _by_side(
        {
            side: _Prediction(each.first_run_peak, each.steady_peak, each.held, each.process)
            for side, each in peaks.items()
        }
    )


def _predicted(found: Mapping[str, _Prediction] | None) -> Mapping[str, Peaks]:
    return {
        side: Peaks(
            each.first_run_peak,
            each.steady_peak,
            each.held_without_weights,
            process=each.process,
        )
        for side, each in (found or {}).items()
    }


def _by_side(peaks: Mapping[str, Peaks | _Prediction]) -> dict[str, Any] | None:
    return {side: peaks[side] for side in ("original", "optimized") if side in peaks} or None


_PREDICTED = Form(Mapping[str, _Prediction] | None, _predictions, _predicted)
_OBSERVED = Form(Mapping[str, Peaks] | None, _by_side, lambda found: found or {})


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """A runtime's side: what it is predicted to need, what it did need, how to set it up."""

    json_keys: ClassVar[Keys] = (
        "name",
        "version",
        "provider",
        Key("predicted", form=_PREDICTED),
        Key("observed", form=_OBSERVED),
        "settings",
        *sparse("processes", "settings_sources", "time"),
    )

    name: str
    version: str
    provider: str
    predicted: Mapping[str, Peaks] = field(default_factory=dict)
    observed: Mapping[str, Peaks] = field(default_factory=dict)
    settings: RuntimeSettings | None = None
    processes: Together | None = None
    settings_sources: Mapping[str, Annotated[str, one_of(OBSERVED)]] = field(
        default_factory=dict
    )
    """The settings, as ``scope.key``, that follow from what a run was seen to do."""
    time: TimeRatio | None = None
    """Where runs were timed in turn."""


_OR_NULL = Form(
    Mapping[str, int] | None, lambda table: table or None, lambda found: found or {}
)
_LEVELS = Check(
    "a table of the levels 0, 1 and 2", lambda table: set(table) == {"0", "1", "2"}
)


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of one plan, in the layout of ``memplan.report/1``."""

    schema: ClassVar[str] = SCHEMA
    json_keys: ClassVar[Keys] = (
        "schema",
        "model",
        "phase",
        *optional("phases", "loss"),
        "level",
        "coverage",
        "partial",
        *optional("bindings"),
        "memory",
        *optional("certainty", "symbolic"),
        Key("original.live_peak", "original_live_peak"),
        Key("original.planned", "original_planned"),
        Key("original.resident", "original_resident", Presence.OPTIONAL),
        "levels",
        *sparse("slot_bound"),
        Key("orders.candidates", "orders", Presence.OPTIONAL),
        Key("orders.chosen", "chosen_order", Presence.OPTIONAL),
        "peak",
        *sparse("foldable", "folded", "external_weights"),
        "recompute",
        *sparse("chunked", "caches"),
        *optional("donated"),
        *sparse("target", "profiles"),
        *optional("training_estimate", form=_OR_NULL),
        "runtime",
        "validation",
        "reuses",
        "unplanned",
        *sparse("fallbacks"),
        "warnings",
    )

    model: ModelFacts
    phase: Annotated[str, one_of("train", "test")]
    level: Annotated[int, one_of(0, 1, 2)]
    coverage: float
    memory: Memory
    original_live_peak: int | None
    original_planned: int | None
    levels: Annotated[Mapping[str, int | None], _LEVELS]
    original_resident: int | None = None
    slot_bound: int | None = None
    """Bytes below which no slots of this level hold the tensors in this order; level 0 or 1."""
    peak: Peak | None = None
    orders: Mapping[str, int] = field(default_factory=dict)
    """Live peak of each order that was tried, by the name of what made it."""
    chosen_order: str = "file"
    target: Annotated[str, one_of(*TARGETS)] = "portable"
    """Whose graph the numbers are of: the file's, or what the runtime makes of it."""
    certainty: Mapping[str, Annotated[str, one_of(*CERTAINTY)]] = field(default_factory=dict)
    """How sure each number of ``memory`` is, in a word of `figures.CERTAINTY`."""
    symbolic: Mapping[str, str] = field(default_factory=dict)
    """Expressions, in the model's symbols, for the numbers that are None for that reason."""
    phases: Mapping[str, int] = field(default_factory=dict)
    """Number of nodes in each phase: forward, backward, update."""
    loss: str | None = None
    training_estimate: Mapping[str, int] = field(default_factory=dict)
    """The dry run of a forward model, on request: ``raw`` and ``optimized`` bytes of the
    intermediates of its training step, without reuse and as planned."""
    foldable: tuple[ConstantTensor, ...] = ()
    """The constant expressions that are live at the peak, largest first."""
    folded: Folded = field(default_factory=Folded)
    external_weights: ExternalWeights = field(default_factory=ExternalWeights)
    recompute: Recompute = field(default_factory=Recompute)
    chunked: Chunks = field(default_factory=Chunks)
    caches: Caches = field(default_factory=Caches)
    """Caches that are updated in place; none where the capacity is 0."""
    donated: Donated = field(default_factory=Donated)
    bindings: Mapping[str, BoundDim] = field(default_factory=dict)
    """The numbers that dims of the inputs have, and who said them."""
    profiles: tuple[Profile, ...] = ()
    """What each binding needs alone, where the plan holds for several."""
    runtime: RuntimeFacts | None = None
    validation: Validation | None = None
    reuses: int = 0
    unplanned: tuple[Refusal, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    """What was done otherwise than asked for, and why: nothing falls back in silence."""
    warnings: tuple[str, ...] = ()

    @property
    def budget_met(self) -> bool:
        """Whether the plan fits the budget, or none was asked for."""
        return self.recompute.met and self.chunked.met

    @property
    def partial(self) -> bool:
        """Whether some sizes are not known, so that totals would say too little."""
        return self.coverage < 1.0

    @property
    def saved(self) -> float | None:
        """Share of the naive bytes that the plan saves."""
        if not self.memory.naive or self.memory.planned is None:
            return None
        return 1 - self.memory.planned / self.memory.naive


def read_report(data: object) -> Report:
    """Read a report's JSON.

    Raises:
        PlanError: something in it is not as `Report` declares it.
    """
    try:
        return from_json(Report, data, "the report")
    except MisfitError as error:
        raise PlanError(
            str(error), hint="make it again with this version of memplan"
        ) from error
