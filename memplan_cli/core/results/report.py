"""Reports on a plan as data: totals, refusals and warnings; no drawing.

Every number is defined in `figures.DEFINITIONS`, in the words that renderers print under it.
A number that is not known is None, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.amounts import Memory, Profile
from memplan_cli.core.results.figures import CERTAINTY
from memplan_cli.core.results.observations import Peaks, RuntimeSettings, Validation
from memplan_cli.core.results.recomputed import Recompute
from memplan_cli.core.serialization import misfit
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA = "memplan.report/1"

TARGETS = ("portable", "cpu", "cuda")

Json = dict[str, Any]
"""JSON's edge: what the contract lays out, as dictionaries."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Which model the numbers are about."""

    path: str
    sha256: str
    nodes: int
    blocks: int
    intermediates: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The step at which most bytes are live, and whose they are, largest first."""

    step: int
    node: str
    tensors: tuple[tuple[str, int], ...]


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

    def to_json(self) -> Json:
        """Return pairs and refusals by name."""
        return {
            "pairs": [list(pair) for pair in self.pairs],
            "refused": [{"name": r.name, "reason": r.reason} for r in self.refused],
            "bytes": self.bytes,
        }

    @classmethod
    def from_json(cls, data: Json) -> Donated:
        """Read what `to_json` wrote."""
        return cls(
            tuple((pair[0], pair[1]) for pair in data["pairs"]),
            tuple(Refusal(r["name"], r["reason"]) for r in data["refused"]),
            data["bytes"],
        )


def _predicted_json(peaks: Peaks) -> Json:
    """Return a prediction; what it says of the arena leaves the weights out."""
    return {
        "first_run_peak": peaks.first_run_peak,
        "steady_peak": peaks.steady_peak,
        "held_without_weights": peaks.held,
    }


def _predicted_from(data: Json) -> Peaks:
    return Peaks(data["first_run_peak"], data["steady_peak"], data.get("held_without_weights"))


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """A runtime's side: what it is predicted to need, what it did need, how to set it up."""

    name: str
    version: str
    provider: str
    predicted: Mapping[str, Peaks] = field(default_factory=dict)
    observed: Mapping[str, Peaks] = field(default_factory=dict)
    settings: RuntimeSettings | None = None

    def to_json(self) -> Json:
        """Return the contract's block: predicted and observed for both models."""
        sides = ("original", "optimized")
        return {
            "name": self.name,
            "version": self.version,
            "provider": self.provider,
            "predicted": {
                s: _predicted_json(self.predicted[s]) for s in sides if s in self.predicted
            }
            or None,
            "observed": {s: self.observed[s].to_json() for s in sides if s in self.observed}
            or None,
            "settings": self.settings.to_json() if self.settings else None,
        }

    @classmethod
    def from_json(cls, data: Json) -> RuntimeFacts:
        """Read what `to_json` wrote."""
        return cls(
            data["name"],
            data["version"],
            data["provider"],
            {s: _predicted_from(peaks) for s, peaks in (data["predicted"] or {}).items()},
            {side: Peaks(**peaks) for side, peaks in (data["observed"] or {}).items()},
            RuntimeSettings.from_json(data["settings"]) if data["settings"] else None,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of one plan, in the layout of ``memplan.report/1``."""

    model: ModelFacts
    phase: str
    level: int
    coverage: float
    memory: Memory
    original_live_peak: int | None
    original_planned: int | None
    levels: Mapping[str, int | None]
    slot_bound: int | None = None
    """Bytes below which no slots of this level hold the tensors in this order; level 0 or 1."""
    peak: Peak | None = None
    orders: Mapping[str, int] = field(default_factory=dict)
    """Live peak of each order that was tried, by the name of what made it."""
    chosen_order: str = "file"
    target: str = "portable"
    """Whose graph the numbers are of: the file's, or what the runtime makes of it."""
    certainty: Mapping[str, str] = field(default_factory=dict)
    """How sure each number of ``memory`` is, in a word of `figures.CERTAINTY`."""
    symbolic: Mapping[str, str] = field(default_factory=dict)
    """Expressions, in the model's symbols, for the numbers that are None for that reason."""
    phases: Mapping[str, int] = field(default_factory=dict)
    """Number of nodes in each phase: forward, backward, update."""
    loss: str | None = None
    training_estimate: Mapping[str, int] = field(default_factory=dict)
    """Caffe's dry run on a forward model: ``raw`` and ``optimized`` bytes of training."""
    recompute: Recompute = field(default_factory=Recompute)
    donated: Donated = field(default_factory=Donated)
    profiles: tuple[Profile, ...] = ()
    """What each binding needs alone, where the plan holds for several."""
    runtime: RuntimeFacts | None = None
    validation: Validation | None = None
    reuses: int = 0
    unplanned: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()

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

    def to_json(self) -> Json:
        """Return the layout of the contract."""
        return {
            "schema": SCHEMA,
            "model": {
                "path": self.model.path,
                "sha256": self.model.sha256,
                "nodes": self.model.nodes,
                "blocks": self.model.blocks,
                "intermediates": self.model.intermediates,
            },
            "phase": self.phase,
            "phases": dict(self.phases),
            "loss": self.loss,
            "level": self.level,
            "coverage": self.coverage,
            "partial": self.partial,
            "memory": self.memory.to_json(),
            "certainty": dict(self.certainty),
            "symbolic": dict(self.symbolic),
            "original": {
                "live_peak": self.original_live_peak,
                "planned": self.original_planned,
            },
            "levels": dict(self.levels),
            **({} if self.slot_bound is None else {"slot_bound": self.slot_bound}),
            "orders": {"candidates": dict(self.orders), "chosen": self.chosen_order},
            "peak": self._peak_json(),
            "recompute": self.recompute.to_json(),
            "donated": self.donated.to_json(),
            **({"target": self.target} if self.target != "portable" else {}),
            **self._profiles_json(),
            "training_estimate": dict(self.training_estimate) or None,
            "runtime": self.runtime.to_json() if self.runtime else None,
            "validation": self.validation.to_json() if self.validation else None,
            "reuses": self.reuses,
            "unplanned": [{"name": r.name, "reason": r.reason} for r in self.unplanned],
            "warnings": list(self.warnings),
        }

    def _profiles_json(self) -> Json:
        return {"profiles": [p.to_json() for p in self.profiles]} if self.profiles else {}

    def _peak_json(self) -> Json | None:
        if self.peak is None:
            return None
        return {
            "step": self.peak.step,
            "node": self.peak.node,
            "tensors": [{"name": name, "bytes": size} for name, size in self.peak.tensors],
        }

    @classmethod
    def from_json(cls, data: Json) -> Report:
        """Read what `to_json` wrote.

        Raises:
            PlanError: a part is missing or of another type.
        """
        try:
            report = _read(data)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise PlanError(
                f"the report is not of schema {SCHEMA}: {type(error).__name__} {error}",
                hint="make it again with this version of memplan",
            ) from error
        found = misfit(report, cls)
        found = found or next(_odd_words(report), "")
        if found:
            raise PlanError(f"the report is not of schema {SCHEMA}: {found}")
        return report


def _odd_words(report: Report) -> Iterator[str]:
    """Yield what is none of the few words or numbers that it can be."""
    if set(report.levels) != {"0", "1", "2"} or report.level not in range(3):
        yield "its levels"
    if report.phase not in ("train", "test") or report.target not in TARGETS:
        yield "its phase or its target"
    if not set(report.certainty.values()) <= CERTAINTY.keys():
        yield "its certainty"


def _read(data: Json) -> Report:
    if data["schema"] != SCHEMA:
        raise PlanError(
            f"the report has schema {data['schema']!r}, this memplan reads {SCHEMA}"
        )
    peak = data["peak"]
    return Report(
        model=ModelFacts(**data["model"]),
        phase=data["phase"],
        level=data["level"],
        coverage=data["coverage"],
        memory=Memory(**data["memory"]),
        original_live_peak=data["original"]["live_peak"],
        original_planned=data["original"]["planned"],
        levels=data["levels"],
        slot_bound=data.get("slot_bound"),
        peak=peak
        and Peak(
            peak["step"], peak["node"], tuple((t["name"], t["bytes"]) for t in peak["tensors"])
        ),
        orders=data.get("orders", {}).get("candidates", {}),
        chosen_order=data.get("orders", {}).get("chosen", "file"),
        target=data.get("target", "portable"),
        certainty=data.get("certainty", {}),
        symbolic=data.get("symbolic", {}),
        phases=data.get("phases", {}),
        loss=data.get("loss"),
        training_estimate=data.get("training_estimate") or {},
        recompute=Recompute.from_json(data["recompute"]),
        donated=Donated.from_json(data["donated"]) if "donated" in data else Donated(),
        profiles=tuple(map(Profile.from_json, data.get("profiles", ()))),
        runtime=RuntimeFacts.from_json(data["runtime"]) if data["runtime"] else None,
        validation=Validation.from_json(data["validation"]) if data["validation"] else None,
        reuses=data["reuses"],
        unplanned=tuple(Refusal(r["name"], r["reason"]) for r in data["unplanned"]),
        warnings=tuple(data["warnings"]),
    )
