"""Reader of ``[tool.memplan]`` of a pyproject.toml, with the place of each value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.settings.written import Entry, Place, Value, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping


def parse_pyproject(text: str, source: str) -> Value:
    """Return the ``[tool.memplan]`` table; an empty one where there is none.

    Raises:
        SettingsError: the file is no TOML.
    """
    nothing = Value((), Place(source), kind="table")
    # Most projects' files say nothing to us; then their mistakes are not ours to report.
    if "memplan" not in text:
        return nothing
    import tomllib

    try:
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        reason = re.sub(r" \(at .*\)$", "", str(error))
        place = _place_of(error, text, source)
        raise wrong(place, f"not valid TOML: {reason}") from error
    table = tool.get("memplan") if isinstance(tool, dict) else None
    if table is None:
        return nothing
    return _value(table, _Places(text, source), ())


def _place_of(error: Exception, text: str, source: str) -> Place:
    at = re.search(r"\(at line (\d+), column (\d+)\)$", str(error))
    if at:
        return Place(source, int(at[1]), int(at[2]))
    last = text.rpartition("\n")[2]
    return Place(source, text.count("\n") + 1, len(last) + 1)


class _Places:
    """Where keys are, as well as plain text tells: the TOML reader does not say.

    A key is looked for below the last header that names a part of its path; where it is
    written in some other way, the place is the file alone.
    """

    def __init__(self, text: str, source: str) -> None:
        self._lines = text.splitlines()
        self._source = source

    def of(self, path: tuple[str, ...]) -> Place:
        section: tuple[str, ...] = ()
        for number, line in enumerate(self._lines, start=1):
            header = re.match(r"\s*\[([^\[\]]+)\]", line)
            if header:
                section = tuple(part.strip(" \"'") for part in header[1].split("."))
            key = re.match(r"\s*([\w.\-\"' ]+?)\s*=", line)
            here = tuple(part.strip(" \"'") for part in key[1].split(".")) if key else ()
            found = header or key
            if found and section + here == ("tool", "memplan", *path):
                return Place(self._source, number, found.start(1) + 1)
        return self.of(path[:-1]) if path else Place(self._source)


def _value(content: object, places: _Places, path: tuple[str, ...]) -> Value:
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
    return tuple(
        Entry(key, places.of((*path, key)), _value(value, places, (*path, key)))
        for key, value in table.items()
    )
