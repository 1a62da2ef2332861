"""A plan's report as a document: one small function for each section."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId
from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.timeline import curve, main_arena, nodes_at, peak_tick
from memplan_cli.planning.print_log import is_left_alone
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import per_unit
from memplan_cli.reporting.findings.snapshot import known_share
from memplan_cli.reporting.plans import runtime
from memplan_cli.reporting.plans.dims import bindings, for_all_dims, of_dims
from memplan_cli.reporting.plans.memory import (
    certainty_lines,
    headline,
    memory_figures,
    paid,
    total_figures,
    training_words,
    verdict,
    whose_order,
)
from memplan_cli.reporting.plans.reuse import left_at_32_bits, not_reused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

PlanSection = Callable[["Report", int], Iterable[doc.Block]]
"""A feature's part of the plan report: the report and the most rows of a table -> blocks.

A section yields nothing if the plan does not use the feature. Its plain paragraphs are repeated
in the short answer; its soft paragraphs and tables are details.
"""


def plan_document(plan: Plan, most: int, sections: Sequence[PlanSection] = ()) -> doc.Document:
    """Return the whole report of a plan; long tables are cut after ``most`` rows."""
    report = plan.report
    first = (
        *(doc.Paragraph(line, "verdict") for line in paid(report)),
        doc.Paragraph(verdict(report), "plain" if report.saved is None else "verdict"),
    )
    title = ("Memory of ", doc.Name(report.model.path or "model"))
    return doc.Document(title, (*first, *details(plan, most, sections)))


def details(
    plan: Plan, most: int, sections: Sequence[PlanSection] = ()
) -> Iterator[doc.Block]:
    """Yield everything below the first lines, section by section."""
    report, given, plan = plan.report, plan, with_bound_symbols(plan)
    yield doc.Paragraph(headline(report), "soft")
    yield from of_dims(report)
    yield from _memory(report)
    yield from for_all_dims(report)
    yield from _live_bytes(plan)
    yield from _peak(plan, most)
    yield from left_at_32_bits(plan, most)
    yield from bindings(report)
    for section in sections:
        yield from section(report, most)
    yield from _orders(report)
    yield from runtime.evidence(report.runtime)
    yield from runtime.settings(report.runtime)
    yield from runtime.validation(report)
    if not is_left_alone(given):
        yield from not_reused(plan, most)
    yield from _remarks(report)


def said_besides(plan: Plan, sections: Sequence[PlanSection] = ()) -> Iterator[doc.Block]:
    """Yield what no reader of the first lines may miss: dims, features in use, warnings."""
    report = plan.report
    yield from of_dims(report)
    for section in sections:
        for block in section(report, 0):
            if isinstance(block, doc.Paragraph) and block.tone != "soft":
                yield block
    dry_run = ", ".join(training_words(report))
    if dry_run:
        yield doc.Paragraph(dry_run)
    yield from bindings(report)
    yield from _remarks(report)


def _remarks(report: Report) -> Iterator[doc.Block]:
    yield from doc.section(
        "Fallbacks", doc.Items(_fallbacks(report)) if report.fallbacks else None
    )
    yield from doc.section("Warnings", doc.Items(report.warnings) if report.warnings else None)


def _fallbacks(report: Report) -> tuple[str, ...]:
    """Return a line for each thing that was done otherwise than asked for."""
    return tuple(map(str, report.fallbacks))


def _memory(report: Report) -> Iterator[doc.Block]:
    words = certainty_lines(report)
    yield from doc.section("Intermediates", doc.Figures(memory_figures(report)))
    yield doc.Paragraph(whose_order(report), "soft")
    yield from doc.section("Whole model", doc.Figures(total_figures(report)))
    if words:
        yield doc.Meaning("; ".join(words), "soft")


def _live_bytes(plan: Plan) -> Iterator[doc.Block]:
    arena = main_arena(plan)
    points = curve(plan, arena)
    most = max((size for _, size in points), default=0)
    if arena is None or not most:
        return
    end, peak = points[-1][0], peak_tick(points)
    caption = f"highest {format_size(most)}{per_unit(arena.unit)} at step {peak} of {end}"
    if len(plan.arenas) > 1:
        # Several arenas are left only where a symbol has no number to add them up with.
        what = "fixed sizes" if arena.unit == "1" else f"multiples of {arena.unit}"
        caption += f"; only {what}: one of {len(plan.arenas)} arenas"
    known = known_only(plan.report)
    caption += f"; {known}" if known else ""
    yield from doc.section("Live bytes over time", doc.Chart(points, end, peak, caption))


def known_only(report: Report) -> str:
    """Return in words that a picture leaves out what has no size; empty where nothing is."""
    return (
        f"counts only what is known: {known_share(report.coverage)}" if report.partial else ""
    )


def _peak(plan: Plan, most: int) -> Iterator[doc.Block]:
    peak = plan.report.peak
    if peak is None or not peak.tensors:
        return
    whole = sum(size for _, size in peak.tensors)
    shown = {VarId(name): size for name, size in peak.tensors[:most]}
    places = {tensor.id: tensor for tensor in plan.tensors if tensor.id in shown}
    nodes = nodes_at(plan)
    rows = (
        (
            doc.Name(name),
            format_size(size),
            format_share(size, whole),
            *_between(places.get(name), nodes),
        )
        for name, size in shown.items()
    )
    heads = ("tensor", ">bytes", ">share", "made by", "last read by")
    known = " of the sizes that are known" if plan.report.partial else ""
    title = (f"At the peak{known}: step {peak.step}, ", doc.Name(peak.node))
    yield from doc.section(
        title, doc.first_rows(heads, rows, len(peak.tensors) - most, "tensors")
    )


def _between(place: Placement | None, nodes: Mapping[int, str]) -> tuple[str | doc.Name, ...]:
    """Return the nodes between which a tensor is live, or why it is for the whole run."""
    if place is None:
        return "", ""
    if place.pinned:
        return "(whole run)", place.pinned
    return doc.Name(nodes.get(place.first, "")), doc.Name(nodes.get(place.last - 1, ""))


def _orders(report: Report) -> Iterator[doc.Block]:
    rows = (
        (name, format_size(size), "chosen" if name == report.chosen_order else "")
        for name, size in report.orders.items()
    )
    table = doc.first_rows(("order", ">live peak", ""), rows, 0, "orders")
    yield from doc.section("Orders that were tried", table)
