"""A sweep as a table, JSON, JSON lines or CSV."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.reporting.columns import aligned
from memplan_cli.reporting.escape import csv_row, terminal
from memplan_cli.reporting.findings.sweep_rows import COLUMNS, NUMBERS, SCHEMA
from memplan_cli.reporting.plans.json_text import document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.reporting.findings.sweep_rows import Row

_SHOWN = ("weights", "naive", "planned", "total")


def text(rows: Sequence[Row]) -> str:
    """Return a table, one line a row, sizes for people."""
    table: list[tuple[str, ...]] = [("model", "dims", "nodes", "coverage", *_SHOWN)]
    table += [_cells(row) for row in rows]
    lines = [
        terminal(f"{line}{_remark(row)}".rstrip())
        for line, row in zip(aligned(table, left=(0, 1)), (None, *rows), strict=True)
    ]
    bad = sum(not row.passed for row in rows)
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    lines.append(count + (f", {bad} failed" if bad else ""))
    return "\n".join(lines) + "\n"


def _remark(row: Row | None) -> str:
    if row is None or (row.passed and not row.partial):
        return ""
    return "  partial" if row.passed else f"  failed: {row.error}"


def _cells(row: Row) -> tuple[str, ...]:
    if not row.passed:
        return (row.model, dims_text(row), *("" for _ in range(2 + len(_SHOWN))))
    coverage = row.coverage
    sizes = (getattr(row, name) for name in _SHOWN)
    return (
        row.model,
        dims_text(row),
        str(row.nodes),
        f"{100 * (coverage or 0):.0f}%",
        *("-" if size is None else format_size(int(size)) for size in sizes),
    )


def dims_text(row: Row) -> str:
    """Return a binding as text: ``batch=8 seq=1..128``."""
    return " ".join(f"{name}={value}" for name, value in row.dims.items())


def as_json(rows: Sequence[Row]) -> str:
    """Return one document with all rows."""
    content = {"schema": SCHEMA, "rows": to_json(rows)}
    return document(content)


def as_lines(rows: Sequence[Row]) -> str:
    """Return one JSON object a line."""
    return "".join(json.dumps(to_json(row), sort_keys=True) + "\n" for row in rows)


def as_csv(rows: Sequence[Row]) -> str:
    """Return a header and one line a row; bytes as numbers, nothing where unknown."""
    lines = [csv_row(COLUMNS)]
    for row in rows:
        numbers = ("" if (n := getattr(row, name)) is None else n for name in NUMBERS)
        lines.append(csv_row([row.model, dims_text(row), row.status, *numbers, row.error]))
    return "".join(lines)


RENDERERS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "text": text,
    "json": as_json,
    "jsonl": as_lines,
    "csv": as_csv,
}
