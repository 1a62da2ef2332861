"""What a plan needs, in figures: each level, the bounds, the whole model; and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_share, format_size
from memplan_cli.core.results.memory import (
    CERTAINTY,
    DEFINITIONS,
    EXACT,
    OBSERVED,
    UNKNOWN,
    WORKSPACE,
)
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.results.report import Report

LEVELS: Mapping[str, str] = {
    "0": "a free slot is reused by a tensor of the same dtype and shape",
    "1": "a free slot is reused by a tensor of the same dtype that is not larger than it",
    "2": "byte offsets in one arena; views and safe in-place results share bytes",
}

_SLOT_BOUND = "no reuse of whole slots at this level takes less, in this order"

_TRAINING: Mapping[str, tuple[str, str]] = {
    "raw": (
        "to train",
        "intermediates of a training step of this model (`train-step --gradients`), no reuse",
    ),
    "optimized": (
        "to train, reused",
        "the same as planned at this level, in the order of its nodes",
    ),
}


def training_words(report: Report) -> Iterator[str]:
    """Yield what a training step of the model takes, where a dry run was asked for."""
    for key, (name, _) in _TRAINING.items():
        size = report.training_estimate.get(key)
        if size is not None:
            yield f"{name} {format_size(size)}"


def headline(report: Report) -> str:
    """Return the one line that says what was planned."""
    model = report.model
    nodes = counted(model.nodes, "node")
    if model.blocks > 1:
        nodes += f" in {model.blocks} blocks"
    if report.target != "portable":
        nodes += f" of the graph that the runtime optimised for {report.target}"
    return (
        f"{report.phase} phase, level {report.level}, {nodes}, "
        f"{counted(model.intermediates, 'intermediate')}, {counted(report.reuses, 'reuse')}"
    )


def verdict(report: Report) -> str:
    """Return what the plan saves, in one line, or why there is no such number."""
    memory = report.memory
    if memory.naive is None or memory.planned is None:
        if report.partial:
            share = f"{100 * report.coverage:.1f}%"
            return f"only {share} of the intermediates have a known size: no totals"
        return "sizes depend on dims that have no number"
    if not memory.naive and not memory.planned and not report.partial:
        return "no intermediate has any bytes"
    planned, naive = format_size(memory.planned), format_size(memory.naive)
    graph = (
        "" if report.target == "portable" else f" in the runtime's graph for {report.target}"
    )
    partial = " (partial)" if report.partial else ""
    return f"plan: {planned} for the intermediates{graph}, {naive} without reuse{partial}"


def paid(report: Report) -> Iterator[str]:
    """Yield the process and the arena, before and after: what somebody pays for."""
    if line := process_line(report):
        yield line
    sides = report.runtime.observed if report.runtime is not None else {}
    before, after = sides.get("original"), sides.get("optimized")
    if before is None or after is None:
        return
    held = before.held, after.held, before.weights, after.weights
    if None not in held:
        old, new = ((each.held or 0) - (each.weights or 0) for each in (before, after))
        change = _change(old, new)
        yield f"arena, weights left out: {format_size(old)} -> {format_size(new)} ({change})"


def process_line(report: Report) -> str:
    """Return the process before and after, observed or else predicted; empty if neither."""
    runtime = report.runtime
    if runtime is None:
        return ""
    for source, sides in (("observed", runtime.observed), ("predicted", runtime.predicted)):
        before, after = (sides.get(side) for side in ("original", "optimized"))
        if before and after and before.process and after.process:
            return _process_line(source, before.process, after.process)
    return ""


_NOTHING = 0.01
"""Share of a process below which nothing was won: measurements differ by as much."""


def _process_line(source: str, before: ProcessBytes, after: ProcessBytes) -> str:
    """Return the process at its highest, while loading and in the first runs."""
    pairs = {"load": (before.load, after.load), "run": (before.run, after.run)}
    words = ", ".join(
        f"{name} {old / 1e6:.1f} -> {new / 1e6:.1f} MB ({_change(old, new)})"
        for name, (old, new) in pairs.items()
    )
    won = any(new < (1 - _NOTHING) * old for old, new in pairs.values())
    return f"process, {source}: {'' if won else 'nothing won: '}{words}"


def _change(old: int, new: int) -> str:
    """Return by how many per cent something changed."""
    return f"{100 * (new - old) / old:+.1f}%" if old else "-"


def memory_figures(report: Report) -> tuple[doc.Figure, ...]:
    """Return naive, the levels and the bounds: the intermediates' memory."""
    memory = report.memory
    figures = [_figure(report, "naive", memory.naive, DEFINITIONS["naive"], memory.naive)]
    for level, meaning in LEVELS.items():
        size = report.levels.get(level)
        figure = _figure(report, f"level {level}", size, meaning, memory.naive)
        figures.append(replace(figure, chosen=level == str(report.level)))
    figures.append(_lower_bound(report))
    if memory.resident is not None or "resident" in report.symbolic:
        figures.append(_resident(report))
    if memory.foldable:
        meaning = DEFINITIONS["foldable"]
        figure = doc.Figure("foldable", format_size(memory.foldable), meaning)
        figures.append(replace(figure, certainty=_sure(report, "live_peak", figure.value)))
    if report.slot_bound is not None:
        figure = _figure(report, "slot bound", report.slot_bound, _SLOT_BOUND, memory.naive)
        figures.append(replace(figure, certainty=_sure(report, "live_peak", figure.value)))
    if memory.order_bound is not None and not memory.order_proved:
        meaning = f"{DEFINITIONS['order_bound']} of these nodes (fusion may go lower)"
        figures.append(
            _figure(report, "order bound", memory.order_bound, meaning, memory.naive)
        )
    if report.original_planned is not None:
        whose = "the file" if report.target == "portable" else "the runtime's own graph"
        meaning = f"what this level needs in the order of {whose}"
        figures.append(
            _figure(report, "file order", report.original_planned, meaning, memory.naive)
        )
    return tuple(figures)


def whose_order(report: Report) -> str:
    """Return in which order of nodes each row of the figures is."""
    line = f"all rows in the planned order ({report.chosen_order.replace('_', ' ')})"
    if report.original_planned is not None:
        line += ", 'file order' in that of the "
        line += "file" if report.target == "portable" else "runtime's own graph"
    if report.chosen_order == "file":
        return line
    return f"{line}; another level, if planned for, may have another order"


def _lower_bound(report: Report) -> doc.Figure:
    memory, meaning = report.memory, DEFINITIONS["live_peak"]
    if memory.order_proved:
        meaning += "; no order of these nodes needs less (fusion may)"
    if memory.live_peak is None and "live_peak" in report.symbolic:
        meaning += "; dims from 1 on"
        figure = doc.Figure("lower bound", report.symbolic["live_peak"], meaning)
    else:
        figure = _figure(report, "lower bound", memory.live_peak, meaning, memory.naive)
    return replace(figure, certainty=_sure(report, "live_peak", figure.value))


def _resident(report: Report) -> doc.Figure:
    memory, meaning = report.memory, DEFINITIONS["resident"]
    size = report.symbolic.get("resident", "")
    if memory.resident is not None:
        size = format_size(memory.resident)
        if report.original_resident not in (None, memory.resident):
            meaning += f"; {format_size(report.original_resident or 0)} in the file's order"
    return doc.Figure("resident", size, meaning, certainty=_sure(report, "resident", size))


def total_figures(report: Report) -> tuple[doc.Figure, ...]:
    """Return the whole model's memory, term by term; of a forward one, what training takes."""
    terms = (
        _figure(report, name, getattr(report.memory, name), DEFINITIONS[name], None)
        for name in ("weights", "inputs", "outputs", "planned", "total")
    )
    training = (
        doc.Figure(name, format_size(report.training_estimate[key]), meaning, certainty=EXACT)
        for key, (name, meaning) in _TRAINING.items()
        if key in report.training_estimate
    )
    return (*terms, _workspace(report), *training)


def _workspace(report: Report) -> doc.Figure:
    """Return what kernels take besides, which nobody knows before a run."""
    peaks = report.runtime and report.runtime.observed.get("optimized")
    if not peaks or peaks.scratch is None:
        return doc.Figure("workspace", UNKNOWN, WORKSPACE)
    return doc.Figure("workspace", format_size(peaks.scratch), WORKSPACE, certainty=OBSERVED)


def certainty_lines(report: Report) -> tuple[str, ...]:
    """Return what the words beside the numbers mean, those that are there."""
    rows = (*memory_figures(report), *total_figures(report))
    words = {row.certainty for row in rows} | {row.value for row in rows}
    return tuple(f"{word}: {meaning}" for word, meaning in CERTAINTY.items() if word in words)


def _figure(
    report: Report, name: str, size: int | None, meaning: str, naive: int | None
) -> doc.Figure:
    text = report.symbolic.get(name, UNKNOWN) if size is None else format_size(size)
    known = size is not None and naive is not None and name != "naive"
    saved = format_share((naive or 0) - (size or 0), naive or 0) if known else ""
    return doc.Figure(name, text, meaning, saved, _sure(report, name, text))


def _sure(report: Report, name: str, text: str) -> str:
    """Return how sure a number is; levels are as sure as the plan, unknown says so itself."""
    if text == UNKNOWN or name == "order bound":
        return ""
    return report.certainty.get(name, report.certainty.get("planned", ""))
