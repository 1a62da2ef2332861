"""The media that draw documents: text, Markdown, parts of HTML pages; and JSON for data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.reporting.document import Document

Found = TypeVar("Found")

Medium = Literal["text", "markdown"]


def drawn(document: Document, medium: Medium) -> str:
    """Return a document in one medium, whose module is loaded when it draws."""
    text = import_module(f"memplan_cli.reporting.media.{medium}").draw(document)
    assert isinstance(text, str)  # noqa: S101 - our own modules
    return text


def renderers(
    document: Callable[[Found], Document], *media: Medium
) -> Mapping[str, Callable[[Found], str]]:
    """Return, for each medium, a renderer of what a document can be made of."""
    return {medium: _renderer(document, medium) for medium in media}


def _renderer(document: Callable[[Found], Document], medium: Medium) -> Callable[[Found], str]:
    return lambda found: drawn(document(found), medium)
