"""The JSON schemas of what memplan reads and writes, as package data."""

from __future__ import annotations

from importlib.resources import files

from memplan_cli.errors import SettingsError

NAMES = ("plan", "report", "config", "baseline", "certificate")


def schema_text(name: str) -> str:
    """Return a schema's file.

    Raises:
        SettingsError: there is none of that name.
    """
    if name not in NAMES:
        raise SettingsError(f"{name!r} is no schema: there are {', '.join(NAMES)}")
    return (files("memplan_cli.reporting.schemas") / f"{name}.json").read_text("utf-8")
