"""Results as JSON: plain ASCII, indented, a newline at the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.core.serialization import Json


def json_text(content: Json) -> str:
    """Return JSON for people and programs alike."""
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def result_json(name: str, content: Json) -> str:
    """Return a result as JSON that says which schema it has; `memplan schema NAME` prints it."""
    return json_text({"schema": f"memplan.{name}/1", **content})


def json_line(content: Json) -> str:
    """Return JSON on one line, for programs that read it line by line."""
    return json.dumps(content)
