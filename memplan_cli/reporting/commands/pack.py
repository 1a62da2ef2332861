"""`memplan pack`: the layout of the packed buffers, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import result_renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.packing.problem_file import PackingResult


def packing_document(result: PackingResult) -> doc.Document:
    """Return the height of the arena next to its lower bound, and what is proved."""
    layout = result.layout
    sizes = {"height": layout.height, "lower bound": result.lower_bound}
    if result.capacity is not None:
        sizes["capacity"] = result.capacity
    rows = tuple((name, f"{size:,}", format_size(size)) for name, size in sizes.items())
    return doc.Document(
        f"{counted(len(result.problem.buffers), 'buffer')} in one arena",
        (
            doc.Table(doc.columns("", ">bytes", ">"), rows),
            *_checks(result),
            doc.Paragraph(f"The search took {result.seconds:.3f} s.", "soft"),
        ),
    )


def _checks(result: PackingResult) -> Iterator[doc.Block]:
    """Yield whether the layout fits into the capacity, and whether its height is optimal."""
    proved = result.layout.proved
    if result.capacity is not None:
        reason = "no layout fits" if proved else "no layout was found that fits"
        text = (
            "The layout fits into the capacity." if result.passed else f"Capacity: {reason}."
        )
        yield doc.Check(passed=result.passed, text=text)
    if proved:
        yield doc.Check(passed=True, text="No layout is smaller: this is proved.")
    else:
        yield doc.Note("note", "a smaller layout may exist: the height is not proved")


PACK: Mapping[str, Callable[[PackingResult], str]] = result_renderers(
    "pack", packing_document, "text"
)
