"""`memplan sweep`: the numbers of many models as rows; their file, table and CSV."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.quantities import counted, format_size
from memplan_cli.core.serialization import SPARSE, Keys, to_json
from memplan_cli.errors import SettingsError, refuse_endless, unreadable
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import csv_row
from memplan_cli.reporting.hints import dims_summary
from memplan_cli.reporting.media import draw_document, json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

SCHEMA = "memplan.sweep/1"

SIZES = ("weights", "inputs", "outputs", "naive", "live_peak", "planned", "total")
"""Columns of bytes, None if unknown: fields of `Row` and of the memory of a report."""

NUMBERS = ("nodes", "intermediates", "coverage", *SIZES)
"""Columns of numbers, None if unknown."""

_FIRST_COLUMNS = ("model", "dims", "status")
_LAST_COLUMNS = ("error", "missing_dims", "missing_inputs", "assumed")

COLUMNS = (*_FIRST_COLUMNS, *NUMBERS, *_LAST_COLUMNS)


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one model under one binding, or why there are none.

    Attributes:
        key: identifies the row in its file.
        model: the model's file.
        dims: the binding.
        status: ``ok``, or what failed.
        nodes: the number of nodes.
        intermediates: the number of intermediates.
        coverage: the share of intermediates whose size is known.
        weights, inputs, outputs, naive, live_peak, planned, total: as in a report.
        error: why there are no numbers.
        missing_dims: dimensions of the sweep's binding that the model does not have.
        missing_inputs: inputs of the sweep's binding that the model does not have.
        assumed: the numbers that were assumed for other dimensions.
    """

    schema: ClassVar[str] = SCHEMA
    json_keys: ClassVar[Keys] = ("key", *_FIRST_COLUMNS, "partial", *NUMBERS, *_LAST_COLUMNS)

    key: str
    model: str
    dims: Mapping[str, int | str]
    status: str
    nodes: int | None = None
    intermediates: int | None = None
    coverage: float | None = None
    weights: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    naive: int | None = None
    live_peak: int | None = None
    planned: int | None = None
    total: int | None = None
    error: str = ""
    missing_dims: tuple[str, ...] = ()
    missing_inputs: tuple[str, ...] = field(default=(), metadata=SPARSE)
    assumed: Mapping[str, int] = field(default_factory=dict, metadata=SPARSE)

    @property
    def passed(self) -> bool:
        """Whether there are numbers, within the budget if there is one."""
        return self.status == "ok"

    @property
    def partial(self) -> bool:
        """Whether some sizes are unknown, so that the totals are partial."""
        return self.passed and (self.coverage or 0) < 1


@dataclass(frozen=True, slots=True)
class SweepTable:
    """All rows of a sweep."""

    schema: ClassVar[str] = SCHEMA

    rows: tuple[Row, ...]


_ROW_START = b'{"coverage": '
"""The start of every line of a rows file, because keys are sorted."""


def read_rows(path: Path) -> dict[str, Row]:
    """Read the rows of a file by key; none if the file does not exist.

    An incomplete last line, left by a killed process, is removed from the file.

    Raises:
        SettingsError: the file has other content, or cannot be read.
    """
    if not path.exists():
        return {}
    refuse_endless(path, SettingsError)
    try:
        content = path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        rows = [
            from_json(Row, json.loads(line), "a row")
            for line in complete.splitlines()
            if line.strip()
        ]
        # Only the start of a row is removed: another file that was named by mistake is kept.
        incomplete = content[len(complete) :]
        if incomplete[: len(_ROW_START)] != _ROW_START[: len(incomplete)]:
            raise ValueError("not the start of a row")  # noqa: TRY301 - another program's file
        if incomplete:
            path.write_bytes(complete)
    except OSError as error:
        raise unreadable(path, error, SettingsError) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"{path} is not a file of sweep rows", hint="name a new file, or that of a sweep"
        ) from error
    return {row.key: row for row in rows}


def append_row(path: Path, row: Row) -> None:
    """Append a row to a file as one line.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(_json_line(row))
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error


def _json_line(row: Row) -> str:
    return json.dumps(to_json(row), sort_keys=True) + "\n"


_TABLE_SIZES: Mapping[str, str] = {
    "weights": "weights",
    "naive": "no reuse",
    "planned": "planned",
    "total": "total",
}
"""Sizes in the table of a sweep: fields of `Row` and the titles of their columns."""


def sweep_document(rows: Sequence[Row]) -> doc.Document:
    """Return a table with a row for each model and binding, and the number of failures."""
    size_heads = (f">{title}" for title in _TABLE_SIZES.values())
    heads = doc.columns("model", *size_heads)
    planned = sum(row.passed for row in rows)
    models = len({row.model for row in rows})
    failures = (
        doc.Check(passed=False, text=f"{row.model}: {row.error}")
        for row in rows
        if not row.passed
    )
    folder = _common_folder(rows)
    title = f"Memory of the tensors of {counted(models, 'model')}"
    return doc.Document(
        (f"{title} in ", doc.Name(folder)) if folder else title,
        (
            doc.Table(heads, tuple(_table_row(row, folder) for row in rows)),
            *failures,
            doc.Check(
                passed=planned == len(rows), text=f"{planned} of {len(rows)} rows planned"
            ),
        ),
    )


def _common_folder(rows: Sequence[Row]) -> str:
    """Return the folder that all models lie in, with a slash at its end; empty if there is none."""
    folders = {row.model.rpartition("/")[0] for row in rows}
    common = "" if "" in folders else os.path.commonprefix([f"{name}/" for name in folders])  # noqa: RUF071 - cut below
    return common[: common.rfind("/") + 1]


def _table_row(row: Row, folder: str) -> tuple[doc.Prose, ...]:
    """Return a row of the table: the model with its binding, and the sizes, dashes if unknown."""
    # The model is text and not a `doc.Name`, because long names are cut, and a path must not be.
    model = row.model.removeprefix(folder)
    subject = ", ".join(filter(None, [model, _dims_cell(row.dims), *_remarks(row)]))
    sizes = (getattr(row, name) for name in _TABLE_SIZES)
    return subject, *("-" if size is None else format_size(int(size)) for size in sizes)


def _remarks(row: Row) -> Iterator[str]:
    """Yield what limits the numbers of a row: a failure, unknown sizes, unused bindings, assumed dims."""
    if not row.passed:
        yield "failed"
    if row.partial:
        yield f"partial: {100 * (row.coverage or 0):.0f}% of sizes known"
    if row.missing_dims:
        yield f"has no dim {', '.join(row.missing_dims)}"
    if row.missing_inputs:
        yield f"has no input {', '.join(row.missing_inputs)}"
    if row.assumed:
        yield f"assumed {dims_summary(row.assumed)}"


def _dims_cell(dims: Mapping[str, int | str]) -> str:
    """Return a binding as the text of a cell: ``batch=8 seq=1..128``."""
    return " ".join(f"{name}={value}" for name, value in dims.items())


def _csv(rows: Sequence[Row]) -> str:
    """Return a header and a line per row; unknown numbers are empty."""
    lines = [
        csv_row(
            [
                row.model,
                _dims_cell(row.dims),
                row.status,
                *(getattr(row, name) for name in NUMBERS),
                row.error,
                " ".join(row.missing_dims),
                " ".join(row.missing_inputs),
                _dims_cell(row.assumed),
            ]
        )
        for row in rows
    ]
    return "".join([csv_row(COLUMNS), *lines])


SWEEP: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "text": lambda rows: draw_document(sweep_document(rows), "text"),
    "json": lambda rows: json_text(to_json(SweepTable(tuple(rows)))),
    "jsonl": lambda rows: "".join(map(_json_line, rows)),
    "csv": _csv,
}
