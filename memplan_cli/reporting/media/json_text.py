"""Results of commands as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json


def json_text(content: Json) -> str:
    """Return indented JSON in ASCII, with a newline at the end."""
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def result_json(name: str, result: object) -> str:
    """Return the record of a command's result as JSON; `memplan schema NAME` describes it."""
    return json_text(_with_schema(name, result))


def result_line(name: str, result: object) -> str:
    """Return the record of a command's result as JSON on one line."""
    return json.dumps(_with_schema(name, result))


def _with_schema(name: str, result: object) -> Json:
    return {"schema": f"memplan.{name}/1", **to_json(result)}
