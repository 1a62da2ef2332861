"""`memplan fit`: the largest values of dims that fit a memory size, and what each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.totals import expression
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import renderers, result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.planning.fit import Fit, Need


def fit_document(fit: Fit) -> doc.Document:
    """Return the largest values, their memory and that of the next larger value, and the run."""
    fixed_dims = "".join(f", {name}={value}" for name, value in fit.dims.items())
    base = format_size(fit.overhead - fit.other_imports)
    limit = f"memory: {format_size(fit.memory)}, of which {base} for the interpreter and the runtime"
    if fit.of == "process":
        others = format_size(fit.other_imports)
        limit += f", and {others} for what else the process imports (--overhead)"
    return doc.Document(
        (doc.Name(fit.model), fixed_dims),
        (
            doc.Paragraph(limit),
            *_largest_values(fit),
            *_margin(fit),
            *_confirmation(fit),
            *(doc.Note("warning", warning) for warning in fit.warnings),
        ),
    )


def _largest_values(fit: Fit) -> Iterator[doc.Block]:
    """Yield a row for each point of the answer, or what the smallest values need if none fits.

    A point has a value for each unknown dim. Its last cell is the need if the first unknown dim is
    larger by one: a dash if no machine has so much. If there is only one point, the caption gives
    the terms of its need.
    """
    heads = (*(f">{name}" for name in fit.unknown), ">needs", ">with one more")
    rows = tuple(
        (
            *(str(point.dims[name]) for name in fit.unknown),
            format_size(point.total + fit.overhead),
            # Unlike `total`, `beyond` contains the overhead already.
            "-" if point.beyond is None else format_size(point.beyond),
        )
        for point in fit.points
    )
    if rows:
        caption = _breakdown(fit.points[0]) if len(rows) == 1 else ""
        yield doc.Table(doc.columns(*heads), rows, caption)
    elif fit.least is not None:
        smallest = binding_text(dict.fromkeys(fit.unknown, 1))
        yield doc.Paragraph(
            f"nothing fits: {smallest} needs {format_size(fit.least.total + fit.overhead)}",
            "verdict",
        )
        yield doc.Paragraph(_breakdown(fit.least), "soft")
    else:
        yield doc.Paragraph("nothing fits", "verdict")
    if fit.expressions:
        yield doc.Paragraph(f"total for any value: {expression(fit.expressions)} bytes")


def _margin(fit: Fit) -> Iterator[doc.Block]:
    """Yield how far the need may be from that of a run, unless a run confirmed the answer."""
    if fit.margin is not None and fit.points and fit.confirmed is None:
        text = (
            f"Needs are predicted, usually within {fit.margin:.0%}; --confirm runs the answer."
        )
        yield doc.Paragraph(text, "soft")


_MEASURED: Mapping[str, str] = {
    "process": "at the peak of the process",
    "arena": "reserved by the arena, weights included",
}
"""Key of `Confirmation.of`, the bytes that the confirming run measured, -> their meaning."""


def _confirmation(fit: Fit) -> Iterator[doc.Block]:
    """Yield the result of the confirming run, if there was one."""
    run = fit.confirmed
    if run is None:
        return
    verdict = "fits" if run.total <= fit.memory else "does not fit"
    larger = f" (after {run.runs - 1} larger values that did not fit)" if run.runs > 1 else ""
    yield doc.Paragraph(
        f"confirmed by a run on {run.provider} with {binding_text(run.dims)}{larger}: "
        f"{format_size(run.total)}, {verdict}"
    )
    yield doc.Paragraph(f"{format_size(run.taken)} {_MEASURED[run.of]}", "soft")


def _breakdown(need: Need) -> str:
    """Return the terms of a need: the process, or the parts of the tensors' memory."""
    if need.process is not None:
        return f"process {format_size(need.process)}, inputs {format_size(need.inputs)}"
    return ", ".join(
        f"{name} {format_size(getattr(need, name))}"
        for name in ("weights", "inputs", "outputs", "planned")
    )


FIT: Mapping[str, Callable[[Fit], str]] = {
    **renderers(fit_document, "text"),
    "json": lambda fit: result_line("fit", fit),
}
