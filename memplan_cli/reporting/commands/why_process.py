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
from memplan_cli.reporting.hints import assumed_dims, assumed_lines
from memplan_cli.reporting.media import result_renderers
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


_HEADS = ("part", ">load", ">run", ">private", "by")

_MEANINGS = (
    "load: highest resident memory while the session is created; run: the same including the "
    "first runs; private: memory after the runs that no other process shares; by: the command "
    "below that removes the part. Predicted for one thread."
)


def process_document(breakdown: ProcessBreakdown) -> doc.Document:
    """Return the memory of the process, and a row for each part.

    A row has the number of the command that removes the part, in the list of `removing_commands`. The
    caller prints these commands below the document.
    """
    sizes = breakdown.process
    kept = kept_bytes(breakdown.outputs, sizes)
    total = format_size(whole_process(sizes, breakdown.inputs, kept))
    commands = removing_commands(breakdown)
    rows: list[tuple[doc.Prose, ...]] = [
        (
            doc.Name(part.name),
            *map(_size_or_dash, (part.load, part.run, part.private)),
            f"[{commands.index(command) + 1}]" if (command := removing_command(part)) else "",
        )
        for part in breakdown.parts
    ]
    whole = tuple(_size_or_dash(getattr(sizes, name)) for name in ("load", "run", "private"))
    return doc.Document(
        (doc.Name(breakdown.model), f": a process needs about {total}"),
        (
            *map(doc.Paragraph, assumed_lines(assumed_dims(breakdown.bindings))),
            doc.Paragraph(
                f"Predicted, usually within {PROFILE.process_margin:.0%}. Of it "
                f"{format_size(PROFILE.imported_process)} for the interpreter and the runtime, "
                f"{format_size(breakdown.inputs + kept)} for inputs and kept outputs, the rest "
                "for the model:"
            ),
            doc.Table(doc.columns(*_HEADS), (*rows, (doc.Name("all parts"), *whole, ""))),
            doc.Paragraph(_MEANINGS, "soft"),
        ),
        f"{breakdown.runtime.replace('onnxruntime', 'ONNX Runtime')}, CPU",
    )


def removing_command(part: Part) -> tuple[str, ...]:
    """Return the words of the command, without the model, that removes a part; none if none does."""
    if not part.remedy:
        return ()
    if part.remedy.startswith("memplan settings"):
        return ("settings",)
    return ("optimize", "--target", "cpu") if "--target cpu" in part.remedy else ("optimize",)


def removing_commands(breakdown: ProcessBreakdown) -> list[tuple[str, ...]]:
    """Return the commands that remove parts, each once, those of the largest parts first."""
    commands = map(removing_command, breakdown.parts)
    return list(dict.fromkeys(filter(None, commands)))


def _size_or_dash(size: int) -> str:
    return format_size(size) if size else "-"


PROCESS_RENDERERS: Mapping[str, Callable[[ProcessBreakdown], str]] = result_renderers(
    "why-process", process_document, "text", "markdown"
)
