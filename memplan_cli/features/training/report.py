"""A training step as a document: what it trains, what it leaves, and what it takes."""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.memory import DEFINITIONS
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import renderers, result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memplan_cli.features.training.step_document import WrittenStep
    from memplan_cli.features.training.train_step import TrainStep

_SHOWN = 12
"""Rows of the longest lists; JSON has them all."""

_FIGURES = ("weights", "inputs", "outputs", "naive", "live_peak", "planned", "total")


def document(written: WrittenStep) -> doc.Document:
    """Return what is trained, what is not and why, and the memory to expect."""
    step = written.step
    nodes, count = len(step.model.graph.node), len(step.parameters)
    trained = f"{count} parameter{'' if count == 1 else 's'} trained"
    return doc.Document(
        (doc.Name(written.path), f": {nodes} nodes, {trained}, loss ", doc.Name(step.loss)),
        (
            *_trained(step),
            *_fixed(step),
            *_memory(written),
            *_next(written),
        ),
    )


def _next(written: WrittenStep) -> Iterator[doc.Block]:
    if not written.missed:
        yield from doc.section(
            "Next", doc.Code((f"memplan optimize {written.path}",), doc.SHELL)
        )


def _trained(step: TrainStep) -> Iterator[doc.Block]:
    per_weight = len(step.state) // len(step.parameters)
    rows: list[tuple[doc.Prose, ...]] = [
        (
            doc.Name(weight.name),
            "x".join(map(str, weight.sizes)),
            f"{prod(weight.sizes):,}",
            _role(step.shared.get(weight.name, 1), per_weight),
        )
        for weight in step.parameters
    ]
    rows += [
        (doc.Name(each.origin), "x".join(map(str, each.sizes)), "", "a running statistic")
        for each in step.running
    ]
    elements = sum(prod(weight.sizes) for weight in step.parameters)
    titles: tuple[str, ...] = ("weight", ">shape", ">elements", "remarks")
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    rest = "weights and statistics" if step.running else "weights"
    table = doc.first_rows(titles, rows[:_SHOWN], len(rows) - _SHOWN, rest)
    yield from doc.section(f"Trained: {elements:,} elements", table)


def _role(readers: int, states: int) -> str:
    words = [f"tied: {readers} nodes read it"] if readers > 1 else []
    words += [f"{states} tensors of state"] if states > 1 else []
    words += ["1 tensor of state"] if states == 1 else []
    return ", ".join(words)


def _fixed(step: TrainStep) -> Iterator[doc.Block]:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in step.fixed.items():
        by_reason[why].append(name)
    rows = [(str(len(names)), why, _joined(names)) for why, names in sorted(by_reason.items())]
    titles = (">weights", "reason", "for example")
    yield from doc.section("Not trained, and why", doc.first_rows(titles, rows, 0, "reasons"))


def _joined(names: Iterable[str]) -> tuple[str | doc.Name, ...]:
    first, *rest = list(names)[:3]
    return (doc.Name(first), *(part for name in rest for part in (", ", doc.Name(name))))


def _memory(written: WrittenStep) -> Iterator[doc.Block]:
    figures = []
    for name in _FIGURES:
        size = getattr(written.memory, name)
        value = written.symbolic.get(name, "unknown") if size is None else format_size(size)
        figures.append(doc.Figure(name.replace("_", " "), value, DEFINITIONS[name]))
    blocks: list[doc.Block] = [doc.Figures(tuple(figures))]
    if any(each.value == "unknown" for each in figures):
        blocks += [
            doc.Paragraph("what is unknown depends on data; a run says it:"),
            doc.Code((f"memplan report {written.path}",), doc.SHELL),
        ]
    yield from doc.section("Memory to expect, in this order", *blocks)


TRAIN_STEP: Mapping[str, Callable[[WrittenStep], str]] = {
    **renderers(document, "text"),
    "json": lambda written: result_line("train-step", written),
}
