"""Count the numbers of a report again that need the written model.

The numbers that follow from the plan's rows alone are counted in `plan_figures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.checking.edges import edges_of, foldable
from memplan_cli.checking.order import label_of
from memplan_cli.checking.plan_figures import (
    check_plan_figures,
    dims_at,
    disagreements,
    in_numbers,
    sums_of,
)
from memplan_cli.checking.resident import held, most_with, results_at
from memplan_cli.checking.sums import (
    added,
    canonical,
    is_symbolic,
    number_of,
    samples,
    value_of,
)
from memplan_cli.core.symbolic.dims import canonical_dim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.checking.clock import Value
    from memplan_cli.checking.edges import Edges
    from memplan_cli.checking.layout import Storage
    from memplan_cli.checking.plan_figures import Claim
    from memplan_cli.checking.rows import Placed
    from memplan_cli.checking.subject import Subject
    from memplan_cli.checking.sums import Sum
    from memplan_cli.core.symbolic.bounds import Bounds


def check_figures(subject: Subject, placed: Placed, bounds: Bounds) -> Iterator[str]:
    """Yield the numbers of a report that are not those of the model and its plan."""
    yield from check_plan_figures(subject.plan, bounds)
    edges, shared = edges_of(subject, bounds), held(subject, placed)
    claims = [*_counts(subject), *_edges(subject, edges), *_original(subject)]
    claims += _peak_node(subject)
    claims += _resident(subject, edges, shared)
    claims += _expressions(subject, edges, shared)
    yield from disagreements(claims)
    yield from foldable(subject)


def _counts(subject: Subject) -> Iterator[Claim]:
    report, clock = subject.plan.report, subject.clock
    results = {id(value) for value in clock.top.outputs}
    count = sum(
        1 for value in clock.values() if value.is_intermediate and id(value) not in results
    )
    yield "nodes", report.model.nodes, sum(len(region.nodes) for region in clock.regions)
    yield "blocks", report.model.blocks, len(clock.regions)
    yield "intermediates", report.model.intermediates, count
    copies = [
        node for region in clock.regions for node in region.nodes if _is_copy(node.outputs)
    ]
    yield "recomputed nodes", report.recompute.nodes, len(copies)


def _is_copy(outputs: Sequence[Value | None]) -> bool:
    made = [value.name for value in outputs if value is not None]
    return bool(made) and all("__recompute" in name for name in made)


def _edges(subject: Subject, edges: Edges) -> Iterator[Claim]:
    memory, dims = subject.plan.report.memory, dims_at(subject.plan)
    yield "weights", memory.weights, edges.weights
    for name, said, total in (
        ("inputs", memory.inputs, edges.inputs),
        ("outputs", memory.outputs, edges.outputs),
    ):
        if total is not None:  # else the model does not tell it
            yield name, said, number_of(total, dims)
    donated = subject.plan.report.donated.bytes
    yield "donated bytes", donated, number_of(edges.donated, dims) or 0


def _original(subject: Subject) -> Iterator[Claim]:
    """Yield the figures of the file's order if it is the plan's: other orders are not here."""
    report, memory = subject.plan.report, subject.plan.report.memory
    is_another = report.recompute.nodes or report.chunked.regions
    is_own = report.chosen_order == "file" and not is_another
    pairs = (
        ("original.live_peak", report.original_live_peak, memory.live_peak),
        ("original.planned", report.original_planned, memory.planned),
        ("original.resident", report.original_resident, memory.resident),
    )
    for name, said, counted in pairs:
        if is_own or memory.planned is None:
            yield name, said, counted


def _peak_node(subject: Subject) -> Iterator[Claim]:
    """Yield the label of the node at the peak, whose step was counted before."""
    peak = subject.plan.report.peak
    if peak is None:
        return
    labels = [
        label_of(node, entry)
        for region, order in zip(subject.clock.regions, subject.plan.order, strict=True)
        for node, entry in zip(region.nodes, order.nodes, strict=True)
        if peak.step in (node.start, node.end)
    ]
    yield "peak.node", peak.node, labels[0] if labels else ""


def _resident(
    subject: Subject, edges: Edges, shared: Sequence[Storage] | None
) -> Iterator[Claim]:
    """Yield what a runtime holds, if the model tells the bytes of its outputs."""
    report, dims = subject.plan.report, dims_at(subject.plan)
    said = report.memory.resident
    numbers = None if shared is None else in_numbers(subject.plan, shared, dims)
    results = results_at(edges, dims)
    if numbers is None or (said is None and report.partial):
        return
    if results is not None:
        yield "resident", said, most_with(numbers, results)


def _expressions(
    subject: Subject, edges: Edges, shared: Sequence[Storage] | None
) -> Iterator[Claim]:
    """Yield the expressions of inputs, outputs, total and resident, and missing expressions."""
    plan, report = subject.plan, subject.plan.report
    sums: dict[str, Sum | None] = {**sums_of(plan)}
    if not is_symbolic(sums_of(plan)["naive"]):
        return
    if report.partial and not report.symbolic and report.memory.planned is None:
        return
    sums |= {"inputs": edges.inputs, "outputs": edges.outputs}
    if edges.inputs is not None and edges.outputs is not None:
        saved = {unit: -size for unit, size in edges.donated.items()}
        planned = sums_of(plan)["planned"]
        parts = ({"1": edges.weights}, edges.inputs, edges.outputs, planned, saved)
        sums["total"] = added(*parts)
    for name, counted in sums.items():
        text = report.symbolic.get(name)
        wanted = None if counted is None else canonical(counted)
        yield f"{name} in symbols", None if text is None else canonical_dim(text), wanted
    resident = report.symbolic.get("resident")
    if resident is None or shared is None:
        return
    units = [arena.unit for arena in plan.arenas]
    for dims in samples([*units, *(unit for _, unit, _ in edges.results)]):
        numbers, results = in_numbers(plan, shared, dims), results_at(edges, dims)
        if numbers is not None and results is not None:
            most = most_with(numbers, results)
            yield "resident in symbols", value_of(resident, dims), most
