"""Documents as GitHub's Markdown: for step summaries, pull requests and wikis."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import (
    markdown_code,
    markdown_code_in_table,
    markdown_prose,
    printable_uncut,
)
from memplan_cli.reporting.media.chart import chart_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_CHART_WIDTH = 80


def draw(document: doc.Document) -> str:
    """Return a document as Markdown."""
    title = [f"## {_prose_text(document.title)}"] if document.title else []
    if document.context:
        title.append(markdown_prose(document.context))
    # Consecutive notes and checks are one list.
    runs = groupby(document.blocks, lambda block: isinstance(block, doc.Note | doc.Check))
    texts = (("\n" if items else "\n\n").join(map(_block, run)) for items, run in runs)
    return "\n\n".join([*title, *texts]) + "\n"


def _block(block: doc.Block) -> str:
    """Return a block as Markdown, without an empty line at its end."""
    match block:
        case doc.Heading(text):
            return f"### {_prose_text(text)}"
        case doc.Paragraph(text, tone):
            return f"**{_prose_text(text)}**" if tone == "verdict" else _prose_text(text)
        case doc.Chart():
            return _fenced((*chart_lines(block, _CHART_WIDTH), block.caption), "text")
        case doc.Items(lines):
            return "\n".join(f"- {_prose_text(line)}" for line in lines)
        case doc.Code(lines, language):
            return _fenced(lines, language)
        case doc.Note(kind, text):
            label = kind if kind == "note" else f"**{kind}**"
            return f"- {label}: {_prose_text(text)}"
        case doc.Check(text, passed):
            mark = block.mark if passed else f"**{block.mark}**"
            return f"- {mark}: {_prose_text(text)}"
        case doc.NextStep(label, command, language):
            return f"{markdown_prose(label)}:\n\n{_fenced((command,), language)}"
        case doc.Table(columns, rows, caption):
            table = _table(columns, (map(_cell_text, row) for row in rows))
            return f"{table}\n\n{_prose_text(caption)}" if caption else table


def _cell_text(prose: doc.Prose) -> str:
    """Return a sentence for a cell of a table."""
    return _prose_text(prose, markdown_code_in_table)


def _prose_text(prose: doc.Prose, code_of: Callable[[str], str] = markdown_code) -> str:
    """Return a sentence in which each name becomes a code span by ``code_of``; an empty name is left out."""
    return "".join(
        (code_of(part.text) if part.text else "")
        if isinstance(part, doc.Name)
        else markdown_prose(part)
        for part in doc.parts(prose)
    )


def _table(columns: Iterable[doc.Column], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of cells that are Markdown already, under a head and a rule with alignments."""
    heads = list(columns)
    rule = ["---:" if column.align == "right" else "---" for column in heads]
    return "\n".join(map(_row, ([column.title for column in heads], rule, *rows)))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fenced(lines: Iterable[str], language: str) -> str:
    """Return a code block whose fence is longer than any in its lines."""
    text = "\n".join(map(printable_uncut, lines))
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{language}\n{text}\n{fence}"
