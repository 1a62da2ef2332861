"""The result of `train-step`: a training step and its memory, as JSON and as a document."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.json_types import Count  # noqa: TC001 - a type to read by
from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.quantities import counted, format_size
from memplan_cli.core.results.memory import Memory  # noqa: TC001 - a type to read by
from memplan_cli.core.results.rewrites import RecomputeSummary
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.features.training.train_step import TrainStep  # noqa: TC001 - a type to read by
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.hints import budget_message
from memplan_cli.reporting.media import result_renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A training step, which was written unless it misses its budget.

    Attributes:
        path: its file.
        step: the training step.
        memory: its bytes at level 2, in its own order.
        symbolic: expressions for bytes that are null because a size is symbolic.
        recompute: nodes that run twice, and whether that met the budget.
        parameters: the trained weights.
        loss: the tensor of the loss.
        running: statistics that are updated without gradients.
        state: the inputs of the optimizer's state.
        tied: trained weights that several nodes read, and how many.
        not_trained: weights that are not trained, and why.
        written: whether the file was written.
    """

    json_keys: ClassVar[Keys] = (
        "path",
        "nodes",
        "parameters",
        ("loss", "step.loss"),
        "running",
        "state",
        ("tied", "step.shared"),
        ("not_trained", "step.fixed"),
        "memory",
        "symbolic",
        "recompute",
        "written",
    )

    path: str
    step: TrainStep
    memory: Memory
    symbolic: Mapping[str, str]
    recompute: RecomputeSummary = field(default_factory=RecomputeSummary)

    __repr__ = one_line_repr

    @property
    def missed(self) -> str:
        """Return by how much the smallest step exceeds its budget; empty: it was written."""
        return budget_message(self.memory.resident, self.recompute)

    @property
    def written(self) -> bool:
        """Whether the step is within its budget, so that its file was written."""
        return not self.missed

    @property
    def nodes(self) -> Count:
        """Return the number of nodes."""
        return len(self.step.model.graph.node)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the trained weights."""
        return tuple(parameter.name for parameter in self.step.parameters)

    @property
    def running(self) -> tuple[str, ...]:
        """Return the names of the statistics that are updated without gradients."""
        return tuple(parameter.origin for parameter in self.step.running)

    @property
    def state(self) -> tuple[str, ...]:
        """Return the inputs of the optimizer's state."""
        return tuple(self.step.state)


_MAX_ROWS = 12
"""Rows of the table of weights; JSON has them all."""

_FIGURES: Mapping[str, str] = {
    "weights": "weights and constants",
    "inputs": "inputs",
    "outputs": "outputs",
    "naive": "intermediates without reuse",
    "live_peak": "intermediates live at the peak",
    "planned": "intermediates, planned",
    "total": "total: weights, inputs, outputs, planned",
}
"""Fields of `Memory` that the document shows, and their names in it."""


def document(written: WrittenStep) -> doc.Document:
    """Return a document of what is trained, what is not and why, and the memory to expect."""
    step = written.step
    trained = f"{counted(len(step.parameters), 'parameter')} trained"
    title = (
        doc.Name(written.path),
        f": {written.nodes} nodes, {trained}, loss ",
        doc.Name(step.loss),
    )
    return doc.Document(
        title, (*_trained_weights(step), *_fixed_weights(step), *_memory(written))
    )


def _trained_weights(step: TrainStep) -> Iterator[doc.Block]:
    """Yield a table of the updated weights and running statistics.

    The column of remarks is left out if it is empty.
    """
    rows = _rows_of_weights(step)
    heads: tuple[str, ...] = ("weight", ">shape", ">elements", "remarks")
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    noun = "weights and statistics" if step.running else "weights"
    table = doc.first_rows(heads, rows, noun, _MAX_ROWS)
    elements = sum(prod(weight.sizes) for weight in step.parameters)
    yield from doc.section(f"Trained: {elements:,} elements", table)


def _rows_of_weights(step: TrainStep) -> list[tuple[doc.Prose, ...]]:
    """Return name, shape, elements and remarks of each updated weight and running statistic."""
    # The optimizer keeps the same number of tensors for each parameter: two for Adam.
    state_count = len(step.state) // len(step.parameters)
    rows: list[tuple[doc.Prose, ...]] = [
        (
            doc.Name(weight.name),
            "x".join(map(str, weight.sizes)),
            f"{prod(weight.sizes):,}",
            _remarks(step.shared.get(weight.name, 1), state_count),
        )
        for weight in step.parameters
    ]
    rows += [
        (
            doc.Name(statistic.origin),
            "x".join(map(str, statistic.sizes)),
            "",  # the sum of this column is the number of trained elements
            "a running statistic",
        )
        for statistic in step.running
    ]
    return rows


def _remarks(reader_count: int, state_count: int) -> str:
    """Return the number of nodes that read a weight, if several, and of its tensors of state."""
    remarks = [f"tied: {reader_count} nodes read it"] if reader_count > 1 else []
    if state_count:
        remarks.append(f"{state_count} tensor{'s' if state_count > 1 else ''} of state")
    return ", ".join(remarks)


def _fixed_weights(step: TrainStep) -> Iterator[doc.Block]:
    """Yield a table of the reasons why weights are not trained, with up to three weights each."""
    names_by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in step.fixed.items():
        names_by_reason[reason].append(name)
    rows = [
        (str(len(names)), reason, _joined_names(names[:3]))
        for reason, names in sorted(names_by_reason.items())
    ]
    heads = (">weights", "reason", "for example")
    table = doc.first_rows(heads, rows, "reasons")
    yield from doc.section("Not trained, and why", table)


def _joined_names(names: Sequence[str]) -> tuple[str | doc.Name, ...]:
    """Return names, at least one, with commas between them."""
    return (
        doc.Name(names[0]),
        *(part for name in names[1:] for part in (", ", doc.Name(name))),
    )


def _memory(written: WrittenStep) -> Iterator[doc.Block]:
    """Yield the step's memory: bytes, an expression if a size is symbolic, or "unknown".

    If a size is unknown, a command that runs the step to measure it follows.
    """
    rows = []
    for name in _FIGURES:
        size = getattr(written.memory, name)
        if size is not None:
            value = format_size(size)
        elif name in written.symbolic:
            value = f"{written.symbolic[name]} bytes"
        else:
            value = "unknown"
        rows.append((_FIGURES[name], value))
    blocks: list[doc.Block] = [doc.Table(doc.columns("", ""), tuple(rows))]
    if any(value == "unknown" for _, value in rows):
        blocks += [
            doc.Paragraph("Unknown sizes depend on data. To measure them in a run:"),
            doc.Code((f"memplan report {written.path}",), doc.SHELL),
        ]
    yield from doc.section("Memory of the training step, in this node order", *blocks)


TRAIN_STEP: Mapping[str, Callable[[WrittenStep], str]] = result_renderers(
    "train-step", document, "text"
)
