"""What was written in a settings file or an option: values that know their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from memplan_cli.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written; without a line, only what it was written in."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


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
    """Return the refusal of what was written there."""
    return SettingsError(f"{at}: {message}", hint=hint)


def entries(value: Value) -> tuple[Entry, ...]:
    """Return the entries of a table, each key once."""
    if value.kind != "table":
        raise wrong(value.at, f"expected a table of keys, not {described(value)}")
    found = cast("tuple[Entry, ...]", value.content)
    first: dict[str, Place] = {}
    for entry in found:
        if entry.key in first:
            raise wrong(entry.at, f"{entry.key!r} was already set at {first[entry.key]}")
        first[entry.key] = entry.at
    return found


def items(value: Value) -> tuple[Value, ...]:
    """Return the items of a list."""
    if value.kind != "list":
        raise wrong(value.at, f"expected a list, not {described(value)}")
    return cast("tuple[Value, ...]", value.content)


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
