"""The media of documents: text, Markdown and parts of HTML pages; and JSON for results."""

from __future__ import annotations

import json
from importlib import import_module
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
    text = import_module(f"memplan_cli.reporting.media.{medium}").draw(document)
    assert isinstance(text, str)  # noqa: S101 - our own modules
    return text


def renderers(
    make_document: Callable[[Result], Document], *media: Medium
) -> Mapping[str, Callable[[Result], str]]:
    """Return a renderer for each medium: it makes the document of a result and draws it."""
    return {medium: _renderer(make_document, medium) for medium in media}


def _renderer(
    make_document: Callable[[Result], Document], medium: Medium
) -> Callable[[Result], str]:
    return lambda result: draw_document(make_document(result), medium)


def result_renderers(
    name: str, make_document: Callable[[Result], Document], *media: Medium
) -> Mapping[str, Callable[[Result], str]]:
    """Return a renderer for each medium, and one for JSON; `memplan schema NAME` describes that."""
    return {
        **renderers(make_document, *media),
        "json": lambda result: result_json(name, result),
    }


def json_text(content: Json) -> str:
    """Return indented JSON in ASCII, with a newline at the end."""
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def result_json(name: str, result: object) -> str:
    """Return the record of a command's result as JSON; `memplan schema NAME` describes it."""
    return json_text({"schema": f"memplan.{name}/1", **to_json(result)})
