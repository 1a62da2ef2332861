"""What was written in a settings file or an option: values that know their place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from memplan_cli.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written; without a line, only what it was written in.

    ``key`` is the dotted key whose value stands there.
    """

    source: str
    line: int = 0
    column: int = 0
    key: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    def within(self, key: str) -> Place:
        """Return the same place as that of the value of a key in the table that is here."""
        return replace(self, key=f"{self.key}.{key}" if self.key else key)


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``key: value`` of a table."""

    key: str
    at: Place
    value: Value


@dataclass(frozen=True, slots=True)
class Value:
    """What was written: a scalar, a list of values or a table of entries."""

    content: bool | float | str | tuple[Value, ...] | tuple[Entry, ...] | None
    at: Place
    kind: str = "scalar"
    """``scalar``, ``list`` or ``table``: an empty list and an empty table look alike."""


def wrong(at: Place, message: str, hint: str = "") -> SettingsError:
    """Return the refusal of what was written there; a file's key stands beside its line."""
    where = f"{at}: {at.key}" if at.line and at.key else at
    return SettingsError(f"{where}: {message}", hint=hint)


def entries(value: Value) -> tuple[Entry, ...]:
    """Return the entries of a table, each key once, their values under their keys."""
    if value.kind != "table":
        raise wrong(value.at, f"expected a table of keys, not {described(value)}")
    found = cast("tuple[Entry, ...]", value.content)
    first: dict[str, Place] = {}
    for entry in found:
        if entry.key in first:
            raise wrong(entry.at, f"{entry.key!r} was already set at {first[entry.key]}")
        first[entry.key] = entry.at
    return tuple(_keyed(entry, value.at) for entry in found)


def _keyed(entry: Entry, table: Place) -> Entry:
    inner = replace(entry.value.at, key=table.key).within(entry.key)
    return replace(entry, value=replace(entry.value, at=inner))


def items(value: Value) -> tuple[Value, ...]:
    """Return the items of a list."""
    if value.kind != "list":
        raise wrong(value.at, f"expected a list, not {described(value)}")
    found = cast("tuple[Value, ...]", value.content)
    return tuple(replace(item, at=replace(item.at, key=value.at.key)) for item in found)


def described(value: Value) -> str:
    """Return what was written, short enough for a message."""
    if value.kind != "scalar":
        return f"a {value.kind}"
    if value.content is None:
        return "nothing"
    if isinstance(value.content, bool):
        return str(value.content).lower()
    written = repr(value.content)
    return written if len(written) <= 60 else f"{written[:57]}..."
