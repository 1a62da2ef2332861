"""Plans of many models, as a document and as rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import csv_row
from memplan_cli.reporting.findings.assumed import named_dims
from memplan_cli.reporting.findings.sweep_rows import COLUMNS, NUMBERS, SweepTable
from memplan_cli.reporting.media import renderers
from memplan_cli.reporting.media.json_text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.reporting.findings.sweep_rows import Row

_SHOWN = ("weights", "naive", "planned", "total")
"""Sizes in the table of a sweep."""


def document(rows: Sequence[Row]) -> doc.Document:
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
    if row.missing_inputs:
        yield f"has no input {', '.join(row.missing_inputs)}"
    if row.assumed:
        yield f"assumed {named_dims(row.assumed)}"


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
                    " ".join(row.missing_inputs),
                    " ".join(f"{name}={value}" for name, value in row.assumed.items()),
                ]
            )
        )
    return "".join(lines)


SWEEP: Mapping[str, Callable[[Sequence[Row]], str]] = {
    **renderers(document, "text"),
    "json": lambda rows: json_text(to_json(SweepTable(tuple(rows)))),
    "jsonl": lambda rows: "".join(
        json.dumps(to_json(row), sort_keys=True) + "\n" for row in rows
    ),
    "csv": _sweep_csv,
}
