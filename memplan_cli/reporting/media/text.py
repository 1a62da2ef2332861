"""Documents as text for a terminal, with or without colors; names are cut to fit its width."""

from __future__ import annotations

import io
import os
import re
import shutil
from dataclasses import dataclass, replace
from textwrap import indent, wrap
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import MAX_LENGTH, printable, printable_uncut, shortened_name
from memplan_cli.reporting.media.chart import chart_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

_MAX_CHART_WIDTH, _CHART_MARGIN = 100, 2
"""Columns of a chart, and those that stay free on its right."""

_SHORTEST_NAME, _LONGEST_NAME, _NAME_IN_LIST = 12, 100, 24
"""Characters of a name: at least and at most in a column of its own, and in a list in a cell."""

_MAX_PROSE_WIDTH = 30
"""Width that a column of sentences, which can wrap, keeps before names are cut."""

_COLUMN_GAP = 2
"""Blanks after each column."""

_STYLES: Mapping[str, str] = {"plain": "", "verdict": "bold green", "soft": "dim"}


_MAX_LINE = 80
"""Columns of a line of prose, also on a wider screen: longer lines are hard to read."""

_MAX_TABLE_WIDTH = 160
"""Names are cut so that tables are at most so wide, also if lines are never wrapped."""

_UNBROKEN = re.compile(r"(?<=\d) (?=(?:[kKMGTPE]?i?B|ms|s)\b)|(?<= )(--[a-z-]+) (?=[^-\s])")
"""The blank within a figure (``1.5 MiB``), and an option with the blank before its value."""

_NO_BREAK = "\ue000"
"""Stands for a blank at which no line ends, until the text is drawn: rich would wrap at a no-break space.

It is a private character, which texts of a model do not contain: these are escaped.
"""


@dataclass(frozen=True, slots=True)
class Screen:
    """The width of the output in characters, and whether it is colored."""

    width: int = 100
    color: bool = False

    @property
    def table_width(self) -> int:
        """The columns of a table."""
        return min(self.width, _MAX_TABLE_WIDTH)

    @property
    def line_width(self) -> int:
        """The columns of a line of prose."""
        return min(self.width, _MAX_LINE)


def terminal_width() -> int:
    """Return the columns of a text: of the terminal or COLUMNS, in 40 to 160; 80 in a pipe."""
    columns = shutil.get_terminal_size((80, 24)).columns
    if not os.environ.get("COLUMNS") and not os.isatty(1):
        columns = 80
    return min(max(columns, 40), 160)


def draw(document: doc.Document, screen: Screen | None = None) -> str:
    """Return a document as text without trailing blanks; by default as wide as the terminal."""
    screen = screen or Screen(terminal_width())
    console = Console(
        file=io.StringIO(),
        width=screen.width,
        force_terminal=screen.color,
        color_system="standard" if screen.color else None,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        # rich would read NO_COLOR, COLUMNS and TERM again, which the caller has evaluated.
        _environ={},
    )
    with console.capture() as capture:
        for part in _parts(document, screen):
            # With ``soft_wrap``, rich prints lines that are wider than the console as they are.
            console.print(part, soft_wrap=isinstance(part, _Unwrapped))
    lines = capture.get().replace(_NO_BREAK, " ").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


class _Unwrapped(Text):
    """Code to copy, never wrapped: a shell would run each line as a command."""


def _parts(document: doc.Document, screen: Screen) -> Iterator[RenderableType]:
    """Yield what rich prints: the subject line, and the blocks, indented by 2 below the first heading."""
    if document.title:
        yield Text(_subject_line(document, screen), style="bold")
    inset = 0
    # Without a title the first block has nothing above it, as below a heading.
    previous: doc.Block | None = None if document.title else doc.Heading("")
    for block in document.blocks:
        if isinstance(block, doc.Heading):
            yield Text(f"\n{_line(block.text, screen.table_width)}", style="bold cyan")
            inset = 2
        else:
            if _stands_apart(block, previous, in_section=inset > 0):
                yield Text("")
            if isinstance(block, doc.NextStep):  # it ends the report, not the last section
                inset = 0
            content = _block(block, screen, inset)
            if isinstance(content, _Unwrapped):  # rich wraps what is in a Padding
                yield _Unwrapped(indent(content.plain, " " * inset), style=content.style)
            else:
                yield Padding(content, (0, 0, 0, inset), expand=False)
        previous = block


def _stands_apart(block: doc.Block, previous: doc.Block | None, *, in_section: bool) -> bool:
    """Return whether an empty line separates a block from the previous one, or from the title (None)."""
    if previous is None or isinstance(previous, doc.Table | doc.Chart | doc.Code):
        return True
    # Blocks of one type, such as the notes of a list, follow each other without empty lines.
    if isinstance(previous, doc.Heading) or type(previous) is type(block):
        return False
    if isinstance(block, doc.Table) and not in_section:
        return True
    # Before the first and after the last block of a list.
    return isinstance(previous, _LISTS) or isinstance(block, _LISTS)


_LISTS = (doc.Note, doc.Check, doc.NextStep)
"""Blocks that form a list with their neighbors of the same type."""


def _subject_line(document: doc.Document, screen: Screen) -> str:
    """Return the title, and the context at the right end of the line, or below if there is no room."""
    title = _line(document.title, screen.line_width)
    room = screen.line_width - len(title)
    context = printable(document.context)
    separator = " " * (room - len(context)) if len(context) + _COLUMN_GAP <= room else "\n"
    return f"{title}{separator}{context}" if context else title


def _block(block: doc.Block, screen: Screen, inset: int) -> RenderableType:
    """Return what rich prints for a block, in ``inset`` columns less than the screen has."""
    width = screen.table_width - inset

    def wrapped(prose: doc.Prose, label: str = "") -> str:
        return _wrapped(_prose_text(prose), screen.line_width - inset, label)

    match block:
        case doc.Paragraph(text, tone):
            return Text(wrapped(text), style=_STYLES[tone])
        case doc.Table():
            return _table(block, width)
        case doc.Chart():
            lines = chart_lines(block, min(width - _CHART_MARGIN, _MAX_CHART_WIDTH))
            caption = Text(printable(block.caption), style="dim")
            return Group(Text("\n".join(lines), style="cyan"), caption)
        case doc.Items(lines):
            return Text("\n".join(map(wrapped, lines)))
        case doc.Code(lines):
            return _Unwrapped("\n".join(map(printable_uncut, lines)), style="dim")
        case doc.Note(kind, text):
            return Text(wrapped(text, f"{kind}: "))
        case doc.Check(text, passed):
            style = _STYLES["verdict"] if passed else "bold red"
            return Text(wrapped(text, f"[{block.mark}] "), style=style)
        case doc.NextStep(label, command):
            return _Unwrapped(f"{printable(label)}:  {printable_uncut(command)}", style="bold")
    # `_parts` draws headings itself: this line is for the type checker only.
    return Text(_prose_text(block.text))


def _wrapped(text: str, width: int, label: str) -> str:
    """Return a labeled sentence in lines of at most ``width``; they begin below the end of the label.

    No line is broken within a figure or an option: their blanks become `_NO_BREAK`, which `draw` changes back.
    """
    lines = wrap(
        _unbroken(text),
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def _unbroken(text: str) -> str:
    """Return a text whose figures and options have no blank at which a line can end."""
    return _UNBROKEN.sub(lambda match: f"{match[1] or ''}{_NO_BREAK}", text)


def _prose_text(prose: doc.Prose, name_width: int = MAX_LENGTH) -> str:
    """Return a sentence with printable characters only.

    Names in it are shortened to ``name_width`` characters, and the parts between them cut to `MAX_LENGTH`.
    """
    return "".join(
        shortened_name(part.text, name_width)
        if isinstance(part, doc.Name)
        else printable(part)
        for part in doc.parts(prose)
    )


def _line(prose: doc.Prose, width: int) -> str:
    """Return a sentence whose names are cut so that it fits on one line of ``width``."""
    parts = doc.parts(prose)
    name_count = sum(isinstance(part, doc.Name) for part in parts)
    taken = sum(len(printable(part)) for part in parts if not isinstance(part, doc.Name))
    return _prose_text(prose, max((width - taken) // max(name_count, 1), _SHORTEST_NAME))


def _grid(heads: Sequence[doc.Column]) -> Table:
    """Return an empty table of rich without lines; the titles are shown if there are any.

    Columns aligned to the right have numbers, which are never wrapped.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="dim")
    grid.show_header = any(head.title for head in heads)
    for head in heads:
        grid.add_column(
            head.title,
            justify=head.align,
            no_wrap=head.align == "right",
            overflow="fold",
        )
    return grid


def _table(table: doc.Table, width: int) -> RenderableType:
    """Return a table with names cut so that it fits in ``width``, and its caption below it."""
    table = _without_empty_columns(table)
    grid, name_width = _grid(table.columns), _name_width(table, width)
    for row in table.rows:
        # A tuple is a list of names within a sentence, which each get less room.
        cells = (
            _unbroken(
                _prose_text(cell, _NAME_IN_LIST if isinstance(cell, tuple) else name_width)
            )
            for cell in row
        )
        grid.add_row(*map(Text, cells))
    if not table.caption:
        return grid
    return Group(grid, Text(printable(table.caption), style="dim"))


def _without_empty_columns(table: doc.Table) -> doc.Table:
    """Return a table without columns that have no text; rich would reserve width for them."""
    kept = [
        index
        for index, column in enumerate(table.columns)
        if column.title or any(row[index] for row in table.rows)
    ]
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[index] for index in kept), rows=rows)


def _name_width(table: doc.Table, width: int) -> int:
    """Return the number of characters to which names are cut, so that a row fits in ``width`` if possible.

    Columns of sentences and numbers keep their width, and the columns of names share the rest.
    """
    room = width
    name_columns = []  # the width that each needs
    for index, column in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        names = [printable(cell.text) for cell in cells if isinstance(cell, doc.Name)]
        room -= _COLUMN_GAP
        if names:
            name_columns.append(max(map(len, (column.title, *names))))
        else:
            room -= _kept_width(column, cells)
    return min(max(_shared_width(name_columns, room), _SHORTEST_NAME), _LONGEST_NAME)


def _kept_width(column: doc.Column, cells: Sequence[doc.Prose]) -> int:
    """Return the width of a column of sentences, which can wrap, or of numbers (on the right), which cannot."""
    longest = max((len(_prose_text(cell, _NAME_IN_LIST)) for cell in cells), default=0)
    if column.align != "right":
        longest = min(longest, _MAX_PROSE_WIDTH)
    return max(longest, len(column.title))


def _shared_width(needed: Sequence[int], room: int) -> int:
    """Return the width of the columns that have to be cut, if columns that need these widths share ``room``.

    A column that needs less than an equal share leaves the rest of it to the others. If nothing has to be cut,
    the result is `_LONGEST_NAME`.
    """
    columns = sorted(needed)
    while columns and columns[0] <= room // len(columns):
        room -= columns.pop(0)
    return room // len(columns) if columns else _LONGEST_NAME
