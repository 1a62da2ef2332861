"""`memplan why --process`: the predicted memory of a process, divided by purpose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.memory import BoundDim  # noqa: TC001 - a type to read by
from memplan_cli.core.results.observations import ProcessBytes  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import SORTED, SPARSE
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.hints import assumed_lines
from memplan_cli.reporting.media import renderers, result_json
from memplan_cli.runtime.process.parts import Part, kept_bytes, whole_process
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class ProcessBreakdown:
    """The predicted process of a model, divided into parts.

    Attributes:
        model: the model's file.
        runtime: the runtime and its version.
        process: the bytes of the process.
        inputs, outputs: bytes of the model's inputs, and of its outputs.
        parts: the bytes by purpose, largest first.
        bindings: the numbers of dimensions that the prediction holds for.
    """

    model: str
    runtime: str
    process: ProcessBytes
    inputs: int
    outputs: int
    parts: tuple[Part, ...]
    bindings: Mapping[str, BoundDim] = field(
        default_factory=dict, metadata={**SPARSE, **SORTED}
    )

    __repr__ = one_line_repr

    @property
    def assumed(self) -> dict[str, int]:
        """Return the dimensions whose numbers are assumed."""
        return {n: dim.value for n, dim in self.bindings.items() if dim.source == "assumed"}


_SIZES = ("load", "run", "private", "file")

_HEADS = ("part", ">load", ">run", ">private", "removed by")

_MEANINGS = (
    "load: highest resident memory while the session is created; run: the same including the "
    "first runs; private: memory after the runs that is not shared with other processes. "
    "Predicted for one thread, beyond a process that has imported the runtime only"
)


def process_document(breakdown: ProcessBreakdown) -> doc.Document:
    """Return the memory of the process, and a row per part with the option that removes it."""
    sizes = breakdown.process
    kept = kept_bytes(breakdown.outputs, sizes)
    total = format_size(whole_process(sizes, breakdown.inputs, kept))
    beyond = ", ".join(f"{name} {format_size(getattr(sizes, name))}" for name in _SIZES)
    rows = tuple(map(_part_row, breakdown.parts))
    return doc.Document(
        (
            doc.Name(breakdown.model),
            f": about {total}, predicted, usually within {PROFILE.process_margin:.0%}",
        ),
        (
            *map(doc.Paragraph, assumed_lines(breakdown.assumed)),
            doc.Paragraph(
                f"interpreter and runtime {format_size(PROFILE.imported_process)}, inputs and kept outputs "
                f"{format_size(breakdown.inputs + kept)}, and the model: {beyond}"
            ),
            doc.Table(doc.columns(*_HEADS), rows),
            doc.Paragraph(f"{_MEANINGS} ({breakdown.runtime})", "soft"),
        ),
    )


def _part_row(part: Part) -> tuple[doc.Prose, ...]:
    sizes = (
        format_size(size) if size else "-" for size in (part.load, part.run, part.private)
    )
    return (doc.Name(part.name), *sizes, part.remedy or "-")


PROCESS_RENDERERS: Mapping[str, Callable[[ProcessBreakdown], str]] = {
    **renderers(process_document, "text", "markdown"),
    "json": lambda breakdown: result_json("why-process", breakdown),
}
