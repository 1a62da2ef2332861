"""Reader of ``[tool.memplan]`` of a pyproject.toml, with the place of each value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.settings.values import Entry, Place, Value, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping


def parse_pyproject(text: str, source: str) -> Value:
    """Return the ``[tool.memplan]`` table of a pyproject.toml; an empty one if it has none.

    Raises:
        SettingsError: the text mentions memplan and is not valid TOML.
    """
    no_settings = Value((), Place(source), kind="table")
    # A file without settings for memplan is not parsed: its mistakes do not matter here.
    if "memplan" not in text:
        return no_settings
    import tomllib

    try:
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        reason = re.sub(r" \(at .*\)$", "", str(error))
        place = _place_of(error, text, source)
        raise invalid(place, f"not valid TOML: {reason}") from error
    table = tool.get("memplan") if isinstance(tool, dict) else None
    if table is None:
        return no_settings
    return _value(table, _Places(text, source), ())


def _place_of(error: Exception, text: str, source: str) -> Place:
    """Return the place in a tomllib error message, or the end of the text."""
    at = re.search(r"\(at line (\d+), column (\d+)\)$", str(error))
    if at:
        return Place(source, int(at[1]), int(at[2]))
    last = text.rpartition("\n")[2]
    return Place(source, text.count("\n") + 1, len(last) + 1)


_KEY = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_DOTTED_KEY = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[{{1,2}}\s*({_DOTTED_KEY})\s*\]{{1,2}}\s*(?:#|$)")
"""A line ``[a.b]`` or ``[[a.b]]``."""
_SETTING = re.compile(rf"\s*({_DOTTED_KEY})\s*=")
"""The beginning of a line ``a.b = ...``."""


def _parts(dotted_key: str) -> tuple[str, ...]:
    """Return the parts of a dotted key without their quotes."""
    return tuple(part.strip("\"'") for part in re.findall(_KEY, dotted_key))


class _Places:
    """Lines and columns of keys, found by searching the text: tomllib does not report them.

    Headers ``[a.b]`` and lines ``key = ...`` are recognized. A key that is written in another way,
    as in an inline table, gets the place of the table, or the file without a line.
    """

    def __init__(self, text: str, source: str) -> None:
        self._lines = text.splitlines()
        self._source = source

    def of(self, path: tuple[str, ...]) -> Place:
        """Return the place of a key, given its path below ``tool.memplan``."""
        section: tuple[str, ...] = ()
        for number, line in enumerate(self._lines, start=1):
            if match := _HEADER.match(line):
                section = found = _parts(match[1])
            elif match := _SETTING.match(line):
                found = (*section, *_parts(match[1]))
            else:
                continue
            if found == ("tool", "memplan", *path):
                return Place(self._source, number, match.start(1) + 1)
        # Not found: the place of the table that holds the key, or the file.
        return self.of(path[:-1]) if path else Place(self._source)


def _value(content: object, places: _Places, path: tuple[str, ...]) -> Value:
    """Return parsed TOML as a value with places; dates become text."""
    at = places.of(path)
    match content:
        case dict():
            return Value(_entries(content, places, path), at, kind="table")
        case list():
            return Value(tuple(_value(item, places, path) for item in content), at, "list")
        case bool() | int() | float() | str():
            return Value(content, at)
    return Value(str(content), at)


def _entries(
    table: Mapping[str, object], places: _Places, path: tuple[str, ...]
) -> tuple[Entry, ...]:
    """Return the entries of a parsed TOML table; ``path`` is its path below ``tool.memplan``."""
    return tuple(
        Entry(key, places.of((*path, key)), _value(value, places, (*path, key)))
        for key, value in table.items()
    )
