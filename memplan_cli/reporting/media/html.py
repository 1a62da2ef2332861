"""Documents as sections of an HTML page; no style, no script, nothing from any network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import html
from memplan_cli.reporting.media.chart import sampled_maxima

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_POINTS = 250
"""Points of a chart; a longer curve is sampled by its maxima."""

_WIDE_BLOCKS = (doc.Table, doc.Code)
"""Blocks that need a page's whole width."""


def draw(document: doc.Document) -> tuple[str, str]:
    """Return the blocks above the first heading, and a ``<section>`` for each heading, as HTML.

    The title is left to the page; the context is above the blocks.
    """
    context = f'<p class="soft">{html(document.context)}</p>' if document.context else ""
    sections: list[list[doc.Block]] = [[]]
    for block in document.blocks:
        if isinstance(block, doc.Heading):
            sections.append([])
        sections[-1].append(block)
    head = "".join([context, *map(_block, sections[0])])
    return head, "".join(map(_section, sections[1:]))


def _section(blocks: Sequence[doc.Block]) -> str:
    wide = ' class="wide"' if any(isinstance(block, _WIDE_BLOCKS) for block in blocks) else ""
    return f"<section{wide}>{''.join(map(_block, blocks))}</section>\n"


def _block(block: doc.Block) -> str:
    """Return a block as an HTML element; tones and kinds of notes become classes."""
    match block:
        case doc.Heading(text):
            return f"<h2>{prose_html(text)}</h2>"
        case doc.Paragraph(text, tone):
            kind = "" if tone == "plain" else f' class="{tone}"'
            return f"<p{kind}>{_options_unbroken(prose_html(text))}</p>"
        case doc.Chart():
            return _chart(block)
        case doc.Items(lines):
            return f"<ul>{''.join(f'<li>{prose_html(line)}</li>' for line in lines)}</ul>"
        case doc.Code(lines):
            text = "\n".join(map(html, lines))
            return f"<pre>{text}</pre>"
        case doc.Note(kind, text):
            return f'<p class="{kind}">{kind}: {prose_html(text)}</p>'
        case doc.Check(text):
            return f'<p class="{block.mark}">[{block.mark}] {prose_html(text)}</p>'
        case doc.NextStep(label, command):
            return f"<p>{html(label)}: <code>{html(command)}</code></p>"
        case doc.Table():
            return _table(block)


def prose_html(prose: doc.Prose) -> str:
    """Return prose, with its names, escaped as by `html`."""
    return "".join(
        html(part.text if isinstance(part, doc.Name) else part) for part in doc.parts(prose)
    )


def _options_unbroken(text: str) -> str:
    """Return HTML in which no line ends within the name of an option, as ``--`` and ``dim``."""
    return re.sub(r"(?<!\S)--[\w-]+", r'<span class="option">\g<0></span>', text)


def html_with_breaks(value: str) -> str:
    """Return a number or expression as HTML that can wrap after each operator."""
    return re.sub(r"(\*|\+ |, )", r"\1<wbr>", html(value))


def _table(table: doc.Table) -> str:
    """Return a table that scrolls by itself if it is too wide, and its caption below it."""
    # The class "n" aligns the cells of a column to the right.
    classes = [' class="n"' if column.align == "right" else "" for column in table.columns]
    titles = [column.title for column in table.columns]
    head = "".join(_cells("th", titles, [f' scope="col"{name}' for name in classes]))
    body = "".join(f"<tr>{''.join(_cells('td', row, classes))}</tr>" for row in table.rows)
    caption = f'<p class="soft">{html(table.caption)}</p>' if table.caption else ""
    return (
        '<div class="scroll"><table class="rows">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{caption}"
    )


def _cells(tag: str, cells: Iterable[doc.Prose], attributes: Iterable[str]) -> Iterator[str]:
    """Return the elements of one row; ``attributes`` are the HTML attributes of each cell."""
    return (
        f"<{tag}{attribute}>{prose_html(cell)}</{tag}>"
        for cell, attribute in zip(cells, attributes, strict=True)
    )


def _chart(chart: doc.Chart) -> str:
    """Return the curve as SVG, with a vertical line at its mark."""
    values = sampled_maxima(chart.points, chart.end, _POINTS)
    highest = max(1, *values)
    # A step per value: up or down to its height in percent (y is 0 at the top), then 1 to the right.
    curve = "".join(
        f"V{100 - 100 * value / highest:.1f}H{x}" for x, value in enumerate(values, start=1)
    )
    mark = _POINTS * chart.mark / max(chart.end, 1)
    return (
        f'<svg viewBox="0 0 {_POINTS} 100" role="img" aria-label="{html(chart.caption)}">'
        f'<path d="M0 100{curve}V100Z" fill="currentColor" fill-opacity=".3"/>'
        f'<path d="M{mark:.1f} 0V100" stroke="currentColor" stroke-width=".5"/></svg>'
        f'<p class="soft">{html(chart.caption)}</p>'
    )
