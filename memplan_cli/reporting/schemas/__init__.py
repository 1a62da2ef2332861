"""The JSON schemas of what memplan reads and writes, as package data."""

from __future__ import annotations

import json
from importlib.resources import files

from memplan_cli.core.schema_names import SCHEMA_NAMES
from memplan_cli.errors import SettingsError


def schema_text(name: str) -> str:
    """Return a schema's file.

    Raises:
        SettingsError: there is none of that name.
    """
    if name not in SCHEMA_NAMES:
        raise SettingsError(f"{name!r} is no schema: there are {', '.join(SCHEMA_NAMES)}")
    return (files("memplan_cli.reporting.schemas") / f"{name}.json").read_text("utf-8")


def all_schemas_text() -> str:
    """Return every schema by its name, as one object of JSON."""
    from memplan_cli.reporting.media.json_text import json_text

    return json_text({name: json.loads(schema_text(name)) for name in SCHEMA_NAMES})
