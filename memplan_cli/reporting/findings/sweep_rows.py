"""Rows of a sweep, one a model and binding, and the file that they are added to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.core.results.report import Json

SCHEMA = "memplan.sweep/1"

NUMBERS = (
    "nodes", "intermediates", "coverage", "weights", "inputs", "outputs", "naive", "live_peak",
    "planned", "total",
)  # fmt: skip
"""Columns with a number, or None where it is not known; bytes from ``weights`` on."""

COLUMNS = ("model", "dims", "status", *NUMBERS, "error")


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one job; ``error`` says why there are no numbers."""

    key: str
    model: str
    dims: Mapping[str, int | str]
    status: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether there are numbers."""
        return self.status == "ok"

    @property
    def partial(self) -> bool:
        """Whether sizes are missing, so that totals, where there are any, say too little."""
        return (self.numbers.get("coverage") or 0) < 1 if self.passed else False

    def to_json(self) -> Json:
        """Return the layout of one line of ``memplan.sweep/1``."""
        return {
            "schema": SCHEMA,
            "key": self.key,
            "model": self.model,
            "dims": dict(self.dims),
            "status": self.status,
            "partial": self.partial,
            **{name: self.numbers.get(name) for name in NUMBERS},
            "error": self.error,
        }

    @classmethod
    def from_json(cls, data: Json) -> Row:
        """Read what `to_json` wrote.

        Raises:
            KeyError: it is something else.
        """
        if data["schema"] != SCHEMA:
            raise KeyError(data["schema"])
        numbers = {name: data[name] for name in NUMBERS}
        return cls(
            data["key"], data["model"], data["dims"], data["status"], numbers, data["error"]
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
        rows = [Row.from_json(json.loads(line)) for line in whole.splitlines() if line.strip()]
        half = data[len(whole) :]
        if half[: len(_START)] != _START[: len(half)]:
            raise ValueError("no row begins so")  # noqa: TRY301 - whose file this is, nobody knows
        if half:
            path.write_bytes(whole)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
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
            file.write(json.dumps(row.to_json(), sort_keys=True) + "\n")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
