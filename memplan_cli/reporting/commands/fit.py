"""What fits into memory, as a document: values of dims, and what each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.totals import expression
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import renderers
from memplan_cli.reporting.media.json_text import result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.planning.fit import Fit, Need


def document(fit: Fit) -> doc.Document:
    """Return the answer, what it needs, and what the next value would need."""
    fixed = "".join(f", {name}={value}" for name, value in fit.dims.items())
    overhead = format_size(fit.overhead)
    return doc.Document(
        (doc.Name(fit.model), fixed),
        (
            doc.Paragraph(f"{format_size(fit.memory)} of memory, {overhead} of it overhead"),
            *_answer(fit),
            *_confirmed(fit),
            *(doc.Note("warning", warning) for warning in fit.warnings),
        ),
    )


def _answer(fit: Fit) -> Iterator[doc.Block]:
    heads = (*(f">{name}" for name in fit.unknown), ">needs", ">with one more")
    rows = tuple(
        (
            *(str(point.dims[name]) for name in fit.unknown),
            _needed(point.need, fit),
            _needed(point.beyond, fit),
        )
        for point in fit.points
    )
    if rows:
        parts = _terms(fit.points[0].need) if len(rows) == 1 else ""
        yield doc.Table(doc.columns(*heads), rows, parts)
    elif fit.least is not None:
        smallest = binding_text(dict.fromkeys(fit.unknown, 1))
        yield doc.Paragraph(
            f"nothing fits: {smallest} needs {_needed(fit.least, fit)}", "verdict"
        )
        yield doc.Paragraph(_terms(fit.least), "soft")
    else:
        yield doc.Paragraph("nothing fits", "verdict")
    if fit.expressions:
        yield doc.Paragraph(f"one plan for all values: {expression(fit.expressions)} bytes")


def _confirmed(fit: Fit) -> Iterator[doc.Block]:
    seen = fit.confirmed
    if seen is None:
        return
    total = seen.total(fit.overhead)
    verdict = "fits" if total <= fit.memory else "does not fit"
    dims, size = binding_text(seen.dims), format_size(total)
    tried = f", after {seen.runs - 1} larger" if seen.runs > 1 else ""
    yield doc.Paragraph(f"run on {seen.provider} with {dims}{tried}: {size}, {verdict}")
    what = _TAKEN[seen.of]
    yield doc.Paragraph(f"{format_size(seen.taken)} {what}", "soft")


_TAKEN: Mapping[str, str] = {
    "process": "of the process at its highest",
    "arena": "reserved by the arena, weights included",
}


def _needed(need: Need | None, fit: Fit) -> str:
    return "-" if need is None else format_size(need.total + fit.overhead)


def _terms(need: Need) -> str:
    if need.process is not None:
        return f"process {format_size(need.process)}, inputs {format_size(need.inputs)}"
    return ", ".join(
        f"{name} {format_size(getattr(need, name))}"
        for name in ("weights", "inputs", "outputs", "planned")
    )


FIT: Mapping[str, Callable[[Fit], str]] = {
    **renderers(document, "text"),
    "json": lambda fit: result_line("fit", fit),
}
