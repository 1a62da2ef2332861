"""Snapshots: the numbers of one model at one time, with the tensors that cause them.

A baseline holds one snapshot a model: few enough lines to be read in a pull request, and
enough to say later which tensor made a number grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.timeline import nodes_at
from memplan_cli.errors import PlanError
from memplan_cli.reporting.findings.hints import symbols_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Json, Report

MOST_TENSORS = 500
"""Tensors of a model in a baseline, so that people can read it in a pull request."""

SMALLEST_SHARE = 1000
"""A tensor below a thousandth of the peak explains nothing, unless it is live there."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor: its bytes, how many steps it lives, between which nodes.

    ``at_peak`` is the bytes that it holds at the peak, 0 where it is not live then.
    """

    bytes: int
    steps: int
    made_by: str
    read_by: str
    at_peak: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One model's numbers at one time, with what they were made with."""

    model: str
    graph_sha256: str
    level: int
    phase: str
    nodes: int
    memplan: str
    runtime: str
    metrics: Mapping[str, int]
    peak_node: str = ""
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict)
    coverage: float = 1.0
    """Share of the intermediates whose size is known; below 1, totals say too little."""
    dims: Mapping[str, str] | None = None
    """Values, bounds and shapes that it was planned for; None: nobody wrote them down."""
    symbols: tuple[str, ...] = ()
    """What is left of symbols in sizes; not in a baseline, whose metrics are numbers."""

    @property
    def partial(self) -> bool:
        """Whether totals leave out what has no size."""
        return self.coverage < 1.0

    def to_json(self) -> Json:
        """Return the layout of a baseline's entry, everything sorted by name."""
        return {
            "graph_sha256": self.graph_sha256,
            "level": self.level,
            "phase": self.phase,
            "nodes": self.nodes,
            "memplan": self.memplan,
            "runtime": self.runtime,
            "coverage": self.coverage,
            **({} if self.dims is None else {"dims": dict(sorted(self.dims.items()))}),
            "metrics": dict(sorted(self.metrics.items())),
            "peak_node": self.peak_node,
            "tensors": {
                name: {
                    "bytes": facts.bytes,
                    "steps": facts.steps,
                    "made_by": facts.made_by,
                    "read_by": facts.read_by,
                    "at_peak": facts.at_peak,
                }
                for name, facts in sorted(self.tensors.items())
            },
        }

    @classmethod
    def from_json(cls, model: str, data: Json) -> Snapshot:
        """Read what `to_json` wrote.

        Raises:
            PlanError: a part is missing or of another type.
        """
        try:
            return cls(
                model=model,
                graph_sha256=_typed(data["graph_sha256"], str),
                level=_typed(data["level"], int),
                phase=_typed(data["phase"], str),
                nodes=_typed(data["nodes"], int),
                memplan=_typed(data["memplan"], str),
                runtime=_typed(data["runtime"], str),
                metrics={
                    _typed(name, str): _typed(size, int)
                    for name, size in data["metrics"].items()
                },
                peak_node=_typed(data["peak_node"], str),
                tensors={name: _facts(item) for name, item in data["tensors"].items()},
                coverage=_share(data.get("coverage", 1.0)),
                dims=_texts(data["dims"]) if "dims" in data else None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PlanError(
                f"the baseline's entry for {model!r} is not in order: "
                f"{type(error).__name__} {str(error)[:200]}",
                hint="write it again with --update-baseline",
            ) from error


def snapshot_of(plan: Plan, model: str, runtime: str = "") -> Snapshot:
    """Return everything that a comparison can use."""
    report = plan.report
    at_peak = dict(report.peak.tensors) if report.peak else {}
    return Snapshot(
        model=model,
        graph_sha256=plan.graph_sha256,
        level=report.level,
        phase=report.phase,
        nodes=report.model.nodes,
        memplan=plan.version,
        runtime=_runtime(report) or runtime,
        metrics=metrics_of(report),
        peak_node=report.peak.node if report.peak else "",
        tensors=_tensors(plan, at_peak),
        coverage=report.coverage,
        dims=_dims(plan),
        symbols=symbols_in(arena.unit for arena in plan.arenas),
    )


def known_share(coverage: float) -> str:
    """Return in words how much of a model its totals are about: never more than there is."""
    percent = floor(1000 * coverage) / 10
    return f"the sizes of {percent:g}% of the intermediates are known"


def dims_text(dims: Mapping[str, str]) -> str:
    """Return dims as people set them: ``batch=4 seq=1..128``."""
    return " ".join(f"{name}={value}" for name, value in sorted(dims.items())) or "none"


def _dims(plan: Plan) -> dict[str, str]:
    """Return what a plan's settings say of dims, bounds and shapes, as text."""
    found: dict[str, str] = {}
    for key in ("dims", "bounds", "shapes"):
        table = plan.settings.get(key)
        for name, value in table.items() if isinstance(table, dict) else ():
            said = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            found[f"shape of {name}" if key == "shapes" else str(name)] = said
    return found


def shortened(snapshot: Snapshot) -> Mapping[str, TensorFacts]:
    """Return the tensors that a baseline keeps: those at the peak, and the largest."""
    least = snapshot.metrics.get("live_peak", 0) // SMALLEST_SHARE
    ranked = sorted(
        (
            item
            for item in snapshot.tensors.items()
            if item[1].bytes >= least or item[1].at_peak
        ),
        key=lambda item: (-item[1].at_peak, -item[1].bytes, item[0]),
    )
    return dict(ranked[:MOST_TENSORS])


def metrics_of(report: Report) -> dict[str, int]:
    """Return every metric that is known; predicted and observed of the written model."""
    found: dict[str, int | None] = {
        name: getattr(report.memory, name)
        for name in ("planned", "live_peak", "total", "naive", "weights")
    }
    if report.runtime is not None:
        for kind in ("predicted", "observed"):
            peaks = getattr(report.runtime, kind).get("optimized")
            for name in ("first_run_peak", "steady_peak", "held"):
                if peaks is not None and (kind, name) != ("predicted", "held"):
                    found[f"{kind}.{name}"] = getattr(peaks, name)
    return {name: size for name, size in found.items() if size is not None}


def _runtime(report: Report) -> str:
    runtime = report.runtime
    return f"{runtime.name} {runtime.version} {runtime.provider}" if runtime else ""


def _tensors(plan: Plan, at_peak: Mapping[str, int]) -> dict[str, TensorFacts]:
    nodes = nodes_at(plan)
    fixed = {arena.id for arena in plan.arenas if arena.unit == "1"}
    return {
        tensor.id: _facts_of(tensor, nodes, at_peak.get(tensor.id, 0))
        for tensor in plan.tensors
        if tensor.arena in fixed
    }


def _facts_of(tensor: Placement, nodes: Mapping[int, str], at_peak: int) -> TensorFacts:
    if tensor.pinned:
        read_by = f"the end of the run ({tensor.pinned})"
        return TensorFacts(tensor.bytes, tensor.last, "", read_by, at_peak)
    return TensorFacts(
        bytes=tensor.bytes,
        steps=tensor.last - tensor.first,
        made_by=nodes.get(tensor.first, ""),
        read_by=nodes.get(tensor.last - 1, ""),
        at_peak=at_peak,
    )


def _facts(item: Json) -> TensorFacts:
    return TensorFacts(
        _typed(item["bytes"], int),
        _typed(item["steps"], int),
        _typed(item["made_by"], str),
        _typed(item["read_by"], str),
        _typed(item["at_peak"], int),
    )


def _share(value: Any) -> float:  # noqa: ANN401 - untrusted JSON
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise TypeError(f"{str(value)[:60]!r} is no share")
    return float(value)


def _texts(table: Any) -> dict[str, str]:  # noqa: ANN401 - untrusted JSON
    return {name: _typed(text, str) for name, text in table.items()}


def _typed(value: Any, kind: type) -> Any:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{str(value)[:60]!r} is no {kind.__name__}")
    if isinstance(value, int) and value < 0:
        raise TypeError(f"{value} is below zero")
    return value
