"""The memory of a plan: the verdict in a line, the process, and the figures with definitions."""

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
from memplan_cli.core.results.observations import CPU
from memplan_cli.loading.heap import LOADING_ENVIRONMENT_TEXT
from memplan_cli.reporting import document as doc
from memplan_cli.runtime.process.parts import kept_bytes, whole_process
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.observations import Peaks, ProcessBytes
    from memplan_cli.core.results.report import Report

LEVELS: Mapping[str, str] = {
    "0": "a free slot is reused by a tensor of the same dtype and shape",
    "1": "a free slot is reused by a tensor of the same dtype that is not larger than it",
    "2": "byte offsets in one arena; views and safe in-place results share bytes",
}

_SLOT_BOUND = "no reuse of whole slots at this level takes less, in this order"

_TRAINING: Mapping[str, tuple[str, str]] = {
    "raw": (
        "training step, no reuse",
        "sum of the intermediates of this model's training step (`train-step --gradients`)",
    ),
    "optimized": (
        "training step, planned",
        "what this level needs for them, in the node order of the training step",
    ),
}
"""Key of `Report.training_estimate` -> the name and the meaning of the figure."""


def training_lines(report: Report) -> Iterator[str]:
    """Yield the memory of a training step of the model, a phrase for each figure of `_TRAINING`.

    Nothing is yielded unless ``--dry-run`` planned a training step.
    """
    for key, (name, _) in _TRAINING.items():
        size = report.training_estimate.get(key)
        if size is not None:
            yield f"{name} {format_size(size)}"


def headline(report: Report) -> str:
    """Return one line with the phase, the level and the size of the planned graph."""
    model = report.model
    nodes = counted(model.nodes, "node")
    if model.blocks > 1:
        nodes += f" in {model.blocks} blocks"
    return (
        f"{report.phase} phase, level {report.level}, {nodes}{_graph_note(report)}, "
        f"{counted(model.intermediates, 'intermediate')}, {counted(report.reuses, 'reuse')}"
    )


def verdict(report: Report) -> str:
    """Return the planned bytes against the bytes without reuse, or why there are no totals."""
    memory = report.memory
    if memory.naive is None or memory.planned is None:
        if report.partial:
            share = f"{100 * report.coverage:.1f}%"
            return f"only {share} of the intermediates have a known size: no totals"
        return "sizes depend on dims without a value: no totals"
    if not memory.naive and not memory.planned and not report.partial:
        return "no intermediate has any bytes"
    planned, naive = format_size(memory.planned), format_size(memory.naive)
    partial = " (partial)" if report.partial else ""
    return f"plan: {planned} for the intermediates{_graph_note(report)}, {naive} without reuse{partial}"


def _graph_note(report: Report) -> str:
    """Return which graph the numbers are for; empty if it is that of the file."""
    if report.target == "portable":
        return ""
    return f" of the graph that ONNX Runtime optimized for {report.target}"


_MIN_SAVING = 0.01
"""Share of the process memory; smaller differences are within the noise of measuring."""


def process_blocks(report: Report) -> Iterator[doc.Block]:
    """Yield the memory of the whole process, that of the process before and after, and what is saved.

    Observed sizes are preferred to predicted ones. Nothing is yielded if neither are known.
    """
    runtime = report.runtime
    if runtime is None:
        return
    for source, sides in (("observed", runtime.observed), ("predicted", runtime.predicted)):
        before, after = sides.get("original"), sides.get("optimized")
        if not before or not after or not before.process or not after.process:
            continue  # this source lacks one of the models
        predicted = runtime.predicted.get("original")
        processes = (before.process, predicted.process if predicted else None)
        kept = kept_bytes(report.memory.outputs, *processes)
        yield doc.Paragraph(_process_line(report, before.process, kept, source), "verdict")
        sizes = {
            "load": (before.process.load, after.process.load),
            "run": (before.process.run, after.process.run),
        }
        is_saving = any(new < (1 - _MIN_SAVING) * old for old, new in sizes.values())
        rows = tuple(
            (name, f"{old / 1e6:.1f} MB", f"{new / 1e6:.1f} MB", _percent_change(old, new))
            for name, (old, new) in sizes.items()
        )
        rows += tuple(_file_and_time_rows(report, before, after))
        heads = doc.columns(
            f"process beyond its imports, {source}", ">before", ">after", ">change"
        )
        yield doc.Table(heads, rows)
        if runtime.provider == CPU:
            yield doc.Paragraph(
                "after: loaded by memplan.load. Other programs with these settings also need "
                f"{LOADING_ENVIRONMENT_TEXT} in their environment.",
                "soft",
            )
        if not is_saving:
            yield doc.Paragraph("No saving: the process needs as much memory as before.")
        return


def _file_and_time_rows(
    report: Report, before: Peaks, after: Peaks
) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for the files on disk, and one for the time of a run, if they are known.

    The times are of the runs whose memory was measured; on the CPU they are processor times.
    """
    files = report.files
    if files.written:
        old_size, new_size = f"{files.original / 1e6:.1f} MB", f"{files.written / 1e6:.1f} MB"
        change = _percent_change(files.original, files.written)
        yield "files on disk", old_size, new_size, change
    has_effort = before.effort is not None and after.effort is not None
    old, new = before.milliseconds, after.milliseconds
    if has_effort:
        old, new = before.effort, after.effort
    if old and new:
        yield "time of a run", f"{old:.1f} ms", f"{new:.1f} ms", _percent_change(old, new)


def _process_line(report: Report, process: ProcessBytes, kept: int, source: str) -> str:
    """Return the highest memory of the process that runs the model as it is, with all its parts.

    ``kept`` are the bytes that outputs cost because the caller keeps them. ``source`` is ``observed`` or
    ``predicted``.
    """
    inputs = report.memory.inputs
    parts = (
        f"interpreter and runtime {format_size(PROFILE.imported_process)}, "
        f"model {format_size(process.run)}, "
        f"inputs + kept outputs {format_size((inputs or 0) + kept)}"
    )
    total = format_size(whole_process(process, inputs, kept))
    certainty = "measured"
    if source == "predicted":
        certainty = f"predicted, usually within {PROFILE.process_margin:.0%}"
    peak = (
        report.memory.live_peak
        if report.original_live_peak is None
        else report.original_live_peak
    )
    activations = f" Activations at their peak: {format_size(peak)}." if peak else ""
    return f"Process: about {total} ({parts}), {certainty}.{activations}"


def _percent_change(old: float, new: float) -> str:
    return f"{100 * (new - old) / old:+.1f}%" if old else "-"


def memory_figures(report: Report) -> tuple[doc.Figure, ...]:
    """Return the memory of the intermediates: without reuse, at each level, and its bounds.

    Figures that the report has no number or expression for are left out, except ``naive``, the
    levels and the lower bound.
    """
    memory = report.memory
    figures = [_figure(report, "naive", memory.naive, DEFINITIONS["naive"])]
    for level, meaning in LEVELS.items():
        size = report.levels.get(level)
        figure = _figure_with_saving(report, f"level {level}", size, meaning)
        figures.append(replace(figure, chosen=level == str(report.level)))
    figures.append(_lower_bound(report))
    if memory.resident is not None or "resident" in report.symbolic:
        figures.append(_resident(report))
    if memory.foldable:
        meaning = DEFINITIONS["foldable"]
        figures.append(_figure(report, "foldable", memory.foldable, meaning))
    if report.slot_bound is not None:
        figures.append(
            _figure_with_saving(report, "slot bound", report.slot_bound, _SLOT_BOUND)
        )
    if memory.order_bound is not None and not memory.order_proved:
        meaning = f"{DEFINITIONS['order_bound']} of these nodes (fused nodes may need less)"
        figures.append(_figure_with_saving(report, "order bound", memory.order_bound, meaning))
    if report.original_planned is not None:
        owner = "the file" if report.target == "portable" else "the runtime's own graph"
        meaning = f"what this level needs in the node order of {owner}"
        figures.append(
            _figure_with_saving(report, "file order", report.original_planned, meaning)
        )
    return tuple(figures)


def order_note(report: Report) -> str:
    """Return the node orders that the rows of the memory figures are for."""
    line = f"All rows are for the planned node order ({report.chosen_order.replace('_', ' ')})"
    if report.original_planned is not None:
        owner = "file" if report.target == "portable" else "graph that ONNX Runtime optimized"
        line += f", except 'file order', which is for the node order of the {owner}"
    if report.chosen_order == "file":
        return f"{line}."
    return f"{line}. A plan for another level may use another order."


def _lower_bound(report: Report) -> doc.Figure:
    """Return the live peak of the planned order, as bytes or as an expression.

    No plan of this order is smaller.
    """
    memory, meaning = report.memory, DEFINITIONS["live_peak"]
    if memory.order_proved:
        meaning += "; no other order of these nodes needs less (fused nodes may)"
    if memory.live_peak is None and "live_peak" in report.symbolic:
        # At dims of 0 the expression may be too low: it is derived for dims of at least 1.
        meaning += "; dims from 1 on"
        size = report.symbolic["live_peak"]
        certainty = _certainty(report, "lower bound", size)
        return doc.Figure("lower bound", size, meaning, certainty=certainty)
    return _figure_with_saving(report, "lower bound", memory.live_peak, meaning)


def _resident(report: Report) -> doc.Figure:
    """Return the peak with graph outputs counted, as bytes or as an expression.

    The definition names the peak of the file's order too if it differs.
    """
    memory, meaning = report.memory, DEFINITIONS["resident"]
    size = report.symbolic.get("resident", "")
    if memory.resident is not None:
        size = format_size(memory.resident)
        original = report.original_resident
        if original is not None and original != memory.resident:
            meaning += f"; {format_size(original)} in the file's order"
    return doc.Figure(
        "resident", size, meaning, certainty=_certainty(report, "resident", size)
    )


def total_figures(report: Report) -> tuple[doc.Figure, ...]:
    """Return the terms of the model's total, the workspace, and the estimate of a training step."""
    terms = (
        _figure(report, name, getattr(report.memory, name), DEFINITIONS[name])
        for name in ("weights", "inputs", "outputs", "planned", "total")
    )
    training = (
        doc.Figure(name, format_size(report.training_estimate[key]), meaning, certainty=EXACT)
        for key, (name, meaning) in _TRAINING.items()
        if key in report.training_estimate
    )
    return (*terms, _workspace(report), *training)


def _workspace(report: Report) -> doc.Figure:
    """Return the scratch memory of kernels, which only a run can measure."""
    peaks = report.runtime and report.runtime.observed.get("optimized")
    if not peaks or peaks.scratch is None:
        return doc.Figure("workspace", UNKNOWN, WORKSPACE)
    return doc.Figure("workspace", format_size(peaks.scratch), WORKSPACE, certainty=OBSERVED)


def certainty_lines(report: Report) -> tuple[str, ...]:
    """Return the definition of each certainty that the figures of a report have."""
    rows = (*memory_figures(report), *total_figures(report))
    words = {row.certainty for row in rows} | {row.value for row in rows}
    return tuple(f"{word}: {meaning}" for word, meaning in CERTAINTY.items() if word in words)


def _figure(report: Report, name: str, size: int | None, meaning: str) -> doc.Figure:
    """Return a figure without a saving.

    A ``size`` of None shows the figure's expression in the report, or that the size is unknown.
    """
    text = report.symbolic.get(name, UNKNOWN) if size is None else format_size(size)
    return doc.Figure(name, text, meaning, certainty=_certainty(report, name, text))


def _figure_with_saving(
    report: Report, name: str, size: int | None, meaning: str
) -> doc.Figure:
    """Return a figure that also shows how much less it is than the bytes without reuse, if known."""
    figure, without_reuse = _figure(report, name, size, meaning), report.memory.naive
    if size is None or without_reuse is None:
        return figure
    return replace(figure, saved=format_share(without_reuse - size, without_reuse))


_FROM_LIVE_RANGES = ("lower bound", "foldable", "slot bound")
"""Figures that are as certain as the live peak, which is computed from the same live ranges."""


def _certainty(report: Report, name: str, value: str) -> str:
    """Return the certainty of a figure: a key of `CERTAINTY`.

    It is empty for an unknown figure and for the order bound, which is not a size of this plan.
    Names that the report has no certainty for, such as levels, have that of the planned bytes.
    """
    if value == UNKNOWN or name == "order bound":
        return ""
    key = "live_peak" if name in _FROM_LIVE_RANGES else name
    return report.certainty.get(key, report.certainty.get("planned", ""))
