"""The document model: a report as a list of blocks, which `media` draws as text, Markdown or HTML.

The report of every command has the same parts in the same order, so that a reader finds each by its
place:

1. The subject line, `Document.title` and `Document.context`: what the report is about, and with which
   runtime: ``model.onnx -> model.memplan.onnx      ONNX Runtime 1.31.1, CPU``.
2. Each `Note` that limits the figures: guessed sizes, warnings. They precede all figures.
3. Each `Table` of figures: the title of its first column is the topic, a row is one figure
   (``while loading   366.5 MiB   22.8 MiB   -94%``). A result such as "No saving" follows as a `Paragraph`
   with its reason.
4. Each `Check`, in plain sentences: ``[ok] The outputs are bit-identical to a default run of the original.``
5. The `NextStep`: the command that most readers want next, with the options that they gave before.

All sizes are written by `core.quantities.format_size`: a report has one family of units. Texts fit 80
columns, and no line breaks inside a figure or an option.

Blocks contain plain strings. Each medium escapes them and marks every `Name` as a quotation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a tensor, a node or a file: arbitrary text from a model, shown as a quotation."""

    text: str


Prose = str | Name | tuple[str | Name, ...]
"""A sentence; a tuple of parts if it contains names."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section. The section ends at the next heading."""

    text: Prose


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph.

    Attributes:
        text: its sentences.
        tone: ``verdict`` for the result, shown in bold; ``soft`` for details, shown dimmed.
    """

    text: Prose
    tone: Literal["plain", "verdict", "soft"] = "plain"


@dataclass(frozen=True, slots=True)
class Meaning(Paragraph):
    """A definition of words above it, left out unless definitions are asked for."""


@dataclass(frozen=True, slots=True)
class Column:
    """The title of a column, and the alignment of its cells."""

    title: str
    align: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the caption counts the rows that were left out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Prose, ...], ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A step curve.

    Attributes:
        points: ``(step, value from this step on)``, ascending.
        end: the step at which the curve ends.
        mark: a step to mark with a line.
        caption: the text below.
    """

    points: tuple[tuple[int, int], ...]
    end: int
    mark: int
    caption: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list of short lines."""

    lines: tuple[Prose, ...]


@dataclass(frozen=True, slots=True)
class Meanings(Items):
    """Definitions of words above it, one line each, left out unless definitions are asked for."""


SHELL = "sh"
"""The language of shell commands, which are never wrapped."""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code to copy, shown unchanged."""

    lines: tuple[str, ...]
    language: str = "python"


@dataclass(frozen=True, slots=True)
class Note:
    """A remark with its weight."""

    kind: Literal["error", "warning", "note"]
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check or a proof, as a full sentence."""

    text: Prose
    passed: bool = True

    @property
    def mark(self) -> str:
        """The word that tells the result."""
        return "ok" if self.passed else "failed"


@dataclass(frozen=True, slots=True)
class NextStep:
    """What most readers do next.

    Attributes:
        label: what the command does, as an imperative: ``Write the model``.
        command: one line to copy, never wrapped: a shell command, or Python.
        language: its language.
    """

    label: str
    command: str
    language: str = SHELL


Block = Heading | Paragraph | Table | Chart | Items | Code | Note | Check | NextStep


@dataclass(frozen=True, slots=True)
class Document:
    """A report.

    Attributes:
        title: what it is about; may be empty.
        blocks: the blocks below the title.
        context: what all figures depend on, such as the runtime and its version; shown at the right end of
            the title's line. Empty if there is nothing to say.
    """

    title: Prose
    blocks: tuple[Block, ...]
    context: str = ""


def without_definitions(document: Document) -> Document:
    """Return a document without the definitions of its figures and words."""
    blocks = (block for block in document.blocks if not isinstance(block, Meaning | Meanings))
    return replace(document, blocks=tuple(blocks))


def parts(prose: Prose) -> tuple[str | Name, ...]:
    """Return the parts of a sentence; a plain string is one part."""
    return prose if isinstance(prose, tuple) else (prose,)


def section(title: Prose, *blocks: Block | None) -> Iterator[Block]:
    """Yield a heading and its blocks, without those that are None; nothing if all are None."""
    content = [block for block in blocks if block is not None]
    if content:
        yield Heading(title)
        yield from content


def columns(*titles: str) -> tuple[Column, ...]:
    """Return columns with these titles; a leading ``>`` aligns the column to the right."""
    return tuple(
        Column(title[1:], "right") if title.startswith(">") else Column(title)
        for title in titles
    )


def first_rows(
    titles: Sequence[str],
    rows: Sequence[tuple[Prose, ...]],
    noun: str,
    max_rows: int | None = None,
) -> Table | None:
    """Return a table of the first ``max_rows`` rows (None: of all rows); None if it has no row.

    The caption counts the rows left out: "and 4 more tensors", where "tensors" is ``noun``.
    """
    shown = tuple(rows[:max_rows])
    hidden = len(rows) - len(shown)
    caption = f"and {hidden} more {noun}" if hidden else ""
    return Table(columns(*titles), shown, caption) if shown else None
