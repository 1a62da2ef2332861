"""Packed buffers as text, as a document and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media.json_text import result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.packing.problem_file import Packed


def document(packed: Packed) -> doc.Document:
    """Return how tall the arena is, and what is known of the least height."""
    table = doc.Table(doc.columns("", ">"), tuple(_rows(packed).items()))
    return doc.Document("Packed buffers", (table,))


def _rows(packed: Packed) -> dict[str, str]:
    rows = {
        "buffers": f"{len(packed.problem.buffers)}",
        "height": f"{packed.layout.height}",
        "lower bound": f"{packed.lower_bound}",
        "proved": "yes" if packed.layout.proved else "no",
    }
    if packed.capacity is not None:
        rows["capacity"] = f"{packed.capacity} ({_verdict(packed)})"
    return {**rows, "seconds": f"{packed.seconds:.3f}"}


def _text(packed: Packed) -> str:
    return "\n".join(f"{name:<13}{value}" for name, value in _rows(packed).items())


def _verdict(packed: Packed) -> str:
    if packed.passed:
        return "fits"
    return "no layout fits" if packed.layout.proved else "no layout found that fits"


PACK: Mapping[str, Callable[[Packed], str]] = {
    "text": _text,
    "json": lambda packed: result_line("pack", packed),
}
