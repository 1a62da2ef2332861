"""Rows of a sweep, one a model and binding, and the file that they are added to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.serialization import SPARSE, Keys, to_json
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "memplan.sweep/1"


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
    json_keys: ClassVar[Keys] = (
        "key",
        "model",
        "dims",
        "status",
        "partial",
        "nodes",
        "intermediates",
        "coverage",
        "weights",
        "inputs",
        "outputs",
        "naive",
        "live_peak",
        "planned",
        "total",
        "error",
        "missing_dims",
        "missing_inputs",
        "assumed",
    )

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
        return (self.coverage or 0) < 1 if self.passed else False


@dataclass(frozen=True, slots=True)
class SweepTable:
    """All rows of a sweep."""

    schema: ClassVar[str] = SCHEMA

    rows: tuple[Row, ...]


NUMBERS = tuple(item.name for item in fields(Row) if item.default is None)
"""Columns with a number, or None where it is not known; bytes from ``weights`` on."""

COLUMNS = (
    "model",
    "dims",
    "status",
    *NUMBERS,
    "error",
    "missing_dims",
    "missing_inputs",
    "assumed",
)

_START = b'{"coverage": '
"""How each row begins, keys being sorted: only the half of one may be taken away."""


def kept_rows(path: Path) -> dict[str, Row]:
    """Read the rows of a file, by key; half a line at its end is what a kill left, and goes.

    Raises:
        SettingsError: it is no file of rows, or cannot be read.
    """
    if not path.exists():
        return {}
    refuse_endless(path, SettingsError)
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        rows = [
            from_json(Row, json.loads(line), "a row")
            for line in whole.splitlines()
            if line.strip()
        ]
        half = data[len(whole) :]
        if half[: len(_START)] != _START[: len(half)]:
            raise ValueError("no row begins so")  # noqa: TRY301 - whose file this is, nobody knows
        if half:
            path.write_bytes(whole)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"{path} is no file of sweep rows", hint="name a new file, or that of a sweep"
        ) from error
    return {row.key: row for row in rows}


def append_row(path: Path, row: Row) -> None:
    """Write a row at the end of a file, whole.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_json(row), sort_keys=True) + "\n")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
