"""A plan's report as a document: one small function for each section."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.compact.columns import cells
from memplan_cli.core.program import VarId, var_id
from memplan_cli.core.quantities import counted, format_share, format_size
from memplan_cli.core.results.figures import DEFINITIONS
from memplan_cli.core.results.in_numbers import in_numbers
from memplan_cli.core.results.observations import CPU
from memplan_cli.core.results.timeline import curve, main_arena, nodes_at, peak_tick
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.print_log import is_left_alone, print_log, refusals
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import per_unit
from memplan_cli.reporting.findings.assumed import assumed_of, named_dims
from memplan_cli.reporting.findings.hints import command_with_numbers
from memplan_cli.reporting.findings.snapshot import known_share
from memplan_cli.reporting.plans import constants, runtime
from memplan_cli.reporting.plans.caches import caches
from memplan_cli.reporting.plans.chunks import pieces
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
from memplan_cli.reporting.snippet import binding_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report

_HALF, _WIDE = frozenset({"float16", "bfloat16"}), "float32"

_SIZES = ("inputs", "outputs", "naive", "live_peak", "resident", "planned", "total")
"""What a row of a binding says of its memory."""


def plan_document(plan: Plan, most: int) -> doc.Document:
    """Return the report of a plan; of long tables, the first ``most`` rows."""
    report = plan.report
    first = (
        *(doc.Paragraph(line, "verdict") for line in paid(report)),
        doc.Paragraph(verdict(report), "plain" if report.saved is None else "verdict"),
    )
    title = ("Memory of ", doc.Name(report.model.path or "model"))
    return doc.Document(title, (*first, *details(plan, most)))


def details(plan: Plan, most: int) -> Iterator[doc.Block]:
    """Yield everything below the first lines, section by section."""
    report, given, plan = plan.report, plan, in_numbers(plan)
    yield doc.Paragraph(headline(report), "soft")
    yield from _of_dims(report)
    yield from _memory(report)
    yield from _for_all_dims(report)
    yield from _live_bytes(plan)
    yield from _peak(plan, most)
    yield from constants.foldable(report, most)
    yield from constants.folded(report, most)
    yield from constants.moved(report)
    yield from left_at_32_bits(plan, most)
    yield from _bindings(report)
    yield from _recomputation(report)
    yield from pieces(report.chunked, most)
    yield from caches(report, most)
    yield from _donation(report, most)
    yield from _orders(report)
    yield from runtime.evidence(report.runtime)
    yield from runtime.settings(report.runtime)
    yield from runtime.validation(report)
    if not is_left_alone(given):
        yield from _not_reused(plan, most)
    yield from _remarks(report)


def said_besides(plan: Plan) -> Iterator[doc.Block]:
    """Yield what no reader of the first lines may miss: dims, what was asked for, warnings."""
    report = plan.report
    yield from _of_dims(report)
    asked = (
        _recomputation(report),
        pieces(report.chunked, 0),
        caches(report, 0),
        _donation(report, 0),
    )
    for section in asked:
        yield from (block for block in section if isinstance(block, doc.Paragraph))
    dry_run = ", ".join(training_words(report))
    if dry_run:
        yield doc.Paragraph(dry_run)
    yield from _bindings(report)
    yield from _remarks(report)


def _of_dims(report: Report) -> Iterator[doc.Block]:
    yield from (doc.Paragraph(line, "soft") for line in binding_lines_of(report))
    yield from _other_numbers(report)


def _remarks(report: Report) -> Iterator[doc.Block]:
    yield from doc.section(
        "Fallbacks", doc.Items(_fallbacks(report)) if report.fallbacks else None
    )
    yield from doc.section("Warnings", doc.Items(report.warnings) if report.warnings else None)


def _fallbacks(report: Report) -> tuple[str, ...]:
    """Return a line for each thing that was done otherwise than asked for."""
    return tuple(map(str, report.fallbacks))


_SOURCES = {"given": "given", "inputs": "from the inputs"}


def binding_lines_of(report: Report) -> Iterator[str]:
    """Yield which numbers dims have, who said so, and how to say otherwise."""
    for source, words in _SOURCES.items():
        said = _dims_of(report, source)
        if said:
            yield f"{words}: {named_dims(said)}"


def _other_numbers(report: Report) -> Iterator[doc.Block]:
    """Yield what was assumed of the inputs' dims, and the command that says otherwise."""
    assumed, command = assumed_of(report), command_with_numbers(report)
    if assumed:
        yield doc.Paragraph(f"assumed {named_dims(assumed)}; say otherwise with", "soft")
    elif command:
        yield doc.Paragraph("with numbers of your own for the dims:", "soft")
    if command:
        yield doc.Code((command,), doc.SHELL)


def _dims_of(report: Report, source: str) -> dict[str, int]:
    return {name: dim.value for name, dim in report.bindings.items() if dim.source == source}


def _for_all_dims(report: Report) -> Iterator[doc.Block]:
    """Yield the expressions of a symbolic plan, where the numbers are those at assumed dims."""
    if report.memory.naive is None:
        return
    rows = tuple(
        doc.Figure(name, report.symbolic[key], DEFINITIONS[key])
        for key, name in _EXPRESSIONS.items()
        if key in report.symbolic
    )
    if rows:
        yield from doc.section("For all dims", doc.Figures(rows))


_EXPRESSIONS = {
    "inputs": "inputs",
    "outputs": "outputs",
    "naive": "naive",
    "live_peak": "lower bound",
    "resident": "resident",
    "planned": "planned",
    "total": "total",
}


def logged(plan: Plan) -> Iterator[doc.Block]:
    """Yield the lines of ``--print-log``."""
    lines = tuple(map(doc.Name, print_log(plan)))
    yield from doc.section("Reuse, in the order of the plan", doc.Items(lines))


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
    places = {
        tensor: plan.tensors[at]
        for at, (name, block) in enumerate(cells(plan.tensors, "name", "block"))
        if (tensor := var_id(block, name)) in shown
    }
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


def left_at_32_bits(plan: Plan, most: int) -> Iterator[doc.Block]:
    """Yield the float32 intermediates of a model of 16-bit floats, the largest first.

    A conversion to float16 rarely halves the memory: what needs range is left as it was, and
    every cast makes one tensor more (onnxconverter-common#289, onnxruntime#9949).
    """
    dtypes = {dtype for (dtype,) in cells(plan.tensors, "dtype")}
    if not dtypes & _HALF or _WIDE not in dtypes:
        return
    wide = [tensor for tensor in plan.tensors if tensor.dtype == _WIDE]
    wide.sort(key=attrgetter("bytes"), reverse=True)
    units = {arena.id: per_unit(arena.unit) for arena in plan.arenas}
    whole: dict[str, int] = {}
    for tensor in wide:
        unit = units[tensor.arena]
        whole[unit] = whole.get(unit, 0) + tensor.bytes
    taken = " + ".join(f"{format_size(size)}{unit}" for unit, size in whole.items())
    stay = f"{'stays' if len(wide) == 1 else 'stay'} {_WIDE} beside 16-bit floats"
    line = f"{counted(len(wide), 'tensor')}, {taken} without reuse, {stay}"
    rows = (
        (
            doc.Name(tensor.id),
            f"{format_size(tensor.bytes)}{units[tensor.arena]}",
            f"[{','.join(map(str, tensor.shape))}]",
        )
        for tensor in wide[:most]
    )
    table = doc.first_rows(("tensor", ">bytes", "shape"), rows, len(wide) - most, "tensors")
    yield from doc.section("Not at 16 bits", doc.Paragraph(line), table)


def _bindings(report: Report) -> Iterator[doc.Block]:
    """Yield what each binding needs alone, where the plan holds for several."""
    if not report.profiles:
        return
    planned = report.memory.planned
    size = "" if planned is None else f" takes {format_size(planned)} and"
    line = f"this plan{size} was checked at each; what a plan for each alone takes:"
    rows = tuple(
        (
            binding_text(row.dims),
            *(runtime.size_or_dash(getattr(row.memory, name)) for name in _SIZES),
        )
        for row in report.profiles
    )
    heads = doc.columns("dims", *(f">{name.replace('_', ' ')}" for name in _SIZES))
    yield from doc.section("Each binding", doc.Paragraph(line), doc.Table(heads, rows))


def _recomputation(report: Report) -> Iterator[doc.Block]:
    """Yield what is recomputed and what that costs, where that was asked for."""
    found = report.recompute
    if not found.nodes and found.budget is None:
        return
    line = f"{counted(found.nodes, 'node')} recomputed, {100 * found.flops_increase:.1f}% more FLOPs"
    if found.budget is not None:
        met = "met" if found.met else "not met"
        line += f"; the budget of {format_size(found.budget)} is {met}"
    if found.bound is not None:
        line += (
            f"; no order of these nodes needs less than {format_size(found.bound)}, whatever is "
            "recomputed (fusion may)"
        )
    if found.resident_bound is not None:
        line += f", and {format_size(found.resident_bound)} with its outputs"
    rows = (
        (format_size(point.peak), f"{100 * point.extra:.1f}%", str(point.nodes))
        for point in found.curve
    )
    heads = (">live peak", ">more FLOPs", ">nodes recomputed")
    yield from doc.section(
        "Recomputation", doc.Paragraph(line), doc.first_rows(heads, rows, 0, "points")
    )


def _donation(report: Report, most: int) -> Iterator[doc.Block]:
    """Yield each output with the input whose buffer it reuses, or why it may not."""
    found = report.donated
    rows: list[tuple[doc.Prose, ...]] = [
        (doc.Name(made), ("reuses the buffer of ", doc.Name(given)))
        for given, made in found.pairs
    ]
    rows += [(doc.Name(refusal.name), refusal.reason) for refusal in found.refused]
    if not rows:
        return
    table = doc.first_rows(("output", ""), rows[:most], len(rows) - most, "outputs")
    code = doc.Code(_donated_code(report)) if found.pairs else None
    yield from doc.section("Donated buffers", doc.Paragraph(donated_line(report)), table, code)


def donated_line(report: Report) -> str:
    """Return what donation saves."""
    found = report.donated
    refused = f"; {len(found.refused)} may not" if found.refused else ""
    # Over symbols what it saves is in the expression of the total alone.
    less = "" if report.symbolic else f", {format_size(found.bytes)} less in total"
    pairs = counted(len(found.pairs), "output")
    one = len(found.pairs) == 1
    words = "reuses the buffer of the input it replaces"
    words = words if one else "reuse the buffer of the input they replace"
    return f"{pairs} {words}{less}{refused}"


def _donated_code(report: Report) -> tuple[str, ...]:
    provider = report.runtime.provider if report.runtime else CPU
    lines = (
        "import json",
        "import onnxruntime as ort",
        "session = ...  # of the written model, with the settings of this report",
        'plan = json.load(open("PLAN.memplan.json"))',
    )
    pairs = '{made: given for given, made in plan["report"]["donated"]["pairs"]}'
    return (*lines, *filter(None, binding_lines(pairs, provider)))


def _orders(report: Report) -> Iterator[doc.Block]:
    rows = (
        (name, format_size(size), "chosen" if name == report.chosen_order else "")
        for name, size in report.orders.items()
    )
    table = doc.first_rows(("order", ">live peak", ""), rows, 0, "orders")
    yield from doc.section("Orders that were tried", table)


def _not_reused(plan: Plan, most: int) -> Iterator[doc.Block]:
    """Yield what reuses no memory, by reason, most bytes first.

    Only sizes that are numbers are summed.
    """
    fixed = {arena.id for arena in plan.arenas if arena.unit == "1"}
    found: dict[str, list[tuple[int, str]]] = {}
    for tensor, reason in refusals(plan.tensors):
        size = tensor.bytes if tensor.arena in fixed else 0
        found.setdefault(reason, []).append((-size, tensor.id))
    for refusal in plan.report.unplanned:
        if refusal.name not in plan.by_id:
            found.setdefault(refusal.reason, []).append((0, refusal.name))
    groups = sorted(
        (sum(size for size, _ in group), reason) for reason, group in found.items()
    )
    rows = (
        (
            str(len(found[reason])),
            format_size(-size) if size else "-",
            reason,
            _examples(found[reason]),
        )
        for size, reason in groups[:most]
    )
    heads = (">tensors", ">bytes", "reason", "for example")
    table = doc.first_rows(heads, rows, len(groups) - most, "reasons")
    yield from doc.section("Not reused, and why", table)


def _examples(group: list[tuple[int, str]]) -> tuple[str | doc.Name, ...]:
    """Return the two largest, a comma between them."""
    names = [doc.Name(name) for _, name in sorted(group)[:2]]
    return tuple(part for name in names for part in (", ", name))[1:]
