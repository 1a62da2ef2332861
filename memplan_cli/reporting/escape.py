"""Escapes for each place where text from a model is shown.

A name in a model is any string at all: it may hold terminal escapes, markup, formulas or
workflow commands. Each function here is for one place where names are shown.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_NAME = 1000
"""Characters of a name that are shown."""


def terminal(text: str) -> str:
    r"""Return text whose every character shows as itself; the rest becomes ``\x1b``."""
    return printable(text[:_LONGEST_NAME])


def printable(text: str) -> str:
    """Return the same of text that is long for a reason: a line of code."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    # Not printable: what moves cursors, reorders text or shows nothing, and odd blanks.
    if character.isprintable():
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shortened(text: str, width: int) -> str:
    """Return visible text of at most ``width`` characters, its middle left out."""
    shown = terminal(text)
    if len(shown) <= width or width < 5:
        return shown[:width]
    head = (width - 1) // 2
    return f"{shown[:head]}…{shown[len(shown) - (width - 1 - head) :]}"


def per_unit(unit: str) -> str:
    """Return what stands behind a coefficient: `` x batch*seq``; of a number, nothing."""
    return "" if unit == "1" else f" x {terminal(unit)}"


def html(text: str) -> str:
    """Return text for HTML elements and quoted attributes."""
    return xml(text)


def xml(text: str) -> str:
    """Return text for XML elements and quoted attributes, of characters XML allows."""
    shown = terminal(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return shown.replace('"', "&quot;").replace("'", "&#39;")


def script(data: object) -> str:
    """Return JSON that can stand inside ``<script>``, whatever its strings hold."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def markdown(text: str) -> str:
    """Return a code span that ends where it should, in tables too.

    Inside a code span nothing is a link, a mention, HTML or emphasis.
    """
    shown = terminal(text)
    runs = re.findall(r"`+", shown)
    fence = "`" * (1 + max((len(run) for run in runs), default=0))
    padding = " " if runs or not shown.strip() else ""
    # GitHub splits table cells at a bar before it looks for code.
    inner = shown.replace("|", "\\|")
    return f"{fence}{padding}{inner}{padding}{fence}"


def markdown_prose(text: str) -> str:
    """Return a sentence of ours that quotes names: it reads as text, never as markup."""
    escaped = re.sub(
        r"([\\`*\[\]|<>~$&]|(?<!\w)_|_(?!\w)|:(?=\S)|(?<=www)\.)", r"\\\1", terminal(text)
    )
    # GitHub looks for mentions and issues after rendering: an empty comment parts them.
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", escaped)


def cell(text: str) -> str:
    """Return a CSV cell that no spreadsheet takes for a formula."""
    shown = terminal(text)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown


def csv_row(cells: Iterable[str | int | float | None]) -> str:
    """Return one CSV line, quoted where it must be; numbers are numbers."""
    return ",".join(_quoted("" if item is None else item) for item in cells) + "\n"


def _quoted(item: str | float) -> str:
    if not isinstance(item, str):
        return str(item)
    shown = cell(item)
    return '"' + shown.replace('"', '""') + '"' if re.search(r'[",;\t\s]', shown) else shown


def github(text: str) -> str:
    """Return the message of a GitHub workflow command: one line, no command of its own."""
    shown = "\n".join(terminal(line) for line in text.split("\n"))
    return shown.replace("%", "%25").replace("\n", "%0A")


def github_property(text: str) -> str:
    """Return a property of a GitHub workflow command (``file=``, ``title=``)."""
    return github(terminal(text)).replace(":", "%3A").replace(",", "%2C")


def c_string(text: str) -> str:
    """Return a C string literal of plain ASCII."""
    shown = terminal(text).replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return '"' + "".join(_c_character(character) for character in shown) + '"'


def _c_character(character: str) -> str:
    if character.isascii():
        return character
    # Octal ends after three digits; \x would swallow the letters behind it.
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def c_identifier(text: str) -> str:
    """Return upper-case letters, digits and underscores; not unique."""
    return re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_").upper()[:80] or "TENSOR"
