"""Snapshots: the numbers of one model at one time, with the tensors that cause them.

A baseline holds one snapshot a model: few enough lines to be read in a pull request, and
enough to say later which tensor made a number grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor
from typing import TYPE_CHECKING, Annotated, ClassVar

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.json_types import Natural, Share, one_of
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.timeline import nodes_at
from memplan_cli.core.serialization import OPTIONAL, SORTED, SPARSE, Keys
from memplan_cli.errors import PlanError
from memplan_cli.reporting.findings.budget import over_budget
from memplan_cli.reporting.findings.hints import how_to_know, path_word
from memplan_cli.settings.keys import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

MOST_TENSORS = 500
"""Tensors of a model in a baseline, so that people can read it in a pull request."""

SMALLEST_SHARE = 1000
"""A tensor below a thousandth of the peak explains nothing, unless it is live there."""

_OF_MEMORY = (
    *("planned", "live_peak", "resident", "foldable", "total", "naive", "weights"),
    *("inputs", "outputs", "order_bound"),
)
_OF_RUNTIME = {
    "predicted": {
        "first_run_peak": "first_run_peak",
        "steady_peak": "steady_peak",
        "held_without_weights": "held",
    },
    "observed": {
        name: name for name in ("first_run_peak", "steady_peak", "held", "scratch", "weights")
    },
}
_OF_PROCESS = ("load", "run", "private", "file")
_RECORDED = {
    *_OF_MEMORY[:7],
    *("predicted.first_run_peak", "predicted.steady_peak"),
    *("observed.first_run_peak", "observed.steady_peak", "observed.held"),
    *("process.load", "process.run", "process.private"),
}
"""What a baseline has of every model, and two of them are compared by; others where asked for."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor's size and lifetime.

    Attributes:
        bytes: its size.
        steps: the number of steps at which it is live.
        made_by: the node that writes it.
        read_by: its last reader.
        at_peak: the bytes that it holds at the peak; 0: it is not live there.
    """

    bytes: Natural
    steps: Natural
    made_by: str
    read_by: str
    at_peak: Natural = 0


_Metric = Annotated[str, one_of(*METRICS)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of one model at one time, and the conditions under which they hold.

    Attributes:
        model: the model's name in the baseline.
        graph_sha256: the digest of its graph.
        level: the level of the plan.
        phase: the phase of the plan.
        nodes: the number of nodes.
        memplan: the version of memplan.
        runtime: the runtime, its version and its provider.
        metrics: the numbers.
        peak_node: the node at the peak.
        tensors: the tensors that cause the numbers.
        coverage: the share of intermediates whose size is known; below 1 totals are partial.
        dims: the values, bounds and shapes that it was planned for; None: not recorded.
        missed: that the plan misses its budget, and by how much. Not in a file.
        to_run: how to get the numbers that only a run has. Not in a file.
        to_know: how to get the numbers that are unknown. Not in a file.
    """

    json_keys: ClassVar[Keys] = (
        "graph_sha256",
        "level",
        "phase",
        "nodes",
        "memplan",
        "runtime",
        "coverage",
        "dims",
        "metrics",
        "peak_node",
        "tensors",
    )

    model: str
    graph_sha256: str
    level: Annotated[int, one_of(0, 1, 2)]
    phase: Annotated[str, one_of("train", "test")]
    nodes: Natural
    memplan: str
    runtime: str
    metrics: Mapping[_Metric, Natural] = field(metadata=SORTED)
    peak_node: str = ""
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict, metadata=SORTED)
    coverage: Share = field(default=1.0, metadata=OPTIONAL)
    dims: Mapping[str, str] | None = field(default=None, metadata={**SPARSE, **SORTED})
    missed: str = field(default="", compare=False)
    to_run: str = field(default="", compare=False)
    to_know: str = field(default="", compare=False)

    @property
    def partial(self) -> bool:
        """Whether the size of some intermediate is unknown, so that totals are partial."""
        return self.coverage < 1.0


def read_snapshot(model: str, data: object) -> Snapshot:
    """Read a baseline's entry for a model.

    Raises:
        PlanError: something in it is not as `Snapshot` declares it.
    """
    try:
        return from_json(Snapshot, data, f"the baseline's entry for {model!r}", model=model)
    except MisfitError as error:
        raise PlanError(str(error), hint="write it again with --update-baseline") from error


def snapshot_of(plan: Plan, model: str, runtime: str = "") -> Snapshot:
    """Return everything that a comparison can use."""
    report, plan = plan.report, with_bound_symbols(plan)
    at_peak = dict(report.peak.tensors) if report.peak else {}
    return Snapshot(
        model=model,
        graph_sha256=plan.graph_sha256,
        level=report.level,
        phase=report.phase,
        nodes=report.model.nodes,
        memplan=plan.version,
        runtime=_runtime(report) or runtime,
        metrics={name: size for name, size in metrics_of(report).items() if name in _RECORDED},
        peak_node=report.peak.node if report.peak else "",
        tensors=_tensors(plan, at_peak),
        coverage=report.coverage,
        dims=_dims(plan),
        missed=over_budget(report),
        to_know=how_to_know(plan),
        to_run=f"`memplan optimize {path_word(report)}` runs it and writes a plan: gate that",
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
    assumed = {n: d for n, d in plan.report.bindings.items() if d.source == "assumed"}
    return found | {name: str(dim.value) for name, dim in assumed.items()}


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
    found: dict[str, int | None] = {name: getattr(report.memory, name) for name in _OF_MEMORY}
    for name in ("live_peak", "planned", "resident"):
        found[f"original.{name}"] = getattr(report, f"original_{name}")
    found |= {f"levels.{level}": size for level, size in report.levels.items()}
    if report.runtime is not None:
        for kind, names in _OF_RUNTIME.items():
            peaks = getattr(report.runtime, kind).get("optimized")
            if peaks is not None:
                found |= {f"{kind}.{name}": getattr(peaks, of) for name, of in names.items()}
                # What was observed comes second, and is believed.
                found |= process_metrics(peaks.process)
    return {name: size for name, size in found.items() if size is not None}


def process_metrics(process: ProcessBytes | None) -> dict[str, int | None]:
    """Return the metrics of a process; none where nothing is known of it."""
    if process is None:
        return {}
    return {f"process.{name}": getattr(process, name) for name in _OF_PROCESS}


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
