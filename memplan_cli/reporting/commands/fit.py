"""`memplan fit`: the largest value of a dim that fits a memory size, and what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import counted, format_size
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.totals import expression
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import result_renderers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.planning.fit import Fit, Need, Point


def fit_document(fit: Fit) -> doc.Document:
    """Return the answer of ``memplan fit``: the largest value of the dim that fits, and what it needs.

    Below the table are the formula of the tensors, the result of the confirming run, and warnings.
    """
    fixed_dims = "".join(f", {name}={value}" for name, value in fit.dims.items())
    return doc.Document(
        (
            doc.Name(fit.model),
            f"{fixed_dims}: largest {fit.dim} for {format_size(fit.memory)}",
        ),
        (
            *_largest_value(fit),
            *_expressions(fit),
            *_confirmation(fit),
            *(doc.Note("warning", warning) for warning in fit.warnings),
        ),
    )


def _largest_value(fit: Fit) -> Iterator[doc.Block]:
    """Yield a table of the largest value that fits, or else the need of the value 1; then the terms of the need."""
    if fit.point is not None:
        yield _point_table(fit, fit.point)
        yield from _breakdown(fit, fit.point)
    elif fit.least is not None:
        need = format_size(fit.least.total + fit.overhead)
        yield doc.Check(passed=False, text=f"Nothing fits: {fit.dim}=1 needs {need}.")
        yield from _breakdown(fit, fit.least)
    else:  # the value 1 needs more than any machine has
        yield doc.Check(passed=False, text="Nothing fits.")


def _point_table(fit: Fit, point: Point) -> doc.Table:
    """Return a table with the largest value, its need, and the need of the next value.

    The latter is a dash if no machine has so much.
    """
    # Unlike `total`, `beyond` contains the overhead already.
    beyond = "-" if point.beyond is None else format_size(point.beyond)
    row = (str(point.dims[fit.dim]), format_size(point.total + fit.overhead), beyond)
    return doc.Table(doc.columns(f">{fit.dim}", ">needs", ">with one more"), (row,))


def _breakdown(fit: Fit, need: Need) -> Iterator[doc.Block]:
    """Yield a sentence with the terms of a need, and how exact the answer is."""
    terms = _need_terms(need) | _overhead_terms(fit)
    text = ", ".join(f"{format_size(size)} for {name}" for name, size in terms.items())
    is_unconfirmed_answer = fit.point is not None and fit.confirmed is None
    # Without a margin the answer is about tensors, whose bytes are exact.
    if is_unconfirmed_answer and fit.margin is not None:
        text += f". Predicted, usually within {fit.margin:.0%}"
    yield doc.Paragraph(f"Of it {text}.", "soft")


def _need_terms(need: Need) -> dict[str, int]:
    """Return the bytes that a need consists of, by the name of the term."""
    if need.process is not None:  # it contains weights, outputs and intermediates
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
    failed = counted(run.runs - 1, "larger value")
    larger = f" (after {failed} that did not fit)" if run.runs > 1 else ""
    measured = f"{format_size(run.taken)} of it {_MEASURED[run.of]}"
    yield doc.Check(
        passed=run.total <= fit.memory,
        text=f"A run on {run.provider} with {binding_text(run.dims)} took {format_size(run.total)}"
        f"{larger}, {measured}.",
    )


FIT: Mapping[str, Callable[[Fit], str]] = result_renderers("fit", fit_document, "text")
