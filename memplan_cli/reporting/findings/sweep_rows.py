"""Rows of a sweep, one a model and binding, and the file that they are added to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.serialization import Keys, sparse, to_json
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "memplan.sweep/1"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one job; ``error`` says why there are no numbers.

    ``missing_dims`` and ``missing_inputs`` are those that other models of the sweep were
    bound by; ``assumed`` is what nobody said of the other dims.
    """

    schema: ClassVar[str] = SCHEMA
    json_keys: ClassVar[Keys] = (
        "schema",
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
        *sparse("missing_inputs", "assumed"),
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
    missing_inputs: tuple[str, ...] = ()
    assumed: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether there are numbers, within the budget if there is one."""
        return self.status == "ok"

    @property
    def partial(self) -> bool:
        """Whether sizes are missing, so that totals, where there are any, say too little."""
        return (self.coverage or 0) < 1 if self.passed else False


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
