"""The JSON schemas of what memplan reads and writes."""

from __future__ import annotations

import json
from typing import Any


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of something that memplan reads or writes.

    Raises:
        SettingsError: there is none of that name.
    """
    from memplan_cli.reporting.schemas import schema_text

    found: dict[str, Any] = json.loads(schema_text(name))
    return found
