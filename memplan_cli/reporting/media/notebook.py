"""Documents as one cell of a notebook: a title, its parts, and a style that stays inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.reporting.media import html

if TYPE_CHECKING:
    from memplan_cli.reporting.document import Document

_STYLE = (
    ".memplan svg{max-width:40em;width:100%;height:6em}"
    ".memplan small{display:block}.memplan .soft{opacity:.7}"
    ".memplan .verdict,.memplan .chosen{font-weight:bold}"
    ".memplan .n{text-align:right;white-space:nowrap}"
)


def draw(document: Document) -> str:
    """Return a document as a part of a page that is somebody else's."""
    above, sections = html.draw(document)
    title = html.said(document.title)
    head = f"<h3>{title}</h3>" if title else ""
    return f'<div class="memplan"><style>{_STYLE}</style>{head}{above}{sections}</div>\n'
