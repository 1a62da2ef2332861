"""A fit as text: the answer, what it needs, what the next value would need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.totals import expression
from memplan_cli.reporting.columns import aligned
from memplan_cli.reporting.escape import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.planning.fit import Fit, Need, Point


def text(fit: Fit) -> str:
    """Return the lines that `memplan fit` prints."""
    return "".join(f"{terminal(line)}\n" for line in _lines(fit))


def _lines(fit: Fit) -> Iterator[str]:
    fixed = "".join(f", {name}={value}" for name, value in fit.dims.items())
    yield f"{fit.model}{fixed}"
    yield f"{format_size(fit.memory)} of memory, {format_size(fit.overhead)} of it overhead"
    yield ""
    if fit.points:
        yield from _table(fit)
    elif fit.least is not None:
        smallest = binding_text(dict.fromkeys(fit.unknown, 1))
        yield f"nothing fits: {smallest} needs {format_size(fit.least.total + fit.overhead)}"
        yield f"  {_parts(fit.least)}"
    else:
        yield "nothing fits"
    if fit.expressions:
        yield ""
        yield f"one plan for all values: {expression(fit.expressions)} bytes"
    seen = fit.confirmed
    if seen is not None:
        dims = binding_text(seen.dims)
        total = seen.total(fit.overhead)
        verdict = "fits" if total <= fit.memory else "does not fit"
        yield f"run on {seen.provider} with {dims}: {format_size(total)}, {verdict}"
        yield f"  {format_size(seen.held)} taken by the arena, weights included"
    yield from (f"warning: {warning}" for warning in fit.warnings)


def _table(fit: Fit) -> Iterator[str]:
    rows = [("", *fit.unknown, "needs", "with one more")]
    rows += [_row(fit, point) for point in fit.points]
    yield from (line.rstrip() for line in aligned(rows))
    if len(fit.points) == 1:
        yield f"  {_parts(fit.points[0].need)}"


def _row(fit: Fit, point: Point) -> tuple[str, ...]:
    values = (str(point.dims[name]) for name in fit.unknown)
    beyond = "-" if point.beyond is None else format_size(point.beyond.total + fit.overhead)
    return ("", *values, format_size(point.need.total + fit.overhead), beyond)


def _parts(need: Need) -> str:
    return ", ".join(
        f"{name} {format_size(getattr(need, name))}"
        for name in ("weights", "inputs", "outputs", "planned")
    )
