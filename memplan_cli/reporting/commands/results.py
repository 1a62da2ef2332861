"""What the other commands find, as documents: doctor, fit, settings, simulate, sweep, validate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.planning.totals import expression
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import csv_row
from memplan_cli.reporting.findings.sweep_rows import COLUMNS, NUMBERS, SCHEMA
from memplan_cli.reporting.media import drawn, renderers
from memplan_cli.reporting.media.json_text import json_text
from memplan_cli.reporting.plans.runtime import evidence
from memplan_cli.reporting.snippet import settings_snippet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.observations import Difference, Peaks, Validation
    from memplan_cli.core.results.validation import Proof
    from memplan_cli.planning.fit import Fit, Need
    from memplan_cli.reporting.findings.sweep_rows import Row
    from memplan_cli.runtime.doctor import Diagnosis
    from memplan_cli.runtime.simulation.dynamic import Simulated
    from memplan_cli.runtime.steer import Recommendation

_MOST_DIFFERENCES = 20
"""Outputs that are named where a validation fails; JSON has all."""

_RESERVED = (
    "reserved: bytes taken from the system for intermediates and outputs of one run; the static "
    "plan is of intermediates alone, in the order that needs least"
)

_SHOWN = ("weights", "naive", "planned", "total")
"""Sizes in the table of a sweep."""


def _diagnosis(found: Diagnosis) -> doc.Document:
    """Return versions, the providers that really work, and what to do about the rest."""
    states = tuple(
        f"{probe.provider}: works"
        if probe.works
        else f"{probe.provider}: does not work: {probe.reason}"
        for probe in found.probes
    )
    problems = doc.Items(found.problems) if found.problems else doc.Paragraph("No problems.")
    return doc.Document(
        f"Python {found.python}",
        (
            doc.Table(doc.columns("package", "version"), found.versions),
            *doc.section("Providers, by creating a session on each", doc.Items(states)),
            *_looked_at(found.file),
            *doc.section("Problems", problems),
        ),
    )


def _looked_at(facts: tuple[tuple[str, str], ...]) -> Iterator[doc.Block]:
    """Yield what a file says of itself, where one was looked at."""
    if facts:
        yield from doc.section("The file", doc.Table(doc.columns("", ""), facts))


DOCTOR: Mapping[str, Callable[[Diagnosis], str]] = {
    **renderers(_diagnosis, "text"),
    "json": lambda found: json_text(to_json(found)),
}


def _fit(fit: Fit) -> doc.Document:
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
    yield doc.Paragraph(f"run on {seen.provider} with {dims}: {size}, {verdict}")
    yield doc.Paragraph(
        f"{format_size(seen.held)} reserved by the arena, weights included", "soft"
    )


def _needed(need: Need | None, fit: Fit) -> str:
    return "-" if need is None else format_size(need.total + fit.overhead)


def _terms(need: Need) -> str:
    return ", ".join(
        f"{name} {format_size(getattr(need, name))}"
        for name in ("weights", "inputs", "outputs", "planned")
    )


FIT: Mapping[str, Callable[[Fit], str]] = {
    **renderers(_fit, "text"),
    "json": lambda fit: json.dumps(to_json(fit)),
}


def _settings(found: Recommendation, model: str) -> doc.Document:
    """Return the session as Python, what it needs as comments on top."""
    comments = [f"predicted: {_peaks(found.predicted, 'reserved, no weights')}"]
    if found.observed:
        comments.append(f"observed: {_peaks(found.observed, 'reserved')}")
    lines = [f"# {comment}" for comment in (*comments, *found.notes)]
    snippet = settings_snippet(found.settings, model, found.provider)
    return doc.Document("", (doc.Code((*lines, *snippet.splitlines())),))


def _peaks(peaks: Peaks, reserved: str) -> str:
    named = {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        reserved: peaks.held,
    }
    return ", ".join(f"{name} {_known(size)}" for name, size in named.items())


def _known(size: int | None) -> str:
    return "not known" if size is None else format_size(size)


def _settings_json(found: Recommendation, model: str) -> str:
    content = {
        "model": model,
        "provider": found.provider,
        "settings": to_json(found.settings),
        "predicted": to_json(found.predicted),
        "observed": to_json(found.observed),
        "notes": list(found.notes),
    }
    return json_text(content)


SETTINGS: Mapping[str, Callable[[Recommendation, str], str]] = {
    "text": lambda found, model: drawn(_settings(found, model), "text"),
    "json": _settings_json,
}


def _simulation(found: Simulated) -> doc.Document:
    """Return a row for each allocator, the static plan first."""
    rows = [("static plan, level 2", _known(found.planned), "")]
    rows += [
        (
            run.allocator,
            format_size(run.held),
            f"{run.fragmentation:.1%} of it never needed at once",
        )
        for run in found.simulations
    ]
    table = doc.Table(doc.columns("allocator", ">reserved", "fragmentation"), tuple(rows))
    return doc.Document("", (table, doc.Paragraph(_RESERVED, "soft")))


def _simulation_json(found: Simulated) -> str:
    names = ("allocator", "held", "live", "requests")
    runs = [{name: getattr(run, name) for name in names} for run in found.simulations]
    return json_text({"planned": found.planned, "simulations": runs})


SIMULATE: Mapping[str, Callable[[Simulated], str]] = {
    **renderers(_simulation, "text"),
    "json": _simulation_json,
}


def _sweep(rows: Sequence[Row]) -> doc.Document:
    """Return a line for each model and binding, and how many failed."""
    bad = sum(not row.passed for row in rows)
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    heads = doc.columns(
        "model", "dims", ">nodes", ">coverage", *(f">{name}" for name in _SHOWN), ""
    )
    table = doc.Table(heads, tuple(map(_sweep_row, rows)))
    return doc.Document("", (table, doc.Paragraph(count + (f", {bad} failed" if bad else ""))))


def _sweep_row(row: Row) -> tuple[doc.Prose, ...]:
    head = row.model, _dims(row)  # paths are never cut
    if not row.passed:
        return (*head, *[""] * (2 + len(_SHOWN)), f"failed: {row.error}")
    return (
        *head,
        str(row.nodes),
        f"{100 * (row.coverage or 0):.0f}%",
        *(
            "-" if (n := getattr(row, name)) is None else format_size(int(n))
            for name in _SHOWN
        ),
        ", ".join((*(["partial"] if row.partial else []), *_missing(row))),
    )


def _missing(row: Row) -> Iterator[str]:
    if row.missing_dims:
        yield f"has no dim {', '.join(row.missing_dims)}"


def _dims(row: Row) -> str:
    """Return a binding as text: ``batch=8 seq=1..128``."""
    return " ".join(f"{name}={value}" for name, value in row.dims.items())


def _sweep_csv(rows: Sequence[Row]) -> str:
    """Return a header and one line a row; bytes as numbers, nothing where unknown."""
    lines = [csv_row(COLUMNS)]
    for row in rows:
        numbers = (getattr(row, name) for name in NUMBERS)
        lines.append(
            csv_row(
                [
                    row.model,
                    _dims(row),
                    row.status,
                    *numbers,
                    row.error,
                    " ".join(row.missing_dims),
                ]
            )
        )
    return "".join(lines)


SWEEP: Mapping[str, Callable[[Sequence[Row]], str]] = {
    **renderers(_sweep, "text"),
    "json": lambda rows: json_text({"schema": SCHEMA, "rows": to_json(rows)}),
    "jsonl": lambda rows: "".join(
        json.dumps(to_json(row), sort_keys=True) + "\n" for row in rows
    ),
    "csv": _sweep_csv,
}


def _proof(proof: Proof) -> doc.Document:
    """Return the verdict, what differs, what else was noticed, and the memory measured."""
    found = proof.validation
    lines = doc.Items((*_checks(found), *found.notes))
    observed = proof.runtime.observed if proof.runtime else {}
    before, after = (_time(observed.get(side)) for side in ("original", "optimized"))
    times = f"time of a run, the median: original {before}; written {after}"
    return doc.Document(
        f"{found.status} on {found.provider}",
        (
            *([lines] if lines.lines else []),
            *evidence(proof.runtime),
            *([doc.Paragraph(times)] if before and after else []),
        ),
    )


def _time(observed: Peaks | None) -> str:
    """Return how long a run took; nothing where no time was taken."""
    if observed is None or observed.milliseconds is None:
        return ""
    return f"{observed.milliseconds:.3g} ms"


def _checks(found: Validation) -> Iterator[doc.Prose]:
    if found.bit_identical:
        yield "outputs are the same, bit for bit"
    elif found.max_abs_diff is not None:
        yield f"largest difference {found.max_abs_diff:g}"
    if found.replay is not None:
        yield f"replay in one poisoned arena: {found.replay}"
    if found.donated is not None:
        yield f"two steps with each donated pair in one buffer: {found.donated}"
    for difference in found.differences[:_MOST_DIFFERENCES]:
        yield doc.Name(difference.output), f": {_described(difference)}"
    left = len(found.differences) - _MOST_DIFFERENCES
    if left > 0:
        yield f"and {left} more outputs"


def _described(difference: Difference) -> str:
    if difference.reason:
        return difference.reason
    return (
        f"{difference.elements} elements have other bits, {difference.beyond} beyond the "
        f"tolerance, largest difference {difference.max_abs_diff:g}"
    )


def _proof_json(proof: Proof) -> str:
    """Return the verdict with the runtime's side where it was measured.

    Times are left to the text: the same models give the same JSON.
    """
    content = to_json(proof.validation)
    content["runtime"] = to_json(proof.runtime)
    return json_text(content)


VALIDATE: Mapping[str, Callable[[Proof], str]] = {
    **renderers(_proof, "text"),
    "json": _proof_json,
}
