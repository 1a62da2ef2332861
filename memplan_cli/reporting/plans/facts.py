"""The rows of a report, in the words that text, Markdown and HTML share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_share, format_size
from memplan_cli.core.results.figures import (
    CERTAINTY,
    DEFINITIONS,
    OBSERVED,
    UNKNOWN,
    WORKSPACE,
)
from memplan_cli.core.serialization import to_json
from memplan_cli.planning.print_log import refusals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.observations import Peaks
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report, RuntimeFacts

LEVELS: Mapping[str, str] = {
    "0": "a dead tensor's memory is taken over whole, by one of the same dtype and shape",
    "1": "by one of the same dtype that is not larger than the slot",
    "2": "byte offsets in one arena; views and safe in-place results share bytes",
}

SLOT_BOUND = "no reuse of whole slots at this level takes less, in this order"

MEASURES: Mapping[str, str] = {
    "first_run_peak": "most bytes of intermediates and outputs live in the first run",
    "steady_peak": "the same from the second run on, the memory pattern's block included",
    "held": "what the runtime's arena took from the system, weights included",
    "held, weights aside": "the same without the weights that lie in the arena",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A number, its definition, and what it saves against the naive sum."""

    name: str
    size: str
    saved: str
    definition: str
    chosen: str = ""
    """A mark on the level that was planned, else empty."""
    certainty: str = ""
    """How sure the number is, a word of `figures.CERTAINTY`; empty where none is said."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measure of the runtime: predicted and observed, before and after."""

    name: str
    predicted_original: str
    observed_original: str
    predicted_optimized: str
    observed_optimized: str
    definition: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as it is drawn."""
        return (
            self.name.replace("_", " "),
            self.predicted_original,
            self.observed_original,
            self.predicted_optimized,
            self.observed_optimized,
            self.definition,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """Tensors that took no memory over, for one reason."""

    reason: str
    count: int
    bytes: int
    examples: tuple[str, ...]


def headline(report: Report) -> str:
    """Return the one line that says what was planned."""
    model = report.model
    nodes = f"{model.nodes} nodes" if model.blocks == 1 else _nested(model.nodes, model.blocks)
    return (
        f"{report.phase} phase, level {report.level}, {nodes}{_whose_graph(report)}, "
        f"{model.intermediates} intermediates, {report.reuses} reuses"
    )


def _whose_graph(report: Report) -> str:
    """Return of which graph the numbers are, where it is not the file's own."""
    if report.target == "portable":
        return ""
    return f" of the graph that the runtime optimised for {report.target}"


def _nested(nodes: int, blocks: int) -> str:
    return f"{nodes} nodes in {blocks} blocks"


def verdict(report: Report) -> str:
    """Return what the plan saves, in one line, or why there is no such number."""
    memory = report.memory
    if memory.naive is None or memory.planned is None:
        if report.partial:
            share = f"{100 * report.coverage:.1f}%"
            return f"only {share} of the intermediates have a known size: no totals"
        return "sizes depend on symbols: bind them with --dim to get numbers"
    if not memory.naive and not memory.planned and not report.partial:
        return "no intermediate has any bytes"
    saved = format_share(memory.naive - memory.planned, memory.naive)
    planned, naive = format_size(memory.planned), format_size(memory.naive)
    partial = " (partial)" if report.partial else ""
    return f"{planned} instead of {naive}{_in_whose_graph(report)}: {saved} saved{partial}"


def _in_whose_graph(report: Report) -> str:
    return (
        "" if report.target == "portable" else f" in the runtime's graph for {report.target}"
    )


def memory_rows(report: Report) -> tuple[Row, ...]:
    """Return naive, the levels and the bound: the intermediates' memory."""
    naive = report.memory.naive
    rows = [_row(report, "naive", naive, DEFINITIONS["naive"], naive)]
    for level, meaning in LEVELS.items():
        size = report.levels.get(level)
        row = _row(report, f"level {level}", size, meaning, naive)
        chosen = "planned" if level == str(report.level) else ""
        rows.append(replace(row, chosen=chosen))
    bound = DEFINITIONS["live_peak"]
    if report.memory.order_proved:
        bound += "; no order needs less"
    peak = report.memory.live_peak
    if peak is None and "live_peak" in report.symbolic:
        text = report.symbolic["live_peak"]
        row = Row("lower bound", text, "", f"{bound}; dims from 1 on")
    else:
        row = _row(report, "lower bound", peak, bound, naive)
    rows.append(replace(row, certainty=_sure(report, "live_peak", row.size)))
    if report.slot_bound is not None:
        row = _row(report, "slot bound", report.slot_bound, SLOT_BOUND, naive)
        rows.append(replace(row, certainty=_sure(report, "live_peak", row.size)))
    if report.memory.order_bound is not None and not report.memory.order_proved:
        meaning = DEFINITIONS["order_bound"]
        rows.append(_row(report, "order bound", report.memory.order_bound, meaning, naive))
    if report.original_planned is not None:
        whose = "the file" if report.target == "portable" else "the runtime's own graph"
        meaning = f"what this level needs in the order of {whose}"
        rows.append(_row(report, "file order", report.original_planned, meaning, naive))
    return tuple(rows)


def total_rows(report: Report) -> tuple[Row, ...]:
    """Return the whole model's memory, term by term; of a forward one, what training takes."""
    names = ("weights", "inputs", "outputs", "planned", "total")
    terms = tuple(
        _row(report, name, getattr(report.memory, name), DEFINITIONS[name], None)
        for name in names
    )
    training = (
        Row(name, format_size(report.training_estimate[key]), "", meaning)
        for key, (name, meaning) in _TRAINING.items()
        if key in report.training_estimate
    )
    return (*terms, *_workspace(report), *training)


def _workspace(report: Report) -> tuple[Row, ...]:
    """Return what kernels take besides, which nobody knows before a run."""
    peaks = report.runtime and report.runtime.observed.get("optimized")
    size = peaks.scratch if peaks else None
    if size is None:
        return (Row("workspace", UNKNOWN, "", WORKSPACE),)
    return (Row("workspace", format_size(size), "", WORKSPACE, certainty=OBSERVED),)


_TRAINING: Mapping[str, tuple[str, str]] = {
    "raw": (
        "to train",
        "intermediates and gradients of a training step of this forward model, no reuse",
    ),
    "optimized": (
        "to train, reused",
        "the same in slots as large as the largest that they hold (Caffe's dry run)",
    ),
}


def _row(report: Report, name: str, size: int | None, meaning: str, naive: int | None) -> Row:
    text = report.symbolic.get(name, UNKNOWN) if size is None else format_size(size)
    sure = _sure(report, name, text)
    if size is None or naive is None or name == "naive":
        return Row(name, text, "", meaning, certainty=sure)
    return Row(name, text, format_share(naive - size, naive), meaning, certainty=sure)


def _sure(report: Report, name: str, text: str) -> str:
    """Return how sure a number is; levels are as sure as the plan, unknown says so itself."""
    if text == UNKNOWN or name == "order bound":
        return ""
    return report.certainty.get(name, report.certainty.get("planned", ""))


def certainty_lines(report: Report) -> tuple[str, ...]:
    """Return what the words beside the numbers mean, those that are there."""
    rows = (*memory_rows(report), *total_rows(report))
    words = {row.certainty for row in rows} | {row.size for row in rows}
    return tuple(f"{word}: {meaning}" for word, meaning in CERTAINTY.items() if word in words)


EVIDENCE_HEADER = (
    "", ">original: predicted", ">observed", ">optimized: predicted", ">observed", "meaning",
)  # fmt: skip
"""Titles of `Evidence.cells`; ``>`` is for columns of numbers."""


def evidence_rows(runtime: RuntimeFacts | None) -> tuple[Evidence, ...]:
    """Return predicted and observed side by side; nothing where nothing was run."""
    if runtime is None or not (runtime.predicted or runtime.observed):
        return ()
    rows = (
        Evidence(
            name,
            _predicted(runtime.predicted.get("original"), name),
            _observed(runtime.observed.get("original"), name),
            _predicted(runtime.predicted.get("optimized"), name),
            _observed(runtime.observed.get("optimized"), name),
            meaning,
        )
        for name, meaning in MEASURES.items()
    )
    return tuple(row for row in rows if set(row.cells[1:-1]) != {size_or_dash(None)})


def _predicted(peaks: Peaks | None, name: str) -> str:
    """Return a prediction: of the arena, it leaves the weights out."""
    if peaks is None or name == "held":
        return size_or_dash(None)
    return size_or_dash(peaks.held if name == "held, weights aside" else getattr(peaks, name))


def _observed(peaks: Peaks | None, name: str) -> str:
    if peaks is None:
        return size_or_dash(None)
    if name != "held, weights aside":
        return size_or_dash(getattr(peaks, name))
    known = peaks.held is not None and peaks.weights is not None
    return size_or_dash((peaks.held or 0) - (peaks.weights or 0) if known else None)


def size_or_dash(size: int | None) -> str:
    """Return a size for people; a dash where there is none."""
    return "-" if size is None else format_size(size)


def refused(plan: Plan) -> tuple[Refused, ...]:
    """Return what took no memory over, by reason, most bytes first.

    Only sizes that are numbers are summed.
    """
    fixed = {arena.id for arena in plan.arenas if arena.unit == "1"}
    found: dict[str, list[tuple[int, str]]] = {}
    for tensor, reason in refusals(plan.tensors):
        size = tensor.bytes if tensor.arena in fixed else 0
        found.setdefault(reason, []).append((size, tensor.id))
    for refusal in plan.report.unplanned:
        if refusal.name not in plan.by_id:
            found.setdefault(refusal.reason, []).append((0, refusal.name))
    rows = [
        Refused(
            reason,
            len(members),
            sum(size for size, _ in members),
            tuple(name for _, name in sorted(members, key=lambda m: (-m[0], m[1]))[:3]),
        )
        for reason, members in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.reason)))


def settings_lines(runtime: RuntimeFacts | None) -> tuple[str, ...]:
    """Return the runtime's options for the written model, ``scope.key = value``."""
    if runtime is None or runtime.settings is None:
        return ()
    return tuple(
        f"{scope}.{key} = {value}"
        for scope, options in to_json(runtime.settings).items()
        if scope != "io_binding"  # a line for each donated pair is in its own section
        for key, value in options.items()
    )


def validation_line(report: Report) -> str:
    """Return the verdict of the comparison, or that there was none."""
    checked = report.validation
    if checked is None:
        return "not validated"
    words = [f"validation {checked.status} on {checked.provider}"]
    if checked.bit_identical is not None:
        words.append("bit for bit" if checked.bit_identical else "outputs differ")
    if checked.replay is not None:
        words.append(f"replay {checked.replay}")
    if checked.donated is not None:
        words.append(f"two steps with donated buffers {checked.donated}")
    return ", ".join(words)
