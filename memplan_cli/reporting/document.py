"""The document model: a report as a list of blocks that every medium draws in its own way.

A section is written once, as blocks; `media` turns them into text, Markdown and HTML. Blocks
hold plain strings: each medium escapes what it shows, and quotes every `Name`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Name:
    """What a tensor, a node, a file is called: any text at all, shown as a quotation."""

    text: str


Prose = str | Name | tuple[str | Name, ...]
"""A sentence; in parts where it holds names that are to be shown as such."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section, which lasts until the next heading."""

    text: Prose


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence of its own; ``verdict`` is what a hurried reader needs, ``soft`` is detail."""

    text: Prose
    tone: Literal["plain", "verdict", "soft"] = "plain"


@dataclass(frozen=True, slots=True)
class Meaning(Paragraph):
    """What words above it mean, for those who ask for definitions."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its definition.

    Attributes:
        name: what it is called.
        value: the number with its unit, or an expression.
        definition: what it counts.
        saved: what it saves against the baseline, in percent; empty where that says nothing.
        certainty: how sure it is, a word of `figures.CERTAINTY`; empty where none is said.
        chosen: whether it is the one that was planned.
    """

    name: str
    value: str
    definition: str
    saved: str = ""
    certainty: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers that belong together, one below the other."""

    rows: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title, and the side on which its cells stand."""

    title: str
    align: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the caption says what was left out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Prose, ...], ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A step curve: ``(step, value from it on)``, up to the step ``end``; ``mark`` is a step."""

    points: tuple[tuple[int, int], ...]
    end: int
    mark: int
    caption: str


@dataclass(frozen=True, slots=True)
class Items:
    """Short lines, one below the other."""

    lines: tuple[Prose, ...]


@dataclass(frozen=True, slots=True)
class Meanings(Items):
    """What several words above it mean, a line for each."""


SHELL = "sh"
"""The language of commands."""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to copy, shown as they are."""

    lines: tuple[str, ...]
    language: str = "python"


@dataclass(frozen=True, slots=True)
class Note:
    """A remark with its weight."""

    kind: Literal["error", "warning", "note"]
    text: str


Block = Heading | Paragraph | Figures | Table | Chart | Items | Code | Note


@dataclass(frozen=True, slots=True)
class Document:
    """A title, which may be empty, and everything below it."""

    title: Prose
    blocks: tuple[Block, ...]


def without_definitions(document: Document) -> Document:
    """Return a document without what its numbers and words mean."""
    blocks = (
        replace(block, rows=tuple(replace(row, definition="") for row in block.rows))
        if isinstance(block, Figures)
        else block
        for block in document.blocks
        if not isinstance(block, Meaning | Meanings)
    )
    return replace(document, blocks=tuple(blocks))


def parts(prose: Prose) -> tuple[str | Name, ...]:
    """Return a sentence in parts, whether it has several or not."""
    return prose if isinstance(prose, tuple) else (prose,)


def section(title: Prose, *blocks: Block | None) -> Iterator[Block]:
    """Yield a heading and what is below it; nothing where nothing is."""
    found = [block for block in blocks if block is not None]
    if found:
        yield Heading(title)
        yield from found


def columns(*titles: str) -> tuple[Column, ...]:
    """Return columns; a title that begins with ``>`` is of numbers, which stand right."""
    return tuple(
        Column(title[1:], "right") if title.startswith(">") else Column(title)
        for title in titles
    )


def first_rows(
    titles: Sequence[str], rows: Iterable[tuple[Prose, ...]], left: int, things: str
) -> Table | None:
    """Return a table whose caption counts the rows that are left out; None of no rows."""
    found = tuple(rows)
    caption = f"and {left} more {things}" if left > 0 else ""
    return Table(columns(*titles), found, caption) if found else None
