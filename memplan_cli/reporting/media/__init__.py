"""The media of documents: text, Markdown and parts of HTML pages; and JSON for results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypeVar

from memplan_cli.core.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.json_types import Json
    from memplan_cli.reporting.document import Document

Result = TypeVar("Result")

Medium = Literal["text", "markdown"]


def draw_document(document: Document, medium: Medium) -> str:
    """Return a document as text or Markdown. The medium's module is imported here, when needed."""
    if medium == "text":
        from memplan_cli.reporting.media.text import draw as draw_text  # loads rich

        return draw_text(document)
    from memplan_cli.reporting.media.markdown import draw as draw_markdown

    return draw_markdown(document)


def result_renderers(
    name: str, make_document: Callable[[Result], Document], *media: Medium
) -> Mapping[str, Callable[[Result], str]]:
    """Return a renderer of a command's result for each medium, and one for JSON.

    ``make_document`` returns the document of a result; `memplan schema NAME` describes its JSON.
    """

    def renderer(medium: Medium) -> Callable[[Result], str]:
        return lambda result: draw_document(make_document(result), medium)

    renderers: dict[str, Callable[[Result], str]] = {
        medium: renderer(medium) for medium in media
    }
    return {**renderers, "json": lambda result: result_json(name, result)}


def json_text(content: Json) -> str:
    """Return indented JSON in ASCII, with a newline at the end."""
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def result_json(name: str, result: object) -> str:
    """Return the record of a command's result as JSON; `memplan schema NAME` describes it."""
    return json_text({"schema": f"memplan.{name}/1", **to_json(result)})
