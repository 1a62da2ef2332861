"""`memplan simulate`: what dynamic allocators reserve, next to the static plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import result_renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.runtime.simulate.allocators import AllocatorComparison

_RESERVED_MEANING = (
    "reserved: what the allocator takes from the system for the intermediates and outputs of one "
    "run; never used: the share of it that no tensor occupies. The static plan counts "
    "intermediates only, in the best order found."
)

_ORT_MEANING = (
    "ort: ONNX Runtime's arena on the graph of the file. By default ONNX Runtime fuses nodes "
    "first and may need less: `memplan settings --measure` shows that."
)


def comparison_document(comparison: AllocatorComparison) -> doc.Document:
    """Return a row for the static plan and for each allocator."""
    planned = "unknown" if comparison.planned is None else format_size(comparison.planned)
    rows = [("static plan, level 2", planned, "")]
    rows += [
        (run.allocator, format_size(run.held), f"{run.fragmentation:.1%}")
        for run in comparison.simulations
    ]
    heads = doc.columns("allocator", ">reserved", ">never used")
    meanings = [_RESERVED_MEANING]
    if any(run.allocator == "ort" for run in comparison.simulations):
        meanings.append(_ORT_MEANING)
    soft = (doc.Paragraph(meaning, "soft") for meaning in meanings)
    return doc.Document(
        "Dynamic allocators and the static plan, for one run",
        (doc.Table(heads, tuple(rows)), *soft),
    )


SIMULATE: Mapping[str, Callable[[AllocatorComparison], str]] = result_renderers(
    "simulate", comparison_document, "text"
)
