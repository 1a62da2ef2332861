"""Escaping of text from models, one function for each place where it is shown.

A name in a model is an arbitrary string: it can contain terminal escapes, markup, spreadsheet
formulas or workflow commands.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LENGTH = 1000
"""Characters that are shown of a name or a part of a sentence."""


def printable(text: str) -> str:
    r"""Return text with unprintable characters as escapes such as ``\x1b``, cut to `MAX_LENGTH` characters."""
    return printable_uncut(text[:MAX_LENGTH])


def printable_uncut(text: str) -> str:
    """Return text of any length, for example code, on one line with unprintable characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    # Unprintable characters move the cursor, reorder text, are invisible or are unusual blanks.
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """Return text of any length with unprintable characters as escapes, line breaks excepted."""
    return "\n".join(map(printable_uncut, text.split("\n")))


def shortened_name(text: str, width: int) -> str:
    """Return an escaped name of at most ``width`` characters.

    A longer name keeps its start and its end around an ellipsis; below a width of 5, which has no
    room for both, only its start.
    """
    shown = printable(text)
    if len(shown) <= width or width < 5:
        return shown[:width]
    head = (width - 1) // 2
    tail = width - 1 - head
    return f"{shown[:head]}…{shown[len(shown) - tail :]}"


def per_unit(unit: str) -> str:
    """Return the suffix of a size in multiples of a unit: `` x batch*seq``; empty for ``1``."""
    return "" if unit == "1" else f" x {printable(unit)}"


def html(text: str) -> str:
    """Return text for elements and quoted attributes of HTML or XML.

    Characters that XML forbids are escapes, as for `printable`.
    """
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return shown.replace('"', "&quot;").replace("'", "&#39;")


def script(data: object) -> str:
    """Return JSON that is safe inside ``<script>`` with any strings."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def markdown_code(text: str) -> str:
    """Return text as a Markdown code span, in which nothing is a link, a mention, HTML or emphasis.

    In a table it must be `markdown_code_in_table`.
    """
    shown = printable(text)
    runs = re.findall(r"`+", shown)
    fence = "`" * (1 + max((len(run) for run in runs), default=0))
    # A blank separates backticks of the text from the fence, and fills an empty span. If a span has
    # blanks at both ends, Markdown removes one at each.
    has_blank_ends = shown.startswith(" ") and shown.endswith(" ")
    padding = " " if runs or not shown or has_blank_ends else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


def markdown_code_in_table(text: str) -> str:
    """Return text as a Markdown code span in a table, where a bar would end the cell."""
    return markdown_code(text).replace("|", "\\|")


_INLINE_MARKDOWN = re.compile(
    r"""
    [\\`*\[\]|<>~$&]
    | (?<!\w)_ | _(?!\w)  # an underscore within a word is no emphasis
    | :(?=\S)  # of ``https:...``, which GitHub links, or of ``:name:``, an emoji
    | (?<=www)\.  # GitHub links ``www.`` too
    """,
    re.VERBOSE,
)


def markdown_prose(text: str) -> str:
    """Return a sentence with all inline Markdown syntax escaped, so that names in it are no markup.

    Syntax of blocks at its start, such as ``# ``, stays.
    """
    escaped = _INLINE_MARKDOWN.sub(r"\\\g<0>", printable(text))
    # GitHub finds mentions and issues after rendering: an empty comment separates them.
    return re.sub(r"([@#])(?=\w)", r"\1<!-- -->", escaped)


def csv_row(cells: Iterable[str | int | float | None]) -> str:
    """Return one CSV line; texts are quoted if necessary, None is empty."""
    return ",".join(_quoted("" if item is None else item) for item in cells) + "\n"


def _quoted(item: str | float) -> str:
    """Return a number as it is, and a text in quotes if it has a separator in it."""
    if not isinstance(item, str):
        return str(item)
    shown = printable(item)
    if shown[:1] in ("=", "+", "-", "@"):
        shown = f"'{shown}"  # otherwise a spreadsheet evaluates it as a formula
    return '"' + shown.replace('"', '""') + '"' if re.search(r'[",;\t\s]', shown) else shown


def github(text: str) -> str:
    """Return the message of a GitHub workflow command on one line: a new line could be a command."""
    shown = "\n".join(printable(line) for line in text.split("\n"))
    return shown.replace("%", "%25").replace("\n", "%0A")


def github_property(text: str) -> str:
    """Return a property of a GitHub workflow command (``file=``, ``title=``)."""
    return github(printable(text)).replace(":", "%3A").replace(",", "%2C")


def c_string(text: str) -> str:
    """Return a C string literal that shows a name; unprintable characters are escapes in it."""
    return c_literal(printable(text))


def c_literal(text: str) -> str:
    """Return a C string literal with exactly the UTF-8 bytes of a text.

    Other characters than printable ASCII are octal escapes, which end after three digits: ``\\x``
    would include the letters behind it.
    """
    # A question mark is escaped because two of them can begin a trigraph.
    escapes = {ord('"'): '\\"', ord("\\"): "\\\\", ord("?"): "\\?"}
    characters = (
        escapes.get(byte, chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode()
    )
    return f'"{"".join(characters)}"'


def c_identifier(text: str) -> str:
    """Return a C identifier of upper-case letters, digits and underscores; not unique."""
    return re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_").upper()[:80] or "TENSOR"
