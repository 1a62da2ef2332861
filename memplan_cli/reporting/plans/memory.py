"""The memory of a plan: the process, the intermediates, and all figures with definitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from memplan_cli.core.quantities import counted, format_share, format_size
from memplan_cli.core.results.memory import (
    CERTAINTY,
    DEFINITIONS,
    OBSERVED,
    UNKNOWN,
    WORKSPACE,
)
from memplan_cli.core.results.observations import comparable_times
from memplan_cli.reporting import document as doc
from memplan_cli.runtime.process.parts import kept_bytes, whole_process
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.observations import Peaks, ProcessBytes
    from memplan_cli.core.results.report import Report

T = TypeVar("T", int, float)

LEVELS: Mapping[str, str] = {
    "0": "a free slot is reused by a tensor of the same dtype and shape",
    "1": "a free slot is reused by a tensor of the same dtype that is not larger than it",
    "2": "byte offsets in one arena; views and safe in-place results share bytes",
}

_SLOT_BOUND = "no reuse of whole slots at this level takes less, in this order"

_TRAINING_NAMES: Mapping[str, str] = {
    "raw": "training step, no reuse",
    "optimized": "training step, planned",
}
"""Key of `Report.training_estimate` -> the name of its row."""

_PHASES: Mapping[str, str] = {"train": "training", "test": "inference"}
"""What a model of each phase is used for."""


def headline(report: Report) -> str:
    """Return one line with the use of the model, the level and the size of the planned graph."""
    model = report.model
    nodes = counted(model.nodes, "node")
    if model.blocks > 1:
        nodes += f" in {model.blocks} blocks"
    return (
        f"{_PHASES[report.phase]}, level {report.level}, {nodes}{_graph_note(report)}, "
        f"{counted(model.intermediates, 'intermediate')}, {counted(report.reuses, 'reuse')}"
    )


def verdict(report: Report) -> str:
    """Return the planned bytes against the bytes without reuse, or why there are no totals."""
    if reason := reason_without_totals(report):
        return reason
    memory = report.memory
    assert memory.planned is not None and memory.naive is not None  # noqa: S101, PT018 - known, as above
    planned, naive = format_size(memory.planned), format_size(memory.naive)
    partial = " (partial)" if report.partial else ""
    return f"plan: {planned} for the intermediates{_graph_note(report)}, {naive} without reuse{partial}"


def reason_without_totals(report: Report) -> str:
    """Return why the bytes of the intermediates are unknown, or are none; empty if they are known."""
    memory = report.memory
    if memory.naive is None or memory.planned is None:
        if report.partial:
            return f"{known_intermediates(report)}: no totals"
        return "sizes depend on dims without a value: no totals"
    if not memory.naive and not memory.planned and not report.partial:
        return "no intermediate has any bytes"
    return ""


def known_intermediates(report: Report) -> str:
    """Return which share of the intermediates of a partial report has a known size."""
    return f"only {100 * report.coverage:.1f}% of the intermediates have a known size"


def _graph_note(report: Report) -> str:
    """Return which graph the numbers are for; empty if it is that of the file."""
    if report.target == "portable":
        return ""
    return f" of the graph that ONNX Runtime optimized for {report.target}"


def intermediates_table(report: Report) -> doc.Table | None:
    """Return the bytes of the intermediates: without reuse, in the order of the graph, and as planned.

    None if the bytes of the model's intermediates are unknown. Any other unknown size has no row.
    """
    memory, naive = report.memory, report.memory.naive
    if reason_without_totals(report) or naive is None:
        return None
    # The graph is that of the file or, for a target, the one that ONNX Runtime optimized.
    owner = "the file" if report.target == "portable" else "ONNX Runtime"
    sizes = {
        "without reuse": naive,
        f"in the order of {owner}": report.original_planned,
        "as planned": memory.planned,
    }
    rows = [*_size_rows(sizes, without_reuse=naive)]
    if estimate := report.training_estimate:  # without reuse, and as planned
        step_sizes = {name: estimate.get(key) for key, name in _TRAINING_NAMES.items()}
        rows += _size_rows(step_sizes, without_reuse=estimate.get("raw", 0))
    caption = f"partial: {known_intermediates(report)}" if report.partial else ""
    graph = (
        "" if report.target == "portable" else f" of the graph optimized for {report.target}"
    )
    heads = doc.columns(f"Intermediates{graph}", ">size", ">saved")
    return doc.Table(heads, tuple(rows), caption)


def _size_rows(
    sizes: Mapping[str, int | None], without_reuse: int
) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the size and the saving against ``without_reuse`` of each known size.

    The saving is empty if the size is ``without_reuse``.
    """
    for name, size in sizes.items():
        if size is not None:
            saved = without_reuse - size
            yield name, format_size(size), format_share(saved, without_reuse) if saved else ""


_PROCESS_ROWS: Mapping[str, str] = {
    "whole process": "the most that a process takes that runs the model again and again; the sum of the "
    "three rows below",
    "  interpreter and runtime": "Python, NumPy and ONNX Runtime after their import, before a model is loaded",
    "  inputs and kept outputs": "the arrays of the inputs, and what the outputs of the last run add if the "
    "caller keeps them until the next one returns",
    "  model, while running": "the most that the session and its runs add",
    "model, while loading": "the most that the session has added when it is created",
    "private, after a run": "of what the model added, bytes that no other process can share",
    "mapped files (evictable)": "of what the model added, pages of files such as weights and libraries, "
    "which processes share and the system can drop",
    "on the CUDA device": "bytes on CUDA devices, the context included",
}
"""Name of each row of `process_table` about memory, as far as it is indented, and its definition."""

_MEASURED = "measured"
"""The certainty of the process memory of runs."""

_MIN_SAVING = 0.01
"""Share of the process memory; smaller differences are within the noise of measuring."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The runs of the original and of the written model, both with the bytes of their process.

    Attributes:
        certainty: whether these bytes were measured or predicted, with the margin.
        peaks: the bytes and times of both runs.
        processes: the bytes of both processes.
    """

    certainty: str
    peaks: tuple[Peaks, Peaks]
    processes: tuple[ProcessBytes, ProcessBytes]


def _comparison(report: Report) -> _Comparison | None:
    """Return the measured runs of both models, else the predicted ones, else None."""
    runtime = report.runtime
    if runtime is None:
        return None
    margin = f"predicted, usually within {PROFILE.process_margin:.0%}"
    for certainty, sides in ((_MEASURED, runtime.observed), (margin, runtime.predicted)):
        before, after = sides.get("original"), sides.get("optimized")
        if before and after and before.process and after.process:
            return _Comparison(certainty, (before, after), (before.process, after.process))
    return None


def process_table(report: Report) -> doc.Table | None:
    """Return the memory of the process before and after, with files and time; None if it is unknown."""
    comparison = _comparison(report)
    if comparison is None or report.runtime is None:
        return None
    predicted = report.runtime.predicted
    old, new = (
        _process_sizes(report, process, predicted.get(side))
        for side, process in zip(("original", "optimized"), comparison.processes, strict=True)
    )
    # A size that was measured on one side only cannot be compared.
    rows = [_change_row(n, old[n], new[n], format_size) for n in old if n in new]
    rows += _file_and_time_rows(report, *comparison.peaks)
    topic = f"Process memory ({comparison.certainty})"
    is_written = bool(report.files.written) or comparison.certainty == _MEASURED
    after = ">after" if is_written else ">if optimized"
    return doc.Table(doc.columns(topic, ">before", after, ">change"), tuple(rows))


def process_meanings(table: doc.Table) -> doc.Meanings:
    """Return the definitions of the rows of `process_table`."""
    rows = {name for name, *_ in table.rows}
    return doc.Meanings(
        tuple(
            f"{name.strip()}: {text}" for name, text in _PROCESS_ROWS.items() if name in rows
        )
    )


def reason_for_no_saving(report: Report) -> str:
    """Return a clause that says why neither loading nor running needs noticeably less memory than before.

    Empty if one of both does, or if the memory of the process was neither measured nor predicted.
    """
    comparison = _comparison(report)
    if comparison is None:
        return ""
    before, after = comparison.processes
    pairs = ((before.load, after.load), (before.run, after.run))
    if any(new < (1 - _MIN_SAVING) * old for old, new in pairs):
        return ""
    old_peak, new_peak = (peaks.first_run_peak for peaks in comparison.peaks)
    if old_peak is None or new_peak is None:
        return "the process needs as much memory as before"
    graph = "its optimized graph"
    has_intermediates_table = not reason_without_totals(report)
    # For the target ``portable`` that table counts the graph in the file, before ONNX Runtime fuses nodes and
    # folds constants. Its figures may be higher than the two peaks here.
    if has_intermediates_table and report.target == "portable":
        graph += " (the table below is for the graph in the file)"
    if new_peak >= old_peak:
        return (
            f"ONNX Runtime by itself needs only {format_size(old_peak)} for intermediates and outputs "
            f"of {graph}, which the plan does not lower"
        )
    saving = old_peak - new_peak
    sentence = (
        f"of the {format_size(old_peak)} that ONNX Runtime needs for intermediates and outputs of {graph}, "
        f"the plan saves {format_size(saving)}"
    )
    if saving < _MIN_SAVING * max(before.load, before.run):
        return f"{sentence}, less than {_MIN_SAVING:.0%} of the process"
    # Other memory of the process has grown.
    return f"{sentence}, but the process needs as much memory as before"


def origin_of_saving(report: Report) -> str:
    """Return a sentence on what makes the process smaller, if the order of the nodes does not; else empty."""
    planned = report.memory.planned
    is_smaller = _comparison(report) is not None and not reason_for_no_saving(report)
    if not is_smaller:
        return ""
    if report.target != "portable":  # then the graph was optimized, which may save memory too
        return ""
    if planned is None or planned != report.original_planned:  # the order may be what saves
        return ""
    moved = " and weights in a file of their own" if report.external_weights.file else ""
    return f"Session settings{moved} save this, not another order of the nodes."


def _process_sizes(
    report: Report, process: ProcessBytes, predicted: Peaks | None
) -> Mapping[str, int]:
    """Return the memory of a process that runs a model, by the names of `_PROCESS_ROWS`.

    The names with an indent are the parts of the whole process.
    """
    inputs = report.memory.inputs
    # The outputs that a caller keeps cannot be measured: for a measured ``process`` their bytes are predicted.
    predicted_process = predicted.process if predicted else None
    kept = kept_bytes(report.memory.outputs, process, predicted_process)
    sizes = {
        "whole process": whole_process(process, inputs, kept),
        "  interpreter and runtime": PROFILE.imported_process,
        "  inputs and kept outputs": (inputs or 0) + kept,
        "  model, while running": process.run,
        "model, while loading": process.load,
        "private, after a run": process.private,
        "mapped files (evictable)": process.file,
    }
    if process.device is not None:
        sizes["on the CUDA device"] = process.device
    return sizes


def idle_sentence(report: Report) -> str:
    """Return what the arena does between runs, and the private memory and time of the other choice.

    Empty if both ways were not compared.
    """
    idle = report.runtime.idle if report.runtime else None
    if idle is None:
        return ""
    kept, released = (format_size(process.private) for process in (idle.keep, idle.release))
    time = f", and a run takes {idle.time.median:.2f} times as long" if idle.time else ""
    if idle.after_run == "release":
        return (
            f"Between runs the arena is given back: {released} stay private instead of {kept}{time} "
            "as with --idle keep."
        )
    return (
        f"Between runs the arena is kept. With --idle release {released} stay private instead of "
        f"{kept}{time}."
    )


def _file_and_time_rows(
    report: Report, before: Peaks, after: Peaks
) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for the files on disk, and a row for the time of a run, if these are known."""
    files = report.files
    if files.written:
        yield _change_row("files on disk", files.original, files.written, format_size)
    old_time, new_time = comparable_times(before, after)
    if old_time and new_time:
        # The ratio ``new / old`` of further runs of both models in turn, which varies less than single times.
        time_ratio = report.runtime.time if report.runtime else None
        if time_ratio is not None:
            new_time = old_time * time_ratio.median
        yield _change_row("time of a run", old_time, new_time, "{:.3g} ms".format)


def _change_row(
    name: str, old: T, new: T, text: Callable[[T], str]
) -> tuple[str, str, str, str]:
    """Return a figure's name, both values as ``text`` writes them, and the change in percent.

    The change is empty between equal values, ``from nothing`` from 0, and ``0%`` for less than half a percent.
    """
    if new == old:
        return name, text(old), text(new), ""
    if not old:
        return name, text(old), text(new), "from nothing"
    percent = round(100 * (new - old) / old)
    return name, text(old), text(new), f"{percent:+d}%" if percent else "0%"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its definition.

    Attributes:
        name: its name.
        value: the number with its unit, or an expression.
        definition: what it counts.
        saved: the saving against no reuse, in percent; empty if that is meaningless.
        certainty: a key of `CERTAINTY`; empty if none applies.
        chosen: whether it is the level that was planned.
    """

    name: str
    value: str
    definition: str
    saved: str = ""
    certainty: str = ""
    chosen: bool = False


_LONGEST_NUMBER = 24
"""Characters of a value; a longer one is an expression, which is wrapped and has no common right end."""


def figure_blocks(figures: Sequence[Figure]) -> Iterator[doc.Block]:
    """Yield a table with a row for each figure, and their definitions.

    The level that was planned is marked. Savings and certainties have no column if no figure has any.
    """
    has_expression = any(len(figure.value) > _LONGEST_NUMBER for figure in figures)
    # ``>`` aligns a column to the right, for numbers. An expression such as ``2 * batch * seq`` starts at the left.
    size_title = "size" if has_expression else ">size"
    cells_by_title = {
        "": [f"{fig.name}, as planned" if fig.chosen else fig.name for fig in figures],
        size_title: [figure.value for figure in figures],
        ">saved": [figure.saved for figure in figures],
        "certainty": [figure.certainty for figure in figures],
    }
    shown = {title: cells for title, cells in cells_by_title.items() if any(cells)}
    yield doc.Table(doc.columns(*shown), tuple(zip(*shown.values(), strict=True)))
    yield doc.Meanings(tuple(f"{figure.name}: {figure.definition}" for figure in figures))


def memory_figures(report: Report) -> tuple[Figure, ...]:
    """Return the memory of the intermediates: without reuse, at each level, and its bounds.

    ``naive``, the levels and the lower bound are always there, the others only if the report has a number
    or an expression for them. Foldable bytes of 0 are left out, and the order's bound if the order is proved:
    then it equals the lower bound.
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
        meaning = f"{DEFINITIONS['order_bound']} of these nodes"
        figures.append(_figure_with_saving(report, "order bound", memory.order_bound, meaning))
    if report.original_planned is not None:
        owner = "the file" if report.target == "portable" else "the runtime's own graph"
        meaning = f"what this level needs in the node order of {owner}"
        figures.append(
            _figure_with_saving(report, "file order", report.original_planned, meaning)
        )
    return tuple(figures)


def order_note(report: Report) -> str:
    """Return which node orders the rows of the memory figures are for."""
    owner = "file" if report.target == "portable" else "graph that ONNX Runtime optimized"
    if report.chosen_order == "file":
        return f"The nodes stay in the order of the {owner}."
    line = f"The nodes are planned in another order ({report.chosen_order.replace('_', ' ')})."
    if report.original_planned is not None:
        line += f" Only the row 'file order' is for the order of the {owner}."
    return f"{line} A plan for another level may use another order."


def _lower_bound(report: Report) -> Figure:
    """Return the live peak of the planned order, as bytes with their saving, or as an expression.

    No plan of this order is smaller.
    """
    memory, meaning = report.memory, DEFINITIONS["live_peak"]
    if memory.order_proved:
        meaning += "; no other order of these nodes needs less"
    if memory.live_peak is None and "live_peak" in report.symbolic:
        # The expression is the live peak only for dims of at least 1: ``8*batch`` may stand for ``max(8*batch, 8)``.
        meaning += "; dims from 1 on"
        size = report.symbolic["live_peak"]
        certainty = _certainty(report, "lower bound", size)
        return Figure("lower bound", size, meaning, certainty=certainty)
    return _figure_with_saving(report, "lower bound", memory.live_peak, meaning)


def _resident(report: Report) -> Figure:
    """Return the peak with graph outputs counted, as bytes or as an expression.

    The definition names the peak of the file's order too if it differs.
    """
    resident, original = report.memory.resident, report.original_resident
    meaning = DEFINITIONS["resident"]
    if resident is not None and original not in (None, resident):
        meaning += f"; {format_size(original)} in the file's order"
    return _figure(report, "resident", resident, meaning)


def total_figures(report: Report) -> tuple[Figure, ...]:
    """Return the terms of the model's total, and the workspace."""
    terms = (
        _figure(report, name, getattr(report.memory, name), DEFINITIONS[name])
        for name in ("weights", "inputs", "outputs", "planned", "total")
    )
    return (*terms, _workspace(report))


def _workspace(report: Report) -> Figure:
    """Return the scratch memory of kernels, which only a run can measure."""
    peaks = report.runtime and report.runtime.observed.get("optimized")
    if not peaks or peaks.scratch is None:
        return Figure("workspace", UNKNOWN, WORKSPACE)
    return Figure("workspace", format_size(peaks.scratch), WORKSPACE, certainty=OBSERVED)


def certainty_lines(report: Report) -> tuple[str, ...]:
    """Return the definition of each certainty that the figures of a report have."""
    rows = (*memory_figures(report), *total_figures(report))
    words = {row.certainty for row in rows} | {row.value for row in rows}
    return tuple(f"{word}: {meaning}" for word, meaning in CERTAINTY.items() if word in words)


def _figure(report: Report, name: str, size: int | None, meaning: str) -> Figure:
    """Return a figure without a saving.

    A ``size`` of None shows the figure's expression in the report, or that the size is unknown.
    """
    text = report.symbolic.get(name, UNKNOWN) if size is None else format_size(size)
    return Figure(name, text, meaning, certainty=_certainty(report, name, text))


def _figure_with_saving(report: Report, name: str, size: int | None, meaning: str) -> Figure:
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
