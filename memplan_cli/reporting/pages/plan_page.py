"""The self-contained HTML page of a plan: a map of the memory, figures and searchable tables.

The page loads nothing from a network. Its content security policy allows the page's own script
and style by their digests, so that text injected through a model's names cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from importlib.resources import files
from typing import TYPE_CHECKING

from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import html, script
from memplan_cli.reporting.media.html import draw, html_with_breaks, prose_html
from memplan_cli.reporting.pages.page_data import page_data
from memplan_cli.reporting.plans.memory import memory_figures, total_figures
from memplan_cli.reporting.plans.report import answer_document, plan_document
from memplan_cli.reporting.plans.sections import generic_sections, known_only

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.reporting.pages.graph_facts import GraphFacts
    from memplan_cli.reporting.plans.report import Invocation
    from memplan_cli.reporting.plans.sections import PlanSection

_MAX_ROWS = 1000
"""Rows of each table below the map."""

_NOTEBOOK_ROWS = 20
"""Rows of each table in the output of a notebook cell."""

_NOTEBOOK_STYLE = (
    ".memplan svg{max-width:40em;width:100%;height:6em}"
    ".memplan .soft{opacity:.7}.memplan .verdict{font-weight:bold}"
    ".memplan .n{text-align:right;white-space:nowrap}"
)
"""Style of the report only: all outputs of a notebook share one page."""

_MAX_PLAIN_DATA = 400_000
"""Characters of JSON from which on the data of a page is compressed."""

_HIDDEN = " hidden"
"""The attribute that hides an HTML element."""

_SCRIPTS = ("base", "values", "map", "table", "groups", "page")

_COLUMNS: Mapping[str, tuple[str, str]] = {
    "name": ("tensor", ""),
    "bytes": ("bytes", "n"),
    "size": ("size", ""),
    "dtype": ("dtype", ""),
    "shape": ("shape", ""),
    "offset": ("offset", "n"),
    "first": ("steps", "n"),
    "category": ("category", ""),
    "made": ("made by", ""),
    "read": ("last read by", ""),
}
"""Key of a column of the table of tensors -> its title and its class; ``n`` is a number."""


def render(
    plan: Plan,
    facts: GraphFacts | None = None,
    sections: Sequence[PlanSection] = (),
    invocation: Invocation | None = None,
) -> str:
    """Return the page of a plan as HTML: the short answer, the map, and all sections below it.

    ``facts`` are op types and tensor categories from the model; None: the model is not at hand.
    """
    report = plan.report
    peak = f", highest at step {report.peak.step}, {report.peak.node}" if report.peak else ""
    answer = answer_document(plan, sections, invocation)
    details = doc.Document("", tuple(generic_sections(plan, _MAX_ROWS, sections)))
    # `draw` returns what comes before the first heading, and a section for each heading.
    answer_elements, _ = draw(answer)  # has no heading
    _, section_elements = draw(details)  # begins with a heading
    data = page_data(plan, facts)  # from which scripts draw the map
    # "bytes" has the numbers; "size" has the expressions, if there are any. The unit of fixed sizes is 1.
    is_symbolic = any(arena.unit != "1" for arena in plan.arenas)
    columns = {key: column for key, column in _COLUMNS.items() if is_symbolic or key != "size"}
    parts = {
        "title": prose_html(answer.title),
        "head": answer_elements,
        "cards": "".join(_cards(report)),
        # Controls that have nothing to choose from are hidden.
        "one_arena": "" if len(plan.arenas) > 1 else _HIDDEN,
        "no_symbols": "" if data["symbols"] else _HIDDEN,
        "no_types": "" if data["type"] else _HIDDEN,
        "no_regions": "" if data["regions"] else _HIDDEN,
        "arenas": "".join(_arena_options(plan)),
        "live": html(f"Live bytes over time{peak}"),
        "known": html(known_only(report)),
        "columns": "".join(
            f'<th class="{kind}" data-key="{key}" data-name="{name}" scope="col">'
            f'<button type="button">{name}</button></th>'
            for key, (name, kind) in columns.items()
        ),
        "sections": section_elements,
        "footer": html(f"memplan {plan.version}; model sha256 {report.model.sha256}"),
    }
    return _assembled(parts, data)


def notebook_report(plan: Plan, sections: Sequence[PlanSection] = ()) -> str:
    """Return the figures and tables of a plan as one ``<div>``, for the output of a notebook cell."""
    document = plan_document(plan, _NOTEBOOK_ROWS, sections)
    above, section_elements = draw(document)
    head = f"<h3>{prose_html(document.title)}</h3>"
    style = f"<style>{_NOTEBOOK_STYLE}</style>"
    return f'<div class="memplan">{style}{head}{above}{section_elements}</div>\n'


def _assembled(parts: Mapping[str, str], data: Json) -> str:
    """Return the page as HTML, with its style, its script, its policy and the data of the script.

    The template has placeholders ``{name}``, which ``parts`` fill with HTML. The script files become one
    script.
    """
    page = files("memplan_cli.reporting.pages") / "page"
    css = (page / "page.css").read_text("utf-8")
    code = "".join((page / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    js = f'"use strict";\n(async () => {{\n{code}}})();\n'
    filled = {
        **parts,
        "css": css,
        "js": js,
        "policy": _policy(css, js),
        "data": _data_element(data),
    }
    # One pass over the template: placeholders in the inserted text are not replaced.
    text = (page / "page.html").read_text("utf-8")
    return re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], text)


def _data_element(data: Json) -> str:
    """Return the ``<script>`` element with a page's data: JSON, if large compressed and in base64."""
    text = script(data)
    if len(text) < _MAX_PLAIN_DATA:
        return f'<script type="application/json" id="data">{text}</script>'
    compressed = base64.b64encode(zlib.compress(text.encode())).decode()
    return f'<script type="text/plain" id="data">{compressed}</script>'


def _policy(css: str, js: str) -> str:
    """Return the content security policy: this style and script only, and nothing from a network."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(css)}'; "
        f"script-src '{_digest(js)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _arena_options(plan: Plan) -> Iterator[str]:
    """Yield the ``<option>`` elements that choose which arena the map shows."""
    yield '<option value="-1" selected>all, one after the other</option>'
    for index, arena in enumerate(plan.arenas):
        name = "fixed sizes" if arena.unit == "1" else f"multiples of {arena.unit}"
        yield f'<option value="{index}">{html(name)}</option>'


def _cards(report: Report) -> Iterator[str]:
    """Yield the boxes with the four main figures at the top of the page."""
    memory = {row.name: row for row in memory_figures(report)}
    totals = {row.name: row for row in total_figures(report)}
    for key, title, row in (
        ("naive", "without reuse", memory["naive"]),
        ("planned", f"planned at level {report.level}", memory[f"level {report.level}"]),
        ("lower bound", "lower bound", memory["lower bound"]),
        ("total", "all tensors", totals["total"]),
    ):
        saved = f'<span class="saved"> ({row.saved} saved)</span>' if row.saved else ""
        certainty = f"{row.certainty}: " if row.certainty else ""
        yield (
            f'<div data-figure="{key}"><span class="soft">{html(title)}</span>'
            f"<strong>{html_with_breaks(row.value)}</strong>"
            f"<small>{html(certainty + row.definition)}{saved}</small></div>"
        )
