"""`memplan fit`: the largest values of dims that fit a memory size, and what each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.totals import expression
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import result_renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.planning.fit import Fit, Need


def fit_document(fit: Fit) -> doc.Document:
    """Return the largest values, their memory and that of the next larger value, and the run."""
    fixed_dims = "".join(f", {name}={value}" for name, value in fit.dims.items())
    unknown = " and ".join(fit.unknown)
    return doc.Document(
        (
            doc.Name(fit.model),
            f"{fixed_dims}: largest {unknown} for {format_size(fit.memory)}",
        ),
        (
            *_largest_values(fit),
            *_expressions(fit),
            *_confirmation(fit),
            *(doc.Note("warning", warning) for warning in fit.warnings),
        ),
    )


def _largest_values(fit: Fit) -> Iterator[doc.Block]:
    """Yield a table of the largest values, or the need of the smallest ones if these do not fit; then its terms."""
    need: Need | None
    if fit.points:
        yield _points_table(fit)
        # Several points have terms of their own: `_breakdown` gives the common ones without a need.
        need = fit.points[0] if len(fit.points) == 1 else None
    else:
        need = fit.least  # None if it is not known
        text = "Nothing fits."
        if need is not None:
            smallest = binding_text(dict.fromkeys(fit.unknown, 1))
            text = f"Nothing fits: {smallest} needs {format_size(need.total + fit.overhead)}."
        yield doc.Check(passed=False, text=text)
    if text := _breakdown(fit, need):
        yield doc.Paragraph(text, "soft")


def _points_table(fit: Fit) -> doc.Table:
    """Return a table with a row for each point of the answer: a largest value of each unknown dim.

    After the values, a row has the need of the point, and the need if the first unknown dim is larger by one:
    a dash if no machine has so much.
    """
    columns = doc.columns(*(f">{name}" for name in fit.unknown), ">needs", ">with one more")
    rows = tuple(
        (
            *(str(point.dims[name]) for name in fit.unknown),
            format_size(point.total + fit.overhead),
            # Unlike `total`, `beyond` contains the overhead already.
            "-" if point.beyond is None else format_size(point.beyond),
        )
        for point in fit.points
    )
    return doc.Table(columns, rows)


def _breakdown(fit: Fit, need: Need | None) -> str:
    """Return a sentence with the terms of a need, and how exact the answer is.

    If ``need`` is None, the sentence has the terms that all needs have: the overhead. Empty if there is
    none.
    """
    terms = _overhead_terms(fit)
    if need is not None:
        terms = _need_terms(need) | terms
    if not terms:
        return ""
    subject = "Of it" if need is not None else "Each need includes"
    text = ", ".join(f"{format_size(size)} for {name}" for name, size in terms.items())
    is_unconfirmed_answer = bool(fit.points) and fit.confirmed is None
    # Without a margin the answer is about tensors, whose bytes are exact.
    if is_unconfirmed_answer and fit.margin is not None:
        return f"{subject} {text}. Predicted, usually within {fit.margin:.0%}."
    return f"{subject} {text}."


def _need_terms(need: Need) -> dict[str, int]:
    """Return the bytes that a need consists of, by the name of the term."""
    if need.process is not None:  # the process has to fit, which contains the other terms
        return {"the model": need.process, "its inputs": need.inputs}
    return {
        "weights": need.weights,
        "inputs": need.inputs,
        "outputs": need.outputs,
        "the planned intermediates": need.planned,
    }


def _overhead_terms(fit: Fit) -> dict[str, int]:
    """Return the bytes that are added to every need, by the name of the term; empty if there are none."""
    if fit.of == "process":
        return {
            "the interpreter and the runtime": fit.overhead - fit.other_imports,
            "other imports (--overhead)": fit.other_imports,
        }
    return {"everything else (--overhead)": fit.overhead} if fit.overhead else {}


def _expressions(fit: Fit) -> Iterator[doc.Block]:
    """Yield the bytes of the tensors for any value, where the answer is about tensors."""
    if fit.expressions and fit.of == "tensors":
        total = expression(fit.expressions)
        yield doc.Paragraph(f"Tensors of one plan for all values: {total} bytes.")


_MEASURED: Mapping[str, str] = {
    "process": "at the peak of the process",
    "arena": "reserved by the arena, weights included",
}
"""Key of `Confirmation.of`, the bytes that the confirming run measured, -> their meaning."""


def _confirmation(fit: Fit) -> Iterator[doc.Block]:
    """Yield the result of the confirming run, if there was one.

    For example ``A run on CPU with batch=8 took 900 MiB (after 2 larger values that did not fit), 850 MiB
    of it at the peak of the process.`` The first size is compared with the memory size. The second is the
    part of it that the run measured; the rest is inputs and overhead.
    """
    run = fit.confirmed
    if run is None:
        return
    # The confirming run is the last one; each run before it had larger values.
    larger = f" (after {run.runs - 1} larger values that did not fit)" if run.runs > 1 else ""
    measured = f"{format_size(run.taken)} of it {_MEASURED[run.of]}"
    yield doc.Check(
        passed=run.total <= fit.memory,
        text=f"A run on {run.provider} with {binding_text(run.dims)} took {format_size(run.total)}"
        f"{larger}, {measured}.",
    )


FIT: Mapping[str, Callable[[Fit], str]] = result_renderers("fit", fit_document, "text")
