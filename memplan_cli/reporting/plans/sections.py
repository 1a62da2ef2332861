"""The sections of a plan's report that every plan has; features add theirs as `PlanSection`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.memory import DEFINITIONS
from memplan_cli.core.results.report import ALL_SIZES
from memplan_cli.core.results.timeline import curve, main_arena, nodes_at, peak_tick
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.plan_file import bounds_of
from memplan_cli.planning.print_log import is_left_alone, reuses
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import per_unit
from memplan_cli.reporting.hints import (
    assumed_dims,
    assumed_lines,
    dims_summary,
    free_inputs,
)
from memplan_cli.reporting.plans import runtime
from memplan_cli.reporting.plans.memory import (
    Figure,
    certainty_lines,
    figure_blocks,
    headline,
    memory_figures,
    order_note,
    total_figures,
)
from memplan_cli.reporting.snapshot import known_share

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


def generic_sections(
    plan: Plan, max_rows: int, feature_sections: Sequence[PlanSection] = ()
) -> Iterator[doc.Block]:
    """Yield all sections of a plan's report, with those of features before the orders.

    Sizes of tensors that depend on symbols are shown as numbers if the report binds all symbols.
    """
    report = plan.report
    plan = with_bound_symbols(plan)  # its tensors and arenas; the report stays the same
    yield from _memory_sections(report)
    yield from _symbolic_section(report)
    yield from _live_bytes_section(plan)
    yield from _peak_section(plan, max_rows)
    yield from doc.section("Each binding", *bindings_blocks(report))
    for section in feature_sections:
        yield from section(report, max_rows)
    yield from _orders_section(report)
    yield from runtime.evidence(report.runtime)
    yield from runtime.settings_section(report.runtime)
    # If the model stays unchanged, no tensor reuses memory, and a reason for each would tell nothing.
    if not is_left_alone(plan):
        yield from _not_reused_section(plan, max_rows)


def size_blocks(plan: Plan) -> Iterator[doc.Block]:
    """Yield the sizes that the figures are for: assumed, given, of the inputs, or within bounds.

    The lines on assumed sizes name the options that set them.
    """
    report = plan.report
    for line in assumed_lines(assumed_dims(report.bindings), free_inputs(report)):
        yield doc.Paragraph(line, "verdict")
    for source, label in (("given", "as given"), ("inputs", "from the inputs")):
        dims = {n: dim.value for n, dim in report.bindings.items() if dim.source == source}
        if dims:
            yield doc.Paragraph(f"Sizes, {label}: {dims_summary(dims)}.", "soft")
    if report.runtime is not None:
        yield from _bounds_blocks(plan, report.runtime.settings_scope)


def _bounds_blocks(plan: Plan, settings_scope: str) -> Iterator[doc.Block]:
    """Yield the size within bounds that the model was run at, and the sizes that its runtime settings are for.

    ``settings_scope`` is `ALL_SIZES` or `ONE_SIZE`; empty if dims have no bounds, or no settings were searched.
    """
    bounds, bindings = bounds_of(plan), plan.report.bindings
    size_of_run = {n: dim.value for n, dim in bindings.items() if dim.source == "bounds"}
    if size_of_run:
        is_largest = all(value == bounds[name].high for name, value in size_of_run.items())
        which = "the largest size" if is_largest else "not the largest size"
        yield doc.Paragraph(
            f"Process and times: at {dims_summary(size_of_run)}, {which} within the bounds."
        )
    if settings_scope == ALL_SIZES:  # these settings are chosen after the measurement
        note = "the process was measured with those for one size"
        yield doc.Paragraph(f"Settings: for {settings_scope}; {note}.")
    elif settings_scope:  # `ONE_SIZE`, if no settings for all sizes were found
        yield doc.Paragraph(f"Settings: for {settings_scope}; the warnings tell why.")


def _memory_sections(report: Report) -> Iterator[doc.Block]:
    """Yield the figures of the intermediates and of all tensors, and their certainty."""
    certainty = certainty_lines(report)
    yield from doc.section(
        "Intermediates",
        doc.Paragraph(headline(report), "soft"),
        doc.Paragraph(order_note(report), "soft"),
        *figure_blocks(memory_figures(report)),
    )
    yield from doc.section("All tensors of the model", *figure_blocks(total_figures(report)))
    if certainty:
        yield doc.Meaning("; ".join(certainty), "soft")


_BINDING_SIZES = ("inputs", "outputs", "planned", "total")
"""Sizes of the table with a row for each binding, which fits 80 columns."""

_SIZES = ("inputs", "outputs", "naive", "live_peak", "resident", "planned", "total")
"""Sizes that depend on dims."""


def _symbolic_section(report: Report) -> Iterator[doc.Block]:
    """Yield the expressions of a symbolic plan, if the other figures are for assumed dims."""
    other_figures_are_numbers = report.memory.naive is not None
    if not other_figures_are_numbers:  # they are the expressions already, or sizes are unknown
        return
    rows = tuple(
        Figure(
            "lower bound" if name == "live_peak" else name,
            report.symbolic[name],
            DEFINITIONS[name],
        )
        for name in _SIZES
        if name in report.symbolic
    )
    if rows:
        yield from doc.section("For all dims", *figure_blocks(rows))


def _live_bytes_section(plan: Plan) -> Iterator[doc.Block]:
    """Yield the chart of live bytes of the main (largest) arena; nothing if no bytes are planned."""
    arena = main_arena(plan)
    points = curve(plan, arena)
    peak = max((size for _, size in points), default=0)
    if arena is None or not peak:
        return
    end, tick = points[-1][0], peak_tick(points)
    caption = f"highest {format_size(peak)}{per_unit(arena.unit)} at step {tick} of {end}"
    if len(plan.arenas) > 1:
        # Arenas of different units remain only if a symbol has no value; they cannot be added.
        sizes = "fixed sizes" if arena.unit == "1" else f"multiples of {arena.unit}"
        caption += f"; only {sizes}: one of {len(plan.arenas)} arenas"
    note = known_only(plan.report)  # on unknown sizes; empty if there are none
    caption += f"; {note}" if note else ""
    yield from doc.section("Live bytes over time", doc.Chart(points, end, tick, caption))


def known_only(report: Report) -> str:
    """Return the note that a picture leaves out unknown sizes; empty if all are known."""
    return (
        f"counts only what is known: {known_share(report.coverage)}" if report.partial else ""
    )


def _peak_section(plan: Plan, max_rows: int) -> Iterator[doc.Block]:
    """Yield the tensors that are live at the peak, with their producers and last readers."""
    peak = plan.report.peak
    if peak is None or not peak.tensors:
        return
    total = sum(size for _, size in peak.tensors)
    nodes = nodes_at(plan)
    rows = [
        (
            doc.Name(name),
            format_size(size),
            format_share(size, total),
            *_lifetime_cells(plan.by_id.get(name), nodes),
        )
        for name, size in peak.tensors
    ]
    heads = ("tensor", ">bytes", ">share", "made by", "last read by")
    known = " of the sizes that are known" if plan.report.partial else ""
    title = (f"At the peak{known}: step {peak.step}, ", doc.Name(peak.node))
    yield from doc.section(title, doc.first_rows(heads, rows, "tensors", max_rows))


def _lifetime_cells(
    placement: Placement | None, nodes: Mapping[int, str]
) -> tuple[str | doc.Name, ...]:
    """Return the cells for the producer and the last reader of a tensor.

    A tensor with a buffer for the whole run has the reason instead. The cells are empty for a
    tensor that the plan does not place (None).
    """
    if placement is None:
        return "", ""
    if placement.pinned:
        return "(whole run)", placement.pinned
    # `last` is exclusive: the last reader runs one step before.
    producer, last_reader = nodes.get(placement.first, ""), nodes.get(placement.last - 1, "")
    return doc.Name(producer), doc.Name(last_reader)


def bindings_blocks(report: Report) -> Iterator[doc.Block]:
    """Yield the memory of a separate plan for each binding, if this plan holds for several.

    A binding is one set of values for the dims, such as ``batch=8, seq=128``.
    """
    if not report.profiles:
        return
    planned = report.memory.planned
    size = "" if planned is None else f" needs {format_size(planned)}, and"
    line = f"This plan{size} was checked at each binding. A plan for one binding alone needs:"
    rows = tuple(
        (
            binding_text(profile.dims),
            *(runtime.size_or_dash(getattr(profile.memory, name)) for name in _BINDING_SIZES),
        )
        for profile in report.profiles
    )
    heads = doc.columns("dims", *(f">{name}" for name in _BINDING_SIZES))
    yield doc.Paragraph(line)
    yield doc.Table(heads, rows)


def _orders_section(report: Report) -> Iterator[doc.Block]:
    """Yield the live peak of each node order that was tried, with a mark at the chosen one."""
    rows = [
        (name, format_size(size), "chosen" if name == report.chosen_order else "")
        for name, size in report.orders.items()
    ]
    table = doc.first_rows(("order", ">live peak", ""), rows, "orders")
    yield from doc.section("Node orders tried", table)


def _not_reused_section(plan: Plan, max_rows: int) -> Iterator[doc.Block]:
    """Yield the reasons why tensors reuse no memory, most bytes first.

    Only tensors of fixed size count in the bytes of a reason. A reason has its two largest tensors
    as examples.
    """
    fixed_arenas = {arena.id for arena in plan.arenas if arena.unit == "1"}
    tensors_by_reason: dict[str, list[tuple[int, str]]] = {}
    for reuse in reuses(plan.tensors):
        if reuse.donor is None:
            size = reuse.tensor.bytes if reuse.tensor.arena in fixed_arenas else 0
            tensors_by_reason.setdefault(reuse.reason, []).append((size, reuse.tensor.id))
    for refusal in plan.report.unplanned:
        if refusal.name not in plan.by_id:  # a placed tensor has its reason above
            tensors_by_reason.setdefault(refusal.reason, []).append((0, refusal.name))
    bytes_by_reason = {
        reason: sum(size for size, _ in tensors)
        for reason, tensors in tensors_by_reason.items()
    }
    ranked = sorted(bytes_by_reason, key=lambda reason: (-bytes_by_reason[reason], reason))
    rows = []
    for reason in ranked:
        tensors = sorted(tensors_by_reason[reason], key=lambda item: (-item[0], item[1]))
        total = bytes_by_reason[reason]
        size_cell = format_size(total) if total else "-"
        examples: list[str | doc.Name] = [doc.Name(tensors[0][1])]
        if len(tensors) > 1:
            examples += [", ", doc.Name(tensors[1][1])]
        rows.append((str(len(tensors)), size_cell, reason, tuple(examples)))
    heads = (">tensors", ">bytes", "reason", "for example")
    table = doc.first_rows(heads, rows, "reasons", max_rows)
    yield from doc.section("Not reused, and why", table)
