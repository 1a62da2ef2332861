"""Snapshots: the metrics of one model with the tensors that cause them; and baseline files.

A baseline file holds one snapshot per model. It is kept in git, so it is sorted, has no dates,
names models relative to its own folder, and is short enough to review in a pull request.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from math import floor
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from memplan_cli.core.binding_options import InputShape  # noqa: TC001 - a type to read by
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.json_types import Natural, Share, one_of
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.report import TARGETS
from memplan_cli.core.results.timeline import nodes_at
from memplan_cli.core.serialization import OPTIONAL, SORTED, SPARSE, Keys, to_json
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.errors import PlanError, refuse_endless, unreadable
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.hints import (
    assumed_dims,
    over_budget,
    path_argument,
    unknown_sizes_hint,
)
from memplan_cli.runtime.process.parts import kept_bytes, whole_process
from memplan_cli.settings.keys import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.core.program import Dim
    from memplan_cli.core.results.memory import Memory
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

MAX_BASELINE_TENSORS = 500
"""Tensors of one model in a baseline file."""


_METRIC_LABELS: Mapping[str, str] = {
    "process.total": "whole process",
    "planned": "as planned",
}
"""Metric -> its name in the report, for the metrics that are checked by default."""


def metric_label(name: str) -> str:
    """Return the name of a metric in texts; the metric itself if the report has no other name."""
    return _METRIC_LABELS.get(name, name)


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


class InterfaceSize(NamedTuple):
    """The size of an input, an output or a weight."""

    kind: str
    bytes: int


_Metric = Annotated[str, one_of(*METRICS)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The metrics of one model at one time, and the conditions under which they hold.

    Attributes:
        model: the model's name in the baseline.
        graph_sha256: the digest of its graph.
        level: the level of the plan.
        target: the graph that is planned: ``portable``, or optimized for ``cpu`` or ``cuda``; empty:
            not recorded.
        phase: the phase of the plan.
        nodes: the number of nodes.
        memplan: the version of memplan.
        runtime: the runtime, its version and its provider.
        metrics: the numbers.
        process_source: where the ``process`` metrics come from: ``predicted`` or ``observed``; empty:
            there are none, or it was not recorded.
        checked: the metrics that are compared with a baseline, unless a rule names others.
        settings_files: the settings files that applied, as their names from the current folder.
        peak_node: the node at the peak.
        tensors: the intermediates that cause the numbers.
        interface: the inputs, the outputs and the larger weights, by name.
        coverage: the share of intermediates whose size is known; below 1 totals are partial.
        dims: the value of each dim that the numbers hold for, or its bounds (``1..8``); None: not
            recorded.
        shapes: the shape that the numbers hold for, of each input with a symbolic dim: ``8,3,1..64``.
        assumed: the dims whose values were assumed. Not in a file.
        inputs: the inputs with a symbolic dim. Not in a file.
        budget_message: the sentence that the plan is over its budget; empty if it is not. Not
            in a file.
        run_hint: how to get the metrics that need a run. Not in a file.
        size_hint: how to get the metrics that need unknown sizes. Not in a file.
        size_obstacle: the warning that the model does not load or run to observe sizes; empty if it
            did, or was not tried. Not in a file.
        process_obstacle: why the process could not be predicted; empty if it was, or was not tried. Not
            in a file.
    """

    json_keys: ClassVar[Keys] = (
        "graph_sha256", "level", "target", "phase", "nodes", "memplan", "runtime", "coverage", "dims",
        "shapes", "settings_files", "metrics", "process_source", "checked", "peak_node", "tensors",
        "interface",
    )  # fmt: skip

    model: str
    graph_sha256: str
    level: Annotated[int, one_of(0, 1, 2)]
    phase: Annotated[str, one_of("train", "test")]
    nodes: Natural
    memplan: str
    runtime: str
    metrics: Mapping[_Metric, Natural] = field(metadata=SORTED)
    target: Annotated[str, one_of("", *TARGETS)] = field(default="", metadata=SPARSE)
    process_source: Annotated[str, one_of("", "predicted", "observed")] = field(
        default="", metadata=SPARSE
    )
    checked: tuple[_Metric, ...] = field(default=(), metadata=SPARSE)
    settings_files: tuple[str, ...] = field(default=(), metadata=SPARSE)
    peak_node: str = ""
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict, metadata=SORTED)
    interface: Mapping[str, InterfaceSize] = field(
        default_factory=dict, metadata={**SPARSE, **SORTED}
    )
    coverage: Share = field(default=1.0, metadata=OPTIONAL)
    dims: Mapping[str, str] | None = field(default=None, metadata={**SPARSE, **SORTED})
    shapes: Mapping[str, str] = field(default_factory=dict, metadata=SPARSE)
    assumed: Mapping[str, int] = field(default_factory=dict, compare=False)
    inputs: tuple[InputShape, ...] = field(default=(), compare=False)
    budget_message: str = field(default="", compare=False)
    run_hint: str = field(default="", compare=False)
    size_hint: str = field(default="", compare=False)
    size_obstacle: str = field(default="", compare=False)
    process_obstacle: str = field(default="", compare=False)

    @property
    def partial(self) -> bool:
        """Whether the size of some intermediate is unknown, so that totals are partial."""
        return self.coverage < 1.0


def snapshot_of(
    plan: Plan,
    model: str,
    runtime: str = "",
    process: ProcessBytes | None = None,
    settings_files: tuple[str, ...] = (),
) -> Snapshot:
    """Return the snapshot of a plan, with the numbers of its bindings in place of symbols.

    Args:
        plan: a plan. Its report may have the process of the written model: observed if the model was run,
            or predicted.
        model: its name in a baseline.
        runtime: recorded if the report has none.
        process: the predicted process of a model without a plan file, as it is; None: that of the report.
        settings_files: the settings files that applied.
    """
    report = plan.report
    plan = with_bound_symbols(plan)
    run = report.runtime
    bytes_at_peak = dict(report.peak.tensors) if report.peak else {}
    dims = _planned_dims(plan)
    metrics = metrics_of(report)
    process_source = ""
    if process is not None:
        metrics |= process_metrics(report.memory, process)
        process_source = "predicted"
    elif "process.run" in metrics:
        observed = run.observed.get("optimized") if run else None
        process_source = "observed" if observed and observed.process else "predicted"
    return Snapshot(
        model=model,
        graph_sha256=plan.graph_sha256,
        level=report.level,
        target=report.target,
        phase=report.phase,
        nodes=report.model.nodes,
        memplan=plan.version,
        runtime=f"{run.name} {run.version} {run.provider}" if run else runtime,
        metrics=metrics,
        process_source=process_source,
        settings_files=settings_files,
        peak_node=report.peak.node if report.peak else "",
        tensors=_tensor_facts(plan, bytes_at_peak),
        interface={
            tensor.name: InterfaceSize(tensor.kind, tensor.bytes)
            for tensor in report.interface
        },
        coverage=report.coverage,
        dims=dims,
        shapes={
            item.name: ",".join(_dim_text(dim, dims) for dim in item.shape)
            for item in report.model.inputs
        },
        assumed=assumed_dims(report.bindings),
        inputs=report.model.inputs,
        budget_message=over_budget(report),
        size_hint=unknown_sizes_hint(plan),
        size_obstacle=report.run_failure,
        run_hint=(
            f"`memplan optimize {path_argument(report)}` runs the model and writes a plan: "
            "gate that plan"
        ),
    )


def metrics_of(report: Report) -> dict[str, int]:
    """Return each of `METRICS` that is known.

    The name of a metric is a field of a record, after the group of the record and a dot:

        planned                   the field ``planned`` of ``report.memory``
        observed.steady_peak      the field ``steady_peak`` of the observed peaks
        original.planned          ``report.original_planned``
        levels.2                  ``report.levels["2"]``
        process.total             see `process_metrics`
    """
    runtime = report.runtime
    # The peaks of the written model, which reports call ``optimized``.
    predicted = runtime.predicted.get("optimized") if runtime else None
    observed = runtime.observed.get("optimized") if runtime else None
    records = {"": report.memory, "predicted": predicted, "observed": observed}
    metrics: dict[str, int] = {}
    for name in METRICS:
        group, _, key = name.rpartition(".")
        if group == "original":
            size = getattr(report, f"original_{key}")
        elif group == "levels":
            size = report.levels.get(key)
        elif group in records:
            # The metric ``predicted.held_without_weights`` is the field ``held``, which excludes weights.
            field_name = "held" if key == "held_without_weights" else key
            size = getattr(records[group], field_name, None)
        else:  # the group is ``process``, see below
            continue
        if size is not None:
            metrics[name] = size
    predicted_process = predicted.process if predicted else None
    observed_process = observed.process if observed else None
    process = observed_process or predicted_process
    if process:
        # An observed process lacks the bytes of kept outputs: they are taken from the predicted one.
        metrics |= process_metrics(report.memory, process, predicted_process)
    return metrics


def process_metrics(
    memory: Memory, process: ProcessBytes, predicted: ProcessBytes | None = None
) -> dict[str, int]:
    """Return the metrics of a process that runs a model with this memory of inputs and outputs.

    - ``process.load``, ``run``, ``private`` and ``file`` are those of ``process``.
    - ``process.kept``: the bytes of the outputs that its caller keeps. A measured process does not have them, so
      they come from the ``predicted`` one.
    - ``process.total``: the interpreter with the imported runtime, and the bytes of ``run``, inputs and ``kept``.
    """
    names = ("load", "run", "private", "file")
    own_metrics = {f"process.{name}": getattr(process, name) for name in names}
    kept = kept_bytes(memory.outputs, process, predicted)
    total = whole_process(process, memory.inputs, kept)
    return {"process.total": total, **own_metrics, "process.kept": kept}


def known_share(coverage: float) -> str:
    """Return the share of intermediates with a known size as a phrase, rounded down."""
    percent = floor(1000 * coverage) / 10
    return f"the sizes of {percent:g}% of the intermediates are known"


def dims_text(dims: Mapping[str, str]) -> str:
    """Return dims as on a command line: ``batch=4 seq=1..128``; ``none`` without dims."""
    return " ".join(f"{name}={value}" for name, value in sorted(dims.items())) or "none"


def _planned_dims(plan: Plan) -> dict[str, str]:
    """Return the value of each dim that the numbers of a plan hold for, or its bounds, as text.

    For example ``{"batch": "8", "seq": "1..128"}``.
    """
    values = {name: str(dim.value) for name, dim in plan.report.bindings.items()}
    bounds = plan.settings.get("bounds") or {}
    return values | {name: str(text) for name, text in bounds.items()}


def _dim_text(dim: Dim, dims: Mapping[str, str]) -> str:
    """Return a dim of an input with its symbols replaced by their values or bounds; ``?`` if undeclared.

    >>> _dim_text("batch*2", {"batch": "4"})
    '8'
    """
    if dim is None:
        return "?"
    values = {name: int(text) for name, text in dims.items() if text.isdecimal()}
    text = str(bind_dim(dim, values))
    return dims.get(text, text)  # bounds of a symbol are no number


def _tensor_facts(plan: Plan, bytes_at_peak: Mapping[str, int]) -> dict[str, TensorFacts]:
    """Return the facts of every tensor in an arena of fixed sizes, by tensor id.

    ``bytes_at_peak`` are the bytes of the tensors that are live at the peak of the plan, by tensor id.
    """
    nodes = nodes_at(plan)
    fixed_arenas = {arena.id for arena in plan.arenas if arena.unit == "1"}
    facts: dict[str, TensorFacts] = {}
    for tensor in plan.tensors:
        if tensor.arena not in fixed_arenas:
            continue
        made_by, read_by = nodes.get(tensor.first, ""), nodes.get(tensor.last - 1, "")
        if tensor.pinned:  # for the whole run: the nodes at its start and end need not use it
            made_by, read_by = "", f"the end of the run ({tensor.pinned})"
        at_peak, steps = bytes_at_peak.get(tensor.id, 0), tensor.last - tensor.first
        facts[tensor.id] = TensorFacts(tensor.bytes, steps, made_by, read_by, at_peak)
    return facts


SCHEMA = "memplan.baseline/1"
DEFAULT_NAME = "memplan.baseline.json"
_MAX_FILE_BYTES = 256 * 2**20
"""A baseline file that is larger is not read; one model needs some hundred thousand bytes."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The contents of a baseline file: the numbers of each model."""

    schema: ClassVar[str] = SCHEMA

    models: Mapping[str, Snapshot]


def read_baseline(path: Path) -> dict[str, Snapshot]:
    """Return the snapshots of a baseline file by model name.

    A plan file is accepted as a baseline of its own model.

    Raises:
        PlanError: the file cannot be read, or is no baseline.
    """
    content = _read_json(path)
    if _is_plan(content):
        plan = read_plan(path)
        name = model_key(path.parent / plan.report.model.path, path)
        return {name: snapshot_of(plan, name)}
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise PlanError(
            f"{path} is not a baseline of schema {SCHEMA}",
            hint="write one with `memplan gate MODEL --update-baseline`",
        )
    models = content.get("models")
    if not isinstance(models, dict):
        raise PlanError(f"{path} has no table of models")
    return {str(name): read_snapshot(str(name), entry) for name, entry in models.items()}


def read_snapshot(model: str, entry: object) -> Snapshot:
    """Return a model's snapshot from its entry in a baseline.

    Raises:
        PlanError: the entry does not match `Snapshot`.
    """
    try:
        return from_json(Snapshot, entry, f"the baseline's entry for {model!r}", model=model)
    except MisfitError as error:
        raise PlanError(str(error), hint="write it again with --update-baseline") from error


def refuse_plan(path: Path) -> None:
    """Raise if the existing file ``path`` is a plan, which a baseline would replace.

    Raises:
        PlanError: the file is a plan, or cannot be read.
    """
    if _is_plan(_read_json(path)):
        raise PlanError(
            f"{path} is a plan, and a baseline would replace it",
            hint="name another file with --baseline",
        )


def _is_plan(content: object) -> bool:
    return isinstance(content, dict) and str(content.get("schema", "")).startswith(
        "memplan.plan/"
    )


def baseline_text(snapshots: Mapping[str, Snapshot]) -> str:
    """Return the text of a baseline file, with few tensors per model. It is deterministic."""
    models = {
        name: replace(snapshot, tensors=baseline_tensors(snapshot))
        for name, snapshot in sorted(snapshots.items())
    }
    return json.dumps(to_json(Baseline(models)), indent=1, ensure_ascii=True) + "\n"


def baseline_tensors(snapshot: Snapshot) -> Mapping[str, TensorFacts]:
    """Return the tensors that a baseline keeps: those at the peak, then the largest.

    There are at most `MAX_BASELINE_TENSORS`. Those below 1/1000 of the peak that are not live there are left out.
    """
    min_bytes = snapshot.metrics.get("live_peak", 0) // 1000
    relevant = [
        (name, facts)
        for name, facts in snapshot.tensors.items()
        if facts.bytes >= min_bytes or facts.at_peak
    ]
    relevant.sort(key=lambda item: (-item[1].at_peak, -item[1].bytes, item[0]))
    return dict(relevant[:MAX_BASELINE_TENSORS])


def model_key(model: Path, baseline: Path) -> str:
    """Return the name of a model in a baseline: its path relative to the baseline's folder."""
    relative = os.path.relpath(model.absolute(), baseline.absolute().parent)
    return relative.replace(os.sep, "/")


def _read_json(path: Path) -> Any:  # noqa: ANN401 - untrusted JSON
    """Return the content of a baseline or plan file.

    Raises:
        PlanError: there is no file, it is too large, cannot be read, or is not JSON.
    """
    refuse_endless(path, PlanError)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise PlanError(f"{path} is too large for a baseline")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlanError(
            f"there is no baseline {path}",
            hint="write one with `memplan gate MODEL --update-baseline`",
        ) from error
    except OSError as error:
        raise unreadable(path, error, PlanError) from None
    except (ValueError, RecursionError) as error:  # of the text; a PlanError is neither
        raise PlanError(f"{path} is not JSON: {str(error)[:200]}") from error
