"""Values as they were written in a settings file or an option, each with its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from memplan_cli.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value, for error messages.

    Attributes:
        source: the file, or the option.
        line, column: from 1; line 0 if only the source is known.
        key: the dotted key whose value is at this place; empty if there is none.
    """

    source: str
    line: int = 0
    column: int = 0
    key: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``key: value`` pair of a table."""

    key: str
    at: Place
    value: Value


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar, a list of values or a table of entries, before it is validated.

    Attributes:
        content: the scalar, or the values of a list, or the entries of a table.
        at: where it was written.
        kind: ``scalar``, ``list`` or ``table``.
    """

    content: bool | float | str | tuple[Value, ...] | tuple[Entry, ...] | None
    at: Place
    kind: str = "scalar"


def invalid(at: Place, message: str, hint: str = "") -> SettingsError:
    """Return an error about the value at a place: ``file:line:column: key: message``."""
    # Without a line the source is an option, whose name is the key already, or a whole file.
    where = f"{at}: {at.key}" if at.line and at.key else at
    return SettingsError(f"{where}: {message}", hint=hint)


def already_set(entry: Entry, first: Place) -> SettingsError:
    """Return the error for an entry whose key was set at another place before."""
    return invalid(entry.at, f"{entry.key!r} was already set at {first}")


def entries(value: Value) -> tuple[Entry, ...]:
    """Return the entries of a table, with the dotted key of each value in ``value.at.key``.

    An entry ``b`` of a table with the key ``a`` has the dotted key ``a.b``.

    Raises:
        SettingsError: the value is no table, or a key occurs twice.
    """
    if value.kind != "table":
        form = "a table of keys ({name: value})"
        raise invalid(value.at, f"expected {form}, not {describe(value)}")
    written = cast("tuple[Entry, ...]", value.content)
    first: dict[str, Place] = {}
    for entry in written:
        if entry.key in first:
            raise already_set(entry, first[entry.key])
        first[entry.key] = entry.at
    prefix = f"{value.at.key}." if value.at.key else ""
    return tuple(
        replace(entry, value=_with_key(entry.value, prefix + entry.key)) for entry in written
    )


def items(value: Value) -> tuple[Value, ...]:
    """Return the items of a list; the place of each has the key of the list.

    Raises:
        SettingsError: the value is no list.
    """
    if value.kind != "list":
        raise invalid(value.at, f"expected a list, not {describe(value)}")
    written = cast("tuple[Value, ...]", value.content)
    return tuple(_with_key(item, value.at.key) for item in written)


def _with_key(value: Value, key: str) -> Value:
    """Return a value whose place has a dotted key."""
    return replace(value, at=replace(value.at, key=key))


def describe(value: Value) -> str:
    """Return a value as text of at most 60 characters, for a message."""
    if value.kind != "scalar":
        return f"a {value.kind}"
    if value.content is None:
        return "nothing"
    if isinstance(value.content, bool):
        return str(value.content).lower()
    written = repr(value.content)
    return written if len(written) <= 60 else f"{written[:57]}..."
